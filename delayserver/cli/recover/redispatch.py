"""`delayserver recover redispatch`: delivers a range again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from delayserver.cli.recover import recover_options as shared
from delayserver.cli.terminal import options
from delayserver.cli.terminal.failures import FAILED
from delayserver.cli.terminal.output import print_json

if TYPE_CHECKING:
    from delayserver.client import Client
    from delayserver.protocol.schema.redispatch import RedispatchSlice
    from delayserver.recover.reading.redispatch_records import Unread

OUTCOMES = ("delivered", "expired", "dead_lettered")


class Done(NamedTuple):
    """The number of `messages` delivered again, and the `unread` damage. `waiting` counts further messages of a DIR
    that already wait for the next start."""

    messages: int
    unread: Unread
    waiting: int = 0


@click.command
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False))
@shared.time_range
@click.option("--subject", metavar="NAME", help="Only messages of this subject.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice(OUTCOMES),
    default=["delivered"],
    show_default=True,
    help="What became of them so far; may be repeated.",
)
@click.option("--server", type=options.ADDRESS, metavar="HOST:PORT", help="A running server, instead of DIR.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="With --server: the configuration whose listen.server_secret proves that you may.",
)
@shared.dry_run
@options.yes
@options.as_json
def redispatch(
    directory: str | None,
    from_ms: int | None,
    to_ms: int | None,
    subject: str | None,
    outcomes: tuple[str, ...],
    server: str | None,
    config: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Deliver messages again that are due in a range and have an outcome already, for brokers that lost data.

    With --server a running server does it now. Where that one has a listen.server_secret, name its configuration with
    --config; without one it takes this from its own host alone. With DIR the server must be stopped, and the deliveries
    begin at its next start; that way is deprecated and goes with version 0.3.0. Message ids stay the same, so consumers that
    are idempotent by id notice nothing. What was cancelled is never delivered. Begin with --dry-run. Interrupted, it can be
    run again on a DIR: what waits for the next start already is left out. What damage hides (with DIR, a missing file too)
    is named and counted, the rest is delivered; then the exit code is 1. A dry run does not read the bytes of messages, so
    it notices less.
    """
    if (directory is None) == (server is None):
        raise click.UsageError("name either a DIR (the server is stopped) or a running server with --server HOST:PORT")
    if config is not None and server is None:
        raise click.UsageError("--config goes with --server: a DIR asks for no proof")
    if from_ms is None or to_ms is None:
        raise click.UsageError("say which: --from and --to, the due times of the messages to deliver again")
    shared.check_range(from_ms, to_ms)
    if server is not None:
        from msgspec.structs import replace

        from delayserver.protocol.schema.redispatch import RedispatchSlice

        asked = RedispatchSlice(from_ms=from_ms, to_ms=to_ms, subject=subject, outcomes=outcomes)  # type: ignore[arg-type]  # some of `OUTCOMES`
        secret = _secret(config)
        with options.connect(server) as client:
            _prove(client, secret)
            done = _slices(client, replace(asked, dry_run=True))
            if not dry_run and done.messages:
                options.confirm(f"Deliver {done.messages:,} messages again?", yes)
                done = _slices(client, asked)
    else:
        assert directory is not None
        click.echo(
            "redispatch with DIR is deprecated and goes with version 0.3.0: start the server, use --server", err=True
        )
        done = _offline(directory, from_ms, to_ms, subject, outcomes, dry_run, yes)
    _report(done, dry_run=dry_run, online=server is not None, as_json=as_json)


def _report(done: Done, *, dry_run: bool, online: bool, as_json: bool) -> None:
    """Prints the result. Raises `click.exceptions.Exit` with code 1 if messages could not be read."""
    unread = done.unread.to_map()
    if as_json:
        waiting = {} if online else {"waiting": done.waiting}
        print_json({"messages": done.messages, "dry_run": dry_run, **waiting, **unread})
    else:
        would = "would be" if dry_run else "are" if online else "will be"
        when = "" if online else " at the next start of the server"
        click.echo(f"{done.messages:,} messages {would} delivered again{when}")
        if done.waiting:
            click.echo(f"{done.waiting:,} more wait for that start already, as an earlier redispatch left them")
        if done.unread.messages:
            click.echo(f"{done.unread.messages:,} more could not be read:")
        for damage in unread["damages"]:
            click.echo(f"  {damage['file']}: corrupt at offset {damage['offset']}: {damage['detail']}")
    if done.unread.messages:
        raise click.exceptions.Exit(FAILED)


def _secret(config: str | None) -> str:
    from delayserver.config.toml_file import ConfigError, load_settings

    try:
        return load_settings(config).listen.server_secret if config is not None else ""
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _prove(client: Client, secret: str) -> None:
    """Proves the secret for this connection, if there is one and the server asks for a proof."""
    if not secret:
        return
    from delayserver.client.calls.core import described_call
    from delayserver.protocol.operation_names import PROVE
    from delayserver.protocol.proof import make_proof
    from delayserver.protocol.schema.greetings import Challenge, Prove

    challenge = client._run(described_call(PROVE, Prove(), Challenge, repeatable=False)).challenge
    if challenge:
        proof = Prove(proof=make_proof(secret, challenge))
        client._run(described_call(PROVE, proof, Challenge, repeatable=False))


def _slices(client: Client, asked: RedispatchSlice) -> Done:
    """Sends one request per slice until the server has no more."""
    from msgspec.structs import replace

    from delayserver.client.calls.core import described_call
    from delayserver.protocol.operation_names import REDISPATCH
    from delayserver.protocol.schema.redispatch import Redispatched
    from delayserver.recover.reading.redispatch_records import Unread

    unread = Unread()
    count = 0
    while True:
        # Not repeatable, because a slice must not be sent twice. After a lost reply the operator has to look.
        reply = client._run(described_call(REDISPATCH, asked, Redispatched, repeatable=False))
        count += reply.messages
        unread.count(reply.unreadable)
        for damage in reply.damages:
            unread.add(damage.file, damage.offset, damage.detail)
        if reply.next is None:
            return Done(count, unread)
        asked = replace(asked, after=reply.next)


def _offline(
    directory: str, from_ms: int, to_ms: int, subject: str | None, outcomes: tuple[str, ...], dry_run: bool, yes: bool
) -> Done:
    from contextlib import nullcontext

    from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL
    from delayserver.recover.mending.mender import locked
    from delayserver.recover.mending.offline_redispatch import OfflineRedispatch
    from delayserver.recover.reading.capture import capture
    from delayserver.recover.reading.findings import Findings
    from delayserver.recover.reading.redispatch_records import RedispatchSelection
    from delayserver.runtime.clock import SystemClock
    from store.disk.filesystem import RealFileSystem
    from store.tables.names import SUBJECT

    fs = RealFileSystem()
    with shared.usage_of_directory(), nullcontext() if dry_run else locked(fs, directory.rstrip("/")):
        taken = capture(fs, directory, Findings())
        try:
            code = 0
            if subject is not None:
                code = taken.tables.names.code(SUBJECT, subject) if taken.tables.names is not None else 0
                if not code:
                    raise click.UsageError(f"no message of the subject {subject!r} was ever accepted here")
            wanted = RedispatchSelection(
                from_ms, to_ms, code, tuple(int(OUTCOMES_BY_LABEL[label]) for label in outcomes)
            )
            counted = OfflineRedispatch(taken, wanted, SystemClock())
            counted.count()
            if dry_run or not counted.messages:
                return Done(counted.messages, counted.unread, counted.waiting)
            options.confirm(f"Deliver {counted.messages:,} messages again at the next start?", yes)
            work = OfflineRedispatch(taken, wanted, SystemClock())
            try:
                work.run()
            except BaseException:
                if work.appended:
                    click.echo(
                        f"{work.appended:,} of {work.messages:,} messages will be delivered again at the next start of the "
                        "server; run it again for the others",
                        err=True,
                    )
                raise
            return Done(work.messages, work.unread, work.waiting)
        finally:
            taken.close()
