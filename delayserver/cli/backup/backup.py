"""`delayserver backup`: copies a data directory beside its running server, and looks after the copies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from delayserver.cli.backup.backup_places import backups_in, place
from delayserver.cli.recover.recover_options import progress_bar, usage_of_directory
from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json, visible
from delayserver.config.units import format_size

if TYPE_CHECKING:
    from delayserver.backup.backup_check import CheckedBackup
    from delayserver.backup.copying import BackedUp
    from delayserver.backup.repository import Repository
    from delayserver.client import Client
    from store.snapshots.snapshot_listing import Listing
    from store.snapshots.verified_backup import VerifiedBackup

KEEP_AGAIN_S: Final = 60.0
LOWEST: Final = 19
"""The copy has the lowest priority: clients of the server shall not wait for it."""
FINDINGS_SHOWN: Final = 20
IDENTITY: Final = "identity"
Tell = Callable[[int, int], None]


@click.group(invoke_without_command=True)
@options.server
@options.as_json
@click.option("--data-dir", metavar="DIR", help="Copy this data directory, while no server runs on it.")
@click.option(
    "--to", "to", metavar="DIR", help="Where the backups of this server lie: a folder of another disk, or a URL."
)
@click.pass_context
def backup(context: click.Context, server: str, as_json: bool, data_dir: str | None, to: str | None) -> None:
    """Copy the data of a running server, or of a stopped one, to a folder with all its backups.

    The server goes on meanwhile. Run the command on the machine of the server, as the user of the server. A backup
    holds all that was acknowledged before it began. The next backup copies only what has changed since. An interrupted
    one does not count, and the next one removes what it has left.
    """
    if context.invoked_subcommand is not None:
        if to is not None or data_dir is not None:
            raise click.UsageError(f"--to and --data-dir go without {context.invoked_subcommand}")
        return
    if to is None:
        raise click.UsageError("Missing option '--to': say where the backups lie")
    _require_outside(to)
    with backups_in(to, alone=True) as repository:
        if data_dir is not None:
            done = _of_stopped(repository, data_dir)
        else:
            with options.connect(server) as client:
                done = _of_running(repository, client)
    if as_json:
        print_json(
            {
                "backup": done.name,
                "taken_ms": done.taken_us // 1000,
                "files": done.files,
                "bytes": done.size_bytes,
                "copied_bytes": done.copied_bytes,
            }
        )
        return
    click.echo(
        f"backup {done.name}: {done.files:,} files, {format_size(done.size_bytes)}; copied: {format_size(done.copied_bytes)}"
    )


def _of_stopped(repository: Repository, data_dir: str) -> BackedUp:
    from delayserver.runtime.clock import SystemClock
    from store.disk.filesystem import RealFileSystem
    from store.snapshots.taking import list_still
    from store.tables.identity import LOCK, read_identity

    fs, root = RealFileSystem(), data_dir.rstrip("/") or "/"
    with usage_of_directory():
        read_identity(fs, root)
    lock = fs.lock(f"{root}/{LOCK}", b"delayserver backup")
    try:
        with progress_bar("copying") as tell:
            return _copied(repository, root, list_still(fs, root, SystemClock().now_us()), tell)
    finally:
        lock.close()


def _of_running(repository: Repository, client: Client) -> BackedUp:
    from delayserver.protocol.errors import DelayServerError
    from store.disk.filesystem import RealFileSystem
    from store.snapshots.snapshot_listing import read_listing
    from store.snapshots.taking import FILES

    os.nice(LOWEST)
    taken = client.take_snapshot()
    complete = False
    try:
        try:
            listing = read_listing(RealFileSystem(), taken.path)
        except FileNotFoundError:
            raise click.ClickException(
                f"the snapshot lies at {taken.path} on the machine of the server: run this command there"
            ) from None
        with progress_bar("copying") as tell, _keeping(client, taken.name, tell) as kept:
            done = _copied(repository, f"{taken.path}/{FILES}", listing, kept)
        complete = True
        return done
    finally:
        with suppress(DelayServerError):  # the server drops it by itself, a little later
            client.drop_snapshot(taken.name, complete=complete)


def _require_outside(to: str) -> None:
    """Fails where the backups would lie in a data directory: each would have those before it."""
    place = Path(to).resolve()
    for folder in () if "://" in to else (place, *place.parents):
        if (folder / IDENTITY).exists():
            raise click.UsageError(f"--to lies in the data directory {folder}; choose a folder of another disk")


@contextmanager
def _keeping(client: Client, name: str, tell: Tell) -> Iterator[Tell]:
    """A `tell` that keeps the snapshot as well. The client may lose its connection, which the next call makes anew."""
    import time

    asked_s = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal asked_s
        tell(done, total)
        if time.monotonic() - asked_s > KEEP_AGAIN_S:
            client.keep_snapshot(name)
            asked_s = time.monotonic()

    yield told


def _copied(repository: Repository, root: str, listing: Listing, tell: Tell) -> BackedUp:
    from delayserver import __version__
    from delayserver.backup.copying import back_up
    from store.disk.filesystem import RealFileSystem

    return back_up(repository, RealFileSystem(), root, listing, __version__, tell)


@backup.command("list")
@options.as_json
@place
def list_(place: str, as_json: bool) -> None:
    """List the backups in a folder, the oldest first."""
    with backups_in(place) as repository:
        verified = repository.verified()
        for name in repository.names():
            manifest, mark = repository.manifest(name), verified.get(name)
            if as_json:
                print_json(
                    {
                        "backup": name,
                        "taken_ms": manifest.taken_us // 1000,
                        "server_id": f"{manifest.server_id:012x}",
                        "files": len(manifest.files),
                        "bytes": manifest.size_bytes,
                        "log_end": manifest.log_end,
                        "covers_position": None if mark is None else mark.position,
                    }
                )
            else:
                click.echo(
                    f"{name}  server {manifest.server_id:012x}  {len(manifest.files):,} files  "
                    f"{format_size(manifest.size_bytes)}" + ("" if mark is None else f"  covers {_covered(mark)}")
                )


def _covered(mark: VerifiedBackup) -> str:
    return f"the cluster's log up to position {mark.position}"


@backup.command()
@options.as_json
@click.option("--temporary-dir", metavar="DIR", type=click.Path(exists=True, file_okay=False),
              help="Where the directory is made; in a folder of the system if missing.")  # fmt: skip
@place
@click.pass_context
def check(context: click.Context, place: str, temporary_dir: str | None, as_json: bool) -> None:
    """Read all bytes of all backups in a folder, restore the last one, and run `recover check` on it.

    The restored directory is removed again. It takes as much room as the data directory. Exit code 0: clean, 1: not.
    """
    from delayserver.backup.backup_check import check_backup
    from delayserver.runtime.clock import SystemClock
    from store.disk.filesystem import RealFileSystem

    with (
        backups_in(place) as repository,
        tempfile.TemporaryDirectory(prefix="delayserver-backup-", dir=temporary_dir) as root,
        progress_bar("checking") as tell,
    ):
        checked = check_backup(repository, RealFileSystem(), root, SystemClock().now_us(), tell)
    if as_json:
        print_json(
            {
                "clean": checked.clean,
                "backups": len(checked.names),
                "damages": [str(damage) for damage in checked.damages],
                "restored": checked.findings is not None,
                "accepted": checked.accepted,
                "pending": checked.pending,
                "covers_position": None if checked.verified is None else checked.verified.position,
                "findings": [finding.to_map() for finding in checked.findings or ()],
            }
        )
    else:
        _tell_checked(checked)
    context.exit(0 if checked.clean else FAILED)


def _tell_checked(checked: CheckedBackup) -> None:
    lines = [str(damage) for damage in checked.damages]
    lines += [f"{found.kind}  {found.file} at {found.offset}: {found.detail}" for found in checked.findings or ()]
    for line in lines[:FINDINGS_SHOWN]:
        click.echo(visible(line))
    if len(lines) > FINDINGS_SHOWN:
        click.echo(f"{len(lines) - FINDINGS_SHOWN:,} findings more: --json lists them")
    if checked.clean:
        click.echo(
            f"clean: {len(checked.names):,} backups; the last one has {checked.accepted:,} accepted messages, "
            f"{checked.pending:,} of them pending"
        )
        if checked.verified is not None:
            click.echo(f"It covers {_covered(checked.verified)}")
    elif checked.findings is None:
        click.echo("NOT clean: the last backup cannot be restored")
    else:
        click.echo("NOT clean: the last backup can be restored" + (", with findings" if checked.findings else ""))


@backup.command()
@options.as_json
@click.option("--keep", type=options.Whole(1), required=True, metavar="N", help="How many backups stay, the last ones.")
@place
def prune(place: str, keep: int, as_json: bool) -> None:
    """Remove old backups from a folder, and the bytes that no other backup needs."""
    with backups_in(place, alone=True) as repository:
        removed = repository.prune(keep)
    for name in removed:
        if as_json:
            print_json({"removed": name})
        else:
            click.echo(f"{name} is removed")
