"""`delayserver restore`: makes a data directory of a backup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from delayserver.cli.backup.backup_places import THERE, backups_in
from delayserver.cli.recover.recover_options import progress_bar
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import format_size, format_utc

if TYPE_CHECKING:
    from delayserver.backup.restoring import Restored


@click.command
@click.option("--from", "source", metavar="DIR", required=True, type=THERE,
              help="Where the backups lie: a folder, or a URL.")  # fmt: skip
@click.option("--data-dir", metavar="DIR", required=True, help="The directory to make: an empty or a new one.")
@click.option("--to-time", "to_ms", type=options.INSTANT, metavar="TIME",
              help="Up to which moment; the last backup if missing.")  # fmt: skip
@click.option("--alone", is_flag=True,
              help="Of a cluster's member: make a server of its own, which does not follow the log.")  # fmt: skip
@options.as_json
def restore(source: str, data_dir: str, to_ms: int | None, alone: bool, as_json: bool) -> None:
    """Make a data directory of a backup: of the last one, or as of a moment between the first and the last one.

    Stop the server of the old directory first, and never start it again: both have the same server id. What the old
    server delivered since the backup is delivered once more.

    The backup of a cluster's member makes the directory of any member of this cluster, also of a new one. It reads in
    the cluster's log what came since, so nothing is delivered again. With --to-time or --alone it makes the directory of
    a server of its own: then all members of the cluster must be stopped for good.
    """
    import trio

    from delayserver.backup.point_in_time import plan_restore
    from delayserver.backup.restoring import restore as restored_from
    from delayserver.crossing.leaving import leave_restored
    from delayserver.runtime.clock import SystemClock
    from delayserver.runtime.runtime import Runtime
    from store.disk.filesystem import RealFileSystem

    with backups_in(source) as repository, progress_bar("restoring") as tell:
        plan = plan_restore(repository, to_ms, alone=alone)
        root = data_dir.rstrip("/") or "/"
        done = restored_from(repository, plan, RealFileSystem(), root, SystemClock().now_us(), tell)
        if done.of_member and done.followed is None:
            done = replace(done, next_sequence=trio.run(leave_restored, RealFileSystem(), root, Runtime.on()))
    if as_json:
        print_json(
            {
                "backup": done.name,
                "server_id": f"{done.server_id:012x}",
                "taken_ms": done.taken_us // 1000,
                "last_ms": done.last_us // 1000,
                "log_position": None if done.followed is None else done.followed.position,
                "next_sequence": done.next_sequence,
                "files": done.files,
                "bytes": done.size_bytes,
            }
        )
    else:
        _tell(done, data_dir, to_ms)


def _tell(done: Restored, data_dir: str, to_ms: int | None) -> None:
    taken = format_utc(done.taken_us // 1000)
    click.echo(
        f"{data_dir} is restored from the backup {done.name}: {done.files:,} files, {format_size(done.size_bytes)}."
    )
    if done.followed is not None:
        click.echo(
            f"It is as of {taken}, and a member of the cluster of {done.server_id:012x}. It goes on from position "
            f"{done.followed.position} of the cluster's log. Start it with serve --cluster."
        )
        return
    if to_ms is not None and done.last_us:
        click.echo(f"It has all messages and cancels that were accepted up to {format_utc(to_ms)}.")
        lacks = f"{taken}: what was delivered, published and acknowledged behind that moment is not in it."
        click.echo(f"All else is as of {'that moment too.' if done.of_member else lacks}")
    else:
        click.echo(
            f"It is as of {taken}. What was accepted, published and acknowledged behind that moment is not in it."
        )
    click.echo("Messages that were delivered since then are delivered once more.")
    click.echo(
        f"It keeps the server id {done.server_id:012x}, so receipts stay valid. New messages get sequences from "
        f"{done.next_sequence} on, which the old server has not used."
    )
    click.echo("Never start the server of the old directory again.")
