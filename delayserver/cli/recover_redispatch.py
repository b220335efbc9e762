"""`delayserver recover redispatch`: deliver a range again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from delayserver.cli import options
from delayserver.cli import recover_options as shared
from delayserver.cli.output import print_json

if TYPE_CHECKING:
    from delayserver.client import Client

OUTCOMES = ("delivered", "expired", "dead_lettered")


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
@shared.dry_run
@shared.yes
@options.as_json
def redispatch(
    directory: str | None,
    from_ms: int | None,
    to_ms: int | None,
    subject: str | None,
    outcomes: tuple[str, ...],
    server: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Deliver messages again that are due in a range and have an outcome already, for brokers that lost data.

    With DIR the server must be stopped, and the deliveries begin at its next start; with --server a running one does it
    now. Message ids stay the same, so consumers that are idempotent by id notice nothing. What was cancelled is never
    delivered. Begin with --dry-run.
    """
    if (directory is None) == (server is None):
        raise click.UsageError("name either a DIR (the server is stopped) or a running server with --server HOST:PORT")
    if from_ms is None or to_ms is None:
        raise click.UsageError("say which: --from and --to, the due times of the messages to deliver again")
    shared.check_range(from_ms, to_ms)
    if server is not None:
        arguments: dict[str, Any] = {"from_ms": from_ms, "to_ms": to_ms, "outcomes": list(outcomes)}
        if subject is not None:
            arguments["subject"] = subject
        with options.connect(server) as client:
            count = _count_online(client, arguments)
            if not dry_run and count:
                shared.confirm(f"Deliver {count:,} messages again?", yes)
                count = _slices(client, arguments)
    else:
        assert directory is not None
        count = _offline(directory, from_ms, to_ms, subject, outcomes, dry_run, yes)
    if as_json:
        print_json({"messages": count, "dry_run": dry_run})
    else:
        would = "would be" if dry_run else "will be" if server is None else "are"
        when = " at the next start of the server" if server is None else ""
        click.echo(f"{count:,} messages {would} delivered again{when}")


def _count_online(client: Client, arguments: dict[str, Any]) -> int:
    return _slices(client, arguments | {"dry_run": True})


def _slices(client: Client, arguments: dict[str, Any]) -> int:
    """Request after request, until the server says that there is no more."""
    from delayserver.client.core import Call
    from delayserver.protocol.operations import REDISPATCH

    count, after = 0, None
    while True:
        request = arguments | ({"after": after} if after is not None else {})
        # A slice must not be sent twice: after a lost reply the operator looks first.
        call: Call[dict[str, Any]] = Call(REDISPATCH, request, lambda result, _server: result, repeatable=False)
        reply = client._run(call)
        count += int(reply["messages"])
        after = reply["next"]
        if after is None:
            return count


def _offline(
    directory: str, from_ms: int, to_ms: int, subject: str | None, outcomes: tuple[str, ...], dry_run: bool, yes: bool
) -> int:
    from contextlib import nullcontext

    from delayserver.clock import SystemClock
    from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL
    from delayserver.recover.capture import capture
    from delayserver.recover.findings import Findings
    from delayserver.recover.redispatching import OfflineRedispatch
    from delayserver.recover.repairing import locked
    from delayserver.redispatch import Wanted
    from store.filesystem import RealFileSystem
    from store.names import SUBJECT

    fs = RealFileSystem()
    with shared.usage_of_directory(), nullcontext() if dry_run else locked(fs, directory.rstrip("/")):
        taken = capture(fs, directory, Findings())
        try:
            code = 0
            if subject is not None:
                code = taken.names.code(SUBJECT, subject) if taken.names is not None else 0
                if not code:
                    raise click.UsageError(f"no message of the subject {subject!r} was ever accepted here")
            wanted = Wanted(from_ms, to_ms, code, tuple(int(OUTCOMES_BY_LABEL[label]) for label in outcomes))
            counted = OfflineRedispatch(taken, wanted, SystemClock())
            counted.count()
            if dry_run or not counted.messages:
                return counted.messages
            shared.confirm(f"Deliver {counted.messages:,} messages again at the next start?", yes)
            work = OfflineRedispatch(taken, wanted, SystemClock())
            work.run()
            return work.messages
        finally:
            taken.close()
