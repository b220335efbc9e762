"""A reply with one row per item of the request."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.operations.messages.named_messages import NamedMessages
from delayserver.protocol.errors import error_to_map
from delayserver.protocol.frames import RowsReply
from delayserver.protocol.receipts import format_receipt
from delayserver.runtime.fair_turns import Work


async def reply_results(
    connection: Connection,
    request_id: int,
    server_id: str,
    named: NamedMessages,
    fields: list[dict[str, Any]],
    work: Work,
) -> None:
    """Replies in the order of the request. A row is the receipt and its `fields`, or the error of the item. Where nothing
    was found by an id alone, it has no receipt."""
    results = RowsReply(request_id)
    for place, (sequence, due_ms) in enumerate(zip(named.sequence.tolist(), named.due_ms.tolist(), strict=True)):
        await work.items()
        if place in named.errors:
            results.add(error_to_map(named.errors[place]))
        else:
            given = named.receipts
            receipt = (
                given[place]
                if given is not None
                else format_receipt(server_id, due_ms, named.closed.get(place, sequence))
            )
            found = sequence or place not in named.ids
            results.add(({"receipt": receipt} if found else {}) | fields[place])
    connection.when_room(lambda: connection.reply(results.frame()))
