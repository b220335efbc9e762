"""`delayserver find`: stored messages by id, by key, or by subject and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import body_fields, print_json, visible, visible_block
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import FoundMessage


@click.command
@click.option("--id", "message_id", metavar="ID", help="The message id.")
@click.option("--key", metavar="WORD", help="A word of the property `keys`.")
@click.option("--subject", metavar="SUBJECT", help="Only messages of this subject; without --id and --key all of them.")
@click.option(
    "--from", "from_ms", type=options.INSTANT, help="Only messages that were dispatched at this time or later."
)
@click.option("--to", "to_ms", type=options.INSTANT, help="Only messages that were dispatched before this time.")
@click.option(
    "--max", "maximum", type=options.Whole(min=1), default=100, show_default=True, help="End after this many."
)
@options.server
@options.shard
@options.as_json
@click.pass_context
def find(
    context: click.Context,
    message_id: str | None,
    key: str | None,
    subject: str | None,
    from_ms: int | None,
    to_ms: int | None,
    maximum: int,
    server: str,
    as_json: bool,
) -> None:
    """Find messages that are stored on a node, consumed or not: by --id, by --key, or by --subject and time.

    A message has keys if its sender gave it a property `keys` of words, as in --property 'keys=order-7 customer-42'. A
    node knows the messages that it was handed: use `lookup` for messages that are not due yet. The exit code is 1 if
    nothing was found.
    """
    if message_id is not None and key is not None:
        raise click.UsageError("give either --id or --key, not both")
    if message_id is None and key is None and subject is None:
        raise click.UsageError("give --id, --key, or --subject (with --from and --to)")
    with options.connect(server) as client:
        found = client.find(message_id, key=key, subject=subject, from_ms=from_ms, to_ms=to_ms, max_messages=maximum)
    for message in found:
        _print(message, as_json)
    if not found:
        if not as_json:
            click.echo("nothing found on this node", err=True)
        context.exit(1)


def _print(message: FoundMessage, as_json: bool) -> None:
    fields = body_fields(message.body)
    if as_json:
        print_json(
            {
                "receipt": message.receipt,
                "message_id": message.message_id,
                "subject": message.subject,
                "position": message.position,
                "sequence": message.sequence,
                "server_id": message.server_id,
                "due_ms": message.due_ms,
                "dispatched_ms": message.dispatched_us / 1000,
                "expires_ms": message.expires_ms or None,
                "properties": message.properties,
                "tag": message.tag,
                "order_key": message.order_key,
                **fields,
            }
        )
        return
    click.echo(
        f"{format_instant(message.due_ms)}  {visible(message.subject)} {message.position}  {visible(message.message_id)}"
    )
    click.echo(f"    {message.receipt}")
    for name, value in message.properties.items():
        click.echo(f"    {visible(name)}={visible(value)}")
    encoding = f"  ({fields['body_encoding']})" if "body_encoding" in fields else ""
    body = visible_block(fields["body"]).replace("\n", "\n    ") or "(empty)"
    click.echo(f"    {body}{encoding}")
