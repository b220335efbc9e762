"""`find`: stored messages by id, by key, or by subject and time."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from delayserver.front.connection import Connection
from delayserver.front.handlers.message_replies import put_rare
from delayserver.operations.access.access import Access
from delayserver.operations.groups.finding import FOUND_AT_ONCE_MAX, START, FoundPage, Search, StoreSearch
from delayserver.protocol.arguments import integer, invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.receipts import derived_message_id
from store.records.column_batch import ragged_rows

# Ids and keys have at most so many bytes.
_TEXT_BYTES_MAX = 1024
# Milliseconds; as microseconds it has 63 bits.
_TIME_MAX = 1 << 52


class FindingHandlers:
    """Requests that search."""

    def __init__(self, finding: StoreSearch) -> None:
        self._finding = finding

    async def find(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """A page of the messages that are stored on this node."""
        arguments = request.arguments
        message_id, key, subject = (_text(arguments, name) for name in ("message_id", "key", "subject"))
        if message_id is not None and key is not None:
            raise InvalidArgument("give either message_id or key, not both")
        if message_id is None and key is None and subject is None:
            raise InvalidArgument("give message_id, key, or subject (with from_ms and to_ms)")
        if key is not None and key.encode().split() != [key.encode()]:
            raise InvalidArgument("a key is one word: a message with several keys is found by each of them")
        search = Search(
            message_id,
            key,
            subject,
            integer(arguments, "from_ms", 0, _TIME_MAX, 0),
            integer(arguments, "to_ms", 0, _TIME_MAX, _TIME_MAX),
        )
        count_max = integer(arguments, "max", 1, FOUND_AT_ONCE_MAX, FOUND_AT_ONCE_MAX)
        page = await self._finding.find(search, _cursor(arguments.get("after")), count_max)
        return {
            "messages": _rows(_open_to(connection.access, page)),
            "next": None if page.next is None else list(page.next),
        }


def _text(arguments: dict[str, Any], name: str) -> str | None:
    """An optional text. Raises InvalidArgument."""
    text = arguments.get(name)
    if text is None:
        return None
    if type(text) is not str or not text:
        raise invalid(name, "a text of at least one character", text)
    if len(text.encode()) > _TEXT_BYTES_MAX:
        raise InvalidArgument(f"{name} has at most {_TEXT_BYTES_MAX} bytes")
    return text


def _cursor(after: object) -> tuple[int, int]:
    """Where the search goes on. Raises InvalidArgument."""
    if after is None:
        return START
    if type(after) is not list or len(after) != 2 or not all(type(part) is int for part in after):
        raise invalid("after", "the `next` of the reply before", after)
    return (after[0], after[1])


def _open_to(access: Access, page: FoundPage) -> FoundPage:
    """The page without messages of subjects that are closed to the client."""
    codes = np.unique(page.messages.subject).tolist()
    closed = [code for code in codes if not access.may(page.name_of(code))]
    if not closed:
        return page
    kept = np.flatnonzero(~np.isin(page.messages.subject, closed))
    return FoundPage(page.messages.take(kept), page.name_of, page.next)


def _rows(page: FoundPage) -> list[dict[str, Any]]:
    batch = page.messages
    ids, properties, bodies = (
        ragged_rows(blob, lengths)
        for blob, lengths in (
            (batch.ids, batch.ids_length),
            (batch.properties, batch.properties_length),
            (batch.bodies, batch.bodies_length),
        )
    )
    origin = np.where(batch.origin_sequence != 0, batch.origin_sequence, batch.sequence).tolist()
    columns = (batch.server_id, batch.subject, batch.position, batch.sequence, batch.due_ms, batch.accepted_us)
    numbers = [column.tolist() for column in (*columns, batch.dispatched_us, batch.expires_ms)]
    rows: list[dict[str, Any]] = []
    for row, (server, subject, position, sequence, due_ms, accepted_us, dispatched_us, expires_ms) in enumerate(
        zip(*numbers, strict=True)
    ):
        server_id = f"{server:012x}"
        rows.append(
            {
                "message_id": ids[row].decode() if ids[row] else derived_message_id(server_id, origin[row]),
                "subject": page.name_of(subject),
                "position": position,
                "sequence": sequence,
                "server_id": server_id,
                "due_ms": due_ms,
                "accepted_us": accepted_us,
                "dispatched_us": dispatched_us,
                "expires_ms": expires_ms,
                "body": bodies[row],
                "properties": msgpack.unpackb(properties[row]) if properties[row] else {},
            }
        )
    put_rare(rows, batch, page.name_of)
    return rows
