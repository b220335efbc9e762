"""The lines of `delayserver pending --list`: one for each message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from delayserver.cli.terminal.output import body_fields, print_json, visible, visible_block
from delayserver.config.units import format_instant

if TYPE_CHECKING:
    from delayserver.client import PendingMessage


def list_messages(found: Iterable[PendingMessage], maximum: int | None, as_json: bool) -> None:
    """Print the first messages."""
    count = 0
    for count, message in enumerate(islice(found, maximum), 1):  # noqa: B007 - used behind the loop
        print_message(message, as_json)
    if not count and not as_json:
        click.echo("nothing is pending")


def print_message(message: PendingMessage, as_json: bool) -> None:
    """Print one message."""
    if as_json:
        print_json(_record(message))
        return
    tag = f"  [{visible(message.tag)}]" if message.tag else ""
    click.echo(
        f"{format_instant(message.due_ms)}  {message.receipt}  {visible(message.subject)}  {visible(message.message_id)}"
        f"{tag}  {message.body_bytes} B"
    )
    for name, value in (message.properties or {}).items():
        click.echo(f"    {visible(name)}={visible(value)}")
    if message.body is not None:
        fields = body_fields(message.body)
        encoding = f"  ({fields['body_encoding']})" if "body_encoding" in fields else ""
        body = visible_block(fields["body"]).replace("\n", "\n    ") or "(empty)"
        click.echo(f"    {body}{encoding}")


def _record(message: PendingMessage) -> dict[str, Any]:
    record: dict[str, Any] = {
        "receipt": message.receipt,
        "message_id": message.message_id,
        "subject": message.subject,
        "due_ms": message.due_ms,
        "accepted_us": message.accepted_us,
        "expires_ms": message.expires_ms or None,
        "tag": message.tag or None,
        "body_bytes": message.body_bytes,
    }
    if message.properties is not None:
        record["properties"] = message.properties
    return record if message.body is None else record | body_fields(message.body)
