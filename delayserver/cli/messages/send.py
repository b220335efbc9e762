"""`delayserver send`: sends one message."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import click

from delayserver.cli.terminal import options
from delayserver.cli.terminal.output import print_json
from delayserver.config.units import format_instant


@click.command
@click.argument("subject")
@click.argument("body", required=False)
@options.due_options
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False), help="Take the body from a file.")
@click.option("--id", "message_id", metavar="ID", help="Your id: the same id, subject and due time deliver once.")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="A property; may be repeated.")
@click.option(
    "--expires",
    type=options.EXPIRY,
    metavar="DURATION|TIME",
    help="Not delivered any more this long after it was due, or at this time.",
)
@click.option("--tag", metavar="TAG", help="The kind of the message; consumers can filter by it.")
@click.option("--order-key", metavar="KEY", help="Messages of one key are consumed one after the other.")
@click.option(
    "--delay-level", type=options.LEVEL, metavar="NAME|N", help="Due after this delay level of the server: 30s."
)
@options.server
@options.as_json
def send(
    subject: str,
    body: str | None,
    delay_ms: int | None,
    at_ms: int | None,
    path: str | None,
    message_id: str | None,
    properties: tuple[str, ...],
    expires: tuple[bool, int] | None,
    tag: str | None,
    order_key: str | None,
    delay_level: int | timedelta | None,
    server: str,
    as_json: bool,
) -> None:
    """Send BODY to SUBJECT, due after --delay or --delay-level, or at --at; without these now. BODY `-` is stdin.

    When the command ends, the message is durable on the server. The receipt is what cancel, reschedule and lookup take.
    """
    options.check_due(delay_ms, at_ms, required=False)
    if delay_level is not None and (delay_ms is not None or at_ms is not None):
        raise click.UsageError("give only one of --delay, --delay-level and --at")
    content = read_body(body, path)
    pairs = read_properties(properties)
    relative, expires_ms = expires or (False, None)
    from delayserver.client.calls.send_calls import delay_of_level

    with options.connect(server) as client:
        # The client computes the due time once, from the server's clock. A relative expiry counts from it.
        if delay_level is not None:
            known = client.connect()
            delay_ms = delay_of_level(known, options.level_number(known, delay_level))
        due_ms = at_ms if at_ms is not None else -(-client.ping() // 1000) + (delay_ms or 0)
        result = client.send(
            subject,
            content,
            due_ms=due_ms,
            message_id=message_id,
            properties=pairs or None,
            expires_ms=due_ms + expires_ms if relative and expires_ms is not None else expires_ms,
            tag=tag,
            order_key=order_key,
            tell_duplicates=message_id is not None,
        )
    if as_json:
        fields = ("receipt", "message_id", "subject", "due_ms", "sequence", "duplicate", "original_receipt")
        row = {name: getattr(result, name) for name in fields if getattr(result, name) is not None}
        print_json(row | ({} if result.outcome is None else {"outcome": result.outcome.label}))
    else:
        click.echo(f"due      {format_instant(result.due_ms)}")
        click.echo(f"id       {result.message_id}")
        click.echo(f"receipt  {result.receipt}")
        if result.outcome is not None:
            click.echo(f"copy of  {result.original_receipt}, which is {result.outcome.label}")
    if result.never_comes and result.outcome is not None:
        raise click.ClickException(
            f"the server had this message before, and it is {result.outcome.label}: it is not delivered. "
            "Send it with another --id or another time."
        )


def read_body(body: str | None, path: str | None) -> bytes:
    """The body that the arguments of a command name. Raises UsageError."""
    if (body is None) == (path is None):
        raise click.UsageError("give the body as an argument, as - for stdin, or with --file, and only one of them")
    if path is not None:
        return Path(path).read_bytes()
    if body == "-":
        if sys.stdin is None:
            raise click.UsageError("the body `-` is read from stdin, and stdin is closed")
        return sys.stdin.buffer.read()
    # Bytes of an argument that are not UTF-8 arrive as surrogates. The message gets the original bytes.
    return (body or "").encode("utf-8", "surrogateescape")


def read_properties(texts: Iterable[str]) -> dict[str, str]:
    """The values of all `--property` by their keys. Raises UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--property {text!r}: write KEY=VALUE")
        if key in pairs:
            raise click.UsageError(f"--property {text!r}: {key} is given twice")
        pairs[key] = value
    return pairs
