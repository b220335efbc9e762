"""`delayserver publish`: stores one message that is due now."""

from __future__ import annotations

import click

from delayserver.cli.messages.send import read_body, read_properties
from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json, visible


@click.command
@click.argument("subject")
@click.argument("body", required=False)
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False), help="Take the body from a file.")
@click.option("--id", "message_id", metavar="ID", help="Your id, by which consumers recognise a repetition.")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="A property; may be repeated.")
@click.option("--tag", metavar="TAG", help="The kind of the message; consumers can filter by it.")
@click.option("--order-key", metavar="KEY", help="Messages of one key are consumed one after the other.")
@options.server
@options.as_json
def publish(
    subject: str,
    body: str | None,
    path: str | None,
    message_id: str | None,
    properties: tuple[str, ...],
    tag: str | None,
    order_key: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Publish BODY to SUBJECT, due now. BODY `-` is read from stdin.

    The message goes straight to the node that stores the subject, and is durable there when the command ends. It cannot
    be cancelled; `send` is for messages with a time.
    """
    content = read_body(body, path)
    pairs = read_properties(properties)
    with options.connect(server) as client:
        result = client.publish(
            subject, content, message_id=message_id, properties=pairs or None, tag=tag, order_key=order_key
        )
    if as_json:
        print_json({name: getattr(result, name) for name in ("message_id", "subject", "position")})
    else:
        click.echo(f"id        {visible(result.message_id)}")
        click.echo(f"position  {result.position}")
