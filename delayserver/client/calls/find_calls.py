"""The call that searches a node for stored messages. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.client.values.messages import ServerInfo
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import FIND
from delayserver.protocol.receipts import format_receipt


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that is stored on a node. ``position`` counts the messages of its subject there. ``dispatched_us`` is when
    the server handed it to the node."""

    message_id: str
    subject: str
    position: int
    sequence: int
    server_id: str
    due_ms: int
    accepted_us: int
    dispatched_us: int
    expires_ms: int
    body: bytes
    properties: dict[str, str]
    tag: str | None = None
    order_key: str | None = None

    @property
    def receipt(self) -> str:
        """The receipt, which `lookup` and `delayserver recover trace` take. A published message is not known by it."""
        return format_receipt(self.server_id, self.due_ms, self.sequence)


@dataclass(frozen=True, slots=True)
class FindPage:
    """Some found messages. The search goes on behind ``next``; None if it is complete."""

    messages: list[FoundMessage]
    next: list[int] | None


def find_call(
    message_id: str | None,
    key: str | None,
    subject: str | None,
    from_ms: int | None,
    to_ms: int | None,
    after: list[int] | None,
) -> Call[FindPage]:
    """A page of the messages with an id, with a key, or of a subject and a time."""
    if message_id is not None and key is not None:
        raise InvalidArgument("find takes either a message_id or a key, not both")
    if message_id is None and key is None and subject is None:
        raise InvalidArgument("find takes a message_id, a key, or a subject with the time in which it was dispatched")
    arguments = {
        "message_id": message_id, "key": key, "subject": subject, "from_ms": from_ms, "to_ms": to_ms, "after": after,
    }  # fmt: skip
    names = [field.name for field in fields(FoundMessage)]

    def read(result: dict[str, Any], _: ServerInfo) -> FindPage:
        rows = [FoundMessage(**{name: row[name] for name in names if name in row}) for row in result["messages"]]
        return FindPage(rows, result["next"])

    return Call(FIND, {name: value for name, value in arguments.items() if value is not None}, read)
