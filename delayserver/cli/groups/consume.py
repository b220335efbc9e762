"""`delayserver consume`: handles messages as they come, by running a command for each, or by printing them."""

from __future__ import annotations

import signal
from typing import Final

import click

from delayserver.cli.terminal import options

END_MS: Final = 10_000
"""A command that is ended by --timeout has ended within this time."""

OUTLIVE_S: Final = 5
OUTLIVE_MS_MAX: Final = 60_000
"""The default of a listener, and the most that a server takes. They are not imported: `--help` shall come at once."""


@click.command
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT...")
@click.option("--group", required=True, metavar="NAME", help="The consumer group; each gets every message once.")
@click.option("--exec", "command", metavar="CMD", help="Run this for each message, by /bin/sh. Without it: print them.")
@click.option("--concurrency", type=options.Whole(1, 1000), default=1, show_default=True, help="Commands at once.")
@click.option("--max", "maximum", type=options.Whole(min=1), metavar="N", help="End after this many messages.")
@click.option("--timeout", "timeout_ms", type=options.DURATION, help="End a command that takes longer, and nack.")
@click.option(
    "--stop",
    "stop_ms",
    type=options.DURATION,
    default="30s",
    show_default=True,
    help="At the end, running commands get this long.",
)
@click.option(
    "--ack-timeout", "ack_timeout_ms", type=options.DURATION, default="1m", show_default=True,
    help="A message that takes longer comes again, unless its command runs; at least --timeout."
)  # fmt: skip
@click.option(
    "--extend-max", "extend_max_ms", type=options.DURATION, default="1h", show_default=True,
    help="While a command runs, its message is kept this long at most."
)  # fmt: skip
@click.option(
    "--outlive", "outlive_ms", type=options.DURATION, default=f"{OUTLIVE_S}s", show_default=True,
    help="If this process dies, its messages come again after this long; at most 1m."
)  # fmt: skip
@click.option(
    "--start",
    type=options.START,
    metavar="earliest|latest|TIME",
    help="Where a new group begins: TIME is ISO 8601 with zone.  [default: earliest]",
)
@click.option("--tags", metavar="TAGS", help="Only messages with one of these tags: 'paid || shipped'; '*' for all.")
@click.option("--where", metavar="EXPR", help="Only messages with such properties: 'price > 3'.")
@options.server
@options.as_json
def consume(
    subjects: tuple[str, ...],
    group: str,
    command: str | None,
    concurrency: int,
    maximum: int | None,
    timeout_ms: int | None,
    stop_ms: int,
    ack_timeout_ms: int,
    extend_max_ms: int,
    outlive_ms: int,
    start: str | int | None,
    tags: str | None,
    where: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Handle messages of the SUBJECTs as they come, from all their nodes, until SIGINT or SIGTERM. A SUBJECT may be a
    pattern, such as 'orders*', which also finds new subjects.

    With --exec a command runs for each message. It gets the body on stdin and the rest in variables: DELAYSERVER_MESSAGE_ID,
    _SUBJECT, _GROUP, _DUE_MS, _ATTEMPT, _SEQUENCE, _SERVER_ID, _EXPIRES_MS, _TAG, _ORDER_KEY; DELAYSERVER_PROPERTIES has all
    properties as JSON, and DELAYSERVER_PROPERTY_NAME has one, with its name in capitals. Exit code 0 acks the message. Any
    other nacks it, and it comes again after the pauses of the group. 126 and 127 (no such command) end `consume`.

    Without --exec messages are printed and acked. With --json each message is printed as one line, after its command, with
    exit_code; what the command prints goes to stderr then. The first signal lets running commands end, a second one ends
    them.
    """
    if timeout_ms is not None and command is None:
        raise click.UsageError("--timeout is for commands: give --exec too")
    if timeout_ms is not None and timeout_ms <= 0:
        raise click.UsageError("--timeout is longer than 0s")
    if ack_timeout_ms <= 0:
        raise click.UsageError("--ack-timeout is longer than 0s")
    if outlive_ms > OUTLIVE_MS_MAX:
        raise click.UsageError("--outlive is at most 1m")
    from delayserver.cli.groups import consumer_work
    from delayserver.client import ListenerSettings
    from delayserver.client.listening.subscription import Choices

    settings = ListenerSettings(
        concurrency=concurrency,
        prefetch_messages=min(4096, maximum or 4096),
        # A command that is ended needs a moment for that.
        ack_timeout_s=max(ack_timeout_ms, (timeout_ms or 0) + END_MS) / 1000,
        stop_s=stop_ms / 1000,
        messages_max=maximum,
        extend_max_s=extend_max_ms / 1000,
        outlive_s=outlive_ms / 1000,
    )
    with options.connect(server):
        pass
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    consumption = consumer_work.Consumption(command, timeout_s, as_json=as_json)
    choice: Choices = {"start": start, "tags": tags, "where": where}
    consumer_work.run(consumption, server, subjects, group, settings, choice, (signal.SIGINT, signal.SIGTERM))
