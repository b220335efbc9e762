"""`delayserver peek`: shows messages of a subject without a group and without a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import body_fields, print_json, visible, visible_block
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import ReadMessage


@click.command
@click.argument("subject")
@click.option(
    "--position",
    type=int,
    help="From this position on; -N begins N before the end.  [default: the earliest kept]",
)
@click.option("--max", "maximum", type=options.Whole(min=1), default=10, show_default=True, help="At most this many.")
@click.option(
    "--wait", "wait_ms", type=options.DURATION, default="0s", show_default=True, help="At the end wait for more."
)
@options.server
@options.shard
@options.as_json
def peek(subject: str, position: int | None, maximum: int, wait_ms: int, server: str, as_json: bool) -> None:
    """Print messages of SUBJECT from a position on. No consumer group notices it.

    The position of a message is its place in the subject's queue at this node. Messages come in the order in which they
    were delivered to the node. A redelivery lies in a queue of its group, so it is not among them.
    """
    with options.connect(server) as client:
        at = client.read(subject, 0 if position is None else position, 1)
        if position is None:
            position = at.first
        elif position < 0:
            position = max(at.end + position, at.first)
        shown = 0
        while shown < maximum:
            most = min(maximum - shown, client.limits.pull_messages_max)
            page = client.read(subject, position, most, wait_s=wait_ms / 1000)
            for message in page.messages:
                _print(message, as_json)
            shown += len(page.messages)
            if page.status != "found":
                break
            position = page.next
    if page.status not in ("found", "nothing_yet"):
        raise click.ClickException(
            f"position_out_of_range: {position} is {page.status.replace('_', ' ')}; "
            f"this node keeps {page.first} to {page.end} of the subject"
        )
    if not shown and not as_json:
        click.echo("nothing is there yet", err=True)


def _print(message: ReadMessage, as_json: bool) -> None:
    if as_json:
        from msgspec.structs import asdict

        record: dict[str, Any] = asdict(message)
        body = body_fields(record.pop("body"))
        for name in ("accepted", "dispatched"):
            record[f"{name}_ms"] = record.pop(f"{name}_us") / 1000
        print_json(record | body)
        return
    click.echo(f"{message.position:>8,}  {format_instant(message.due_ms)}  {visible(message.message_id)}")
    for name, value in message.properties.items():
        click.echo(f"    {visible(name)}={visible(value)}")
    fields = body_fields(message.body)
    encoding = f"  ({fields['body_encoding']})" if "body_encoding" in fields else ""
    text = visible_block(fields["body"]).replace("\n", "\n    ") or "(empty)"
    click.echo(f"    {text}{encoding}")
