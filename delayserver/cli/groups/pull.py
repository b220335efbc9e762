"""`delayserver pull`: receives due messages for a consumer group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.delivery_printing import print_delivery
from delayserver.cli.terminal.options import START
from delayserver.config.units import format_duration

if TYPE_CHECKING:
    from delayserver.client import Client


# A subject may have these characters. Who types one usually means a pattern.
_PATTERN_SIGNS: Final = frozenset("*?[")


@click.command
@click.argument("subject")
@click.option("--group", required=True, metavar="NAME", help="The consumer group; each gets every message once.")
@click.option("--max", "maximum", type=options.Whole(min=1), default=1, show_default=True, help="End after this many.")
@click.option(
    "--wait", "wait_ms", type=options.DURATION, default="0s", show_default=True, help="Wait this long for them."
)
@click.option(
    "--ack/--no-ack",
    help="Acknowledge what was printed, or not (the default): then it comes again after a timeout.",
)
@click.option(
    "--start",
    type=START,
    metavar="earliest|latest|TIME",
    help="Where a new group begins: TIME is ISO 8601 with zone.  [default: earliest]",
)
@click.option("--ack-timeout", "ack_timeout_ms", type=options.DURATION, help="That timeout.  [default: the server's]")
@click.option("--tags", metavar="TAGS", help="Only messages with one of these tags: 'paid || shipped'; '*' for all.")
@click.option("--where", metavar="EXPR", help="Only messages with such properties: 'price > 3 AND country = 'de''.")
@click.option(
    "--broadcast",
    is_flag=True,
    help="Get every message, whoever else does. The group is this command's own and ends with it; it begins at the end.",
)
@options.server
@options.as_json
def pull(
    subject: str,
    group: str,
    maximum: int,
    wait_ms: int,
    ack: bool,
    start: str | int | None,
    ack_timeout_ms: int | None,
    tags: str | None,
    where: str | None,
    broadcast: bool,
    server: str,
    as_json: bool,
) -> None:
    """Print messages of SUBJECT as they come, until there were --max of them or the --wait is over. SUBJECT is one
    subject; patterns are for routes.

    With --ack a message is acknowledged after it is printed, so that one whose output was lost comes again. Where that
    took longer than the ack timeout, as into a pager, it comes again too, and the exit code is 1.

    --tags and --where are the filter of the group from then on, also for its other consumers; without them the group keeps
    the filter that it has. Messages that do not match are done for the group.
    """
    received = 0
    unknown = 0
    deadline_s = time.monotonic() + wait_ms / 1000
    with options.connect(server) as client:
        pull_messages_max = client.hello().limits.pull_messages_max
        while True:
            deliveries = client.pull(
                subject,
                group,
                min(maximum - received, pull_messages_max),
                wait_s=max(0.0, deadline_s - time.monotonic()),
                ack_timeout_s=None if ack_timeout_ms is None else ack_timeout_ms / 1000,
                start=start,
                tags=tags,
                where=where,
                broadcast=broadcast,
            )
            for delivery in deliveries:
                print_delivery(delivery, as_json=as_json)
            if ack and deliveries and not broadcast:
                unknown += client.ack(subject, group, deliveries).unknown
            received += len(deliveries)
            if received >= maximum or (time.monotonic() >= deadline_s and not deliveries):
                break
        elsewhere = [] if received else _nodes_elsewhere(client, subject, server)
    if elsewhere:
        raise click.ClickException(
            f"nothing here: this subject goes to {', '.join(elsewhere)}; pull there, with --server"
        )
    if not as_json:
        _print_hint(received, wait_ms, ack or broadcast)
        if not received and _PATTERN_SIGNS & set(subject):
            click.echo("SUBJECT is taken as a name, not as a pattern; `delayserver consume` takes patterns", err=True)
    if unknown:
        raise click.ClickException(
            f"{unknown} of {received} were not in flight any more and may come again; use a longer --ack-timeout"
        )


def _nodes_elsewhere(client: Client, subject: str, server: str) -> list[str]:
    """The broker nodes to which the server delivers this subject; empty if it is one of them."""
    nodes = client.route(subject=subject).nodes
    # An older server does not mark its own node.
    return [] if any(node.here or node.address == server for node in nodes) else [node.address for node in nodes]


def _print_hint(received: int, wait_ms: int, ack: bool) -> None:
    if not received:
        click.echo(f"nothing was due within {format_duration(wait_ms)}" if wait_ms else "nothing is due", err=True)
    elif not ack:
        click.echo("not acknowledged, so this comes again after the ack timeout; --ack settles it", err=True)
