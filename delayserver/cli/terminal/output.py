"""The output of commands: JSON objects, one per line, or text for people. Field names are those of the protocol."""

from __future__ import annotations

import base64
import codecs
import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from delayserver.client.values.messages import Delivery
    from delayserver.protocol.errors import DelayServerError


# Characters that turn the direction of what follows, and line separators: text would look like another one.
_TURNS: Final = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROLS: Final = re.compile(f"[\x00-\x1f\x7f-\x9f{_TURNS}]")
_CONTROLS_OF_A_BLOCK: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNS}]")
# json.dumps escapes only those below U+0020.
_CONTROLS_OF_JSON: Final = re.compile(f"[\x7f-\x9f{_TURNS}]")


def print_json(record: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line and flushes it, so that a reader of a pipe sees it at once.

    The line is ASCII if stdout is not UTF-8.
    """
    text = json.dumps(record, ensure_ascii=not _stdout_is_utf8(), separators=(",", ":"), default=_as_text)
    click.echo(_CONTROLS_OF_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _stdout_is_utf8() -> bool:
    encoding = getattr(sys.stdout, "encoding", None)  # stdout may be closed
    return encoding is not None and codecs.lookup(encoding).name == "utf-8"


def visible(text: str) -> str:
    """Text for one line. Control characters are escaped like \\x1b, and those that turn the direction like \\u202e.

    So a message can neither control the reader's terminal nor look like a line of the program."""
    return _CONTROLS.sub(_escape, text)


def visible_block(text: str) -> str:
    """`visible` for a block of text, which keeps its lines and tabs."""
    return _CONTROLS_OF_A_BLOCK.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def without_none(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in record.items() if value is not None}


def error_record(receipt: str, error: DelayServerError) -> dict[str, Any]:
    """The record of a refused item."""
    return {"receipt": receipt, "error": error.name, "message": error.message}


def delivery_record(delivery: Delivery) -> dict[str, Any]:
    """The record of a pulled message. Times are milliseconds with microsecond fractions.

    A body that is not UTF-8 comes with ``body_encoding``.
    """
    first_possible_us = max(delivery.due_ms * 1000, delivery.accepted_us)
    record: dict[str, Any] = {
        "message_id": delivery.message_id,
        "subject": delivery.subject,
        "sequence": delivery.sequence,
        "server_id": delivery.server_id,
        "due_ms": delivery.due_ms,
        "accepted_ms": delivery.accepted_us / 1000,
        "dispatched_ms": delivery.dispatched_us / 1000,
        "lateness_ms": (delivery.dispatched_us - first_possible_us) / 1000,
        "expires_ms": delivery.expires_ms,
        "attempt": delivery.attempt,
        # Text, because many readers of JSON keep numbers as doubles, and this one is beyond 2^53.
        "delivery": str(delivery.delivery),
        "position": delivery.position,
    }
    if delivery.tag is not None:
        record["tag"] = delivery.tag
    if delivery.order_key is not None:
        record["order_key"] = delivery.order_key
    if delivery.properties:
        record["properties"] = delivery.properties
    return record | body_fields(delivery.body)


def body_fields(body: bytes) -> dict[str, str]:
    """``body`` as text, or in base64 with ``body_encoding`` if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
