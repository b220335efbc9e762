"""`lookup` by receipts, by ids or in columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgpack
import numpy as np

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import GivenMessages, rejected_rows
from delayserver.front.handlers.results import reply_results
from delayserver.operations.messages.contents import ContentsPart
from delayserver.operations.messages.lookup import Lookup
from delayserver.operations.messages.message_states import FoundState
from delayserver.protocol.arguments import boolean, one_form
from delayserver.protocol.columns import U8, pack_column
from delayserver.protocol.errors import error_to_map
from delayserver.protocol.frames import RequestFrame, encode_reply
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipt
from delayserver.runtime.fair_turns import SLICE_ITEMS, Work

_COLUMNS = ("dispatched_us", "attempts", "original_sequence", "rescheduled_sequence", "rescheduled_due_ms")


class LookupHandlers:
    """Requests for the states of messages. Rows of a reply are made when the client has room for them."""

    def __init__(self, lookup: Lookup, reader: GivenMessages, server_id: str) -> None:
        self._lookup = lookup
        self._reader = reader
        self._server_id = server_id

    async def lookup(self, connection: Connection, request: RequestFrame) -> None:
        """Looks messages up. The reply has the form in which the request names them."""
        work = connection.work()
        form = one_form(request.arguments, ("receipts", "messages", "count"))
        if form == "count":
            await self._lookup_columns(connection, request, work)
            return
        given = await self._reader.given(request.arguments, form, work)
        with_body = boolean(request.arguments, "body")
        with_times = boolean(request.arguments, "times")
        looked_up = await self._lookup.by_name(
            given, work, connection.access, with_body=with_body, with_times=with_times
        )
        named = looked_up.named
        await connection.room()
        fields = []
        for place, found in enumerate(looked_up.found):
            await work.items()
            known = self._fields(found, int(named.sequence[place]), int(named.due_ms[place]))
            times: dict[str, Any] = {}
            if with_times and found.message:
                await work.items(SLICE_ITEMS)  # it goes through thousands of pulls
                times = {"times": _times(found), "consumed": [asdict(each) for each in self._lookup.consumed(found)]}
            fields.append(known | _content(looked_up.contents, place) | times)
        await reply_results(connection, request.id, self._server_id, named, fields, work)

    async def _lookup_columns(self, connection: Connection, request: RequestFrame, work: Work) -> None:
        numbers = self._reader.numbers(request.arguments, "due_ms")
        found = await self._lookup.by_number(*numbers, work, connection.access)
        await connection.room()
        rows = []
        for each, own in zip(found, numbers.sequence.tolist(), strict=True):
            await work.items()
            original = each.message if each.message != own else 0
            rows.append((each.outcome, each.dispatched_us, each.attempts, original, *each.replaced_by))
        columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
        errors = [(place, each.error) for place, each in enumerate(found) if each.error is not None]
        reply: dict[str, Any] = {"outcome": pack_column(columns[0], U8)}
        reply |= {name: pack_column(column) for name, column in zip(_COLUMNS, columns[1:], strict=True)}
        connection.reply(encode_reply(request.id, reply | {"rejected": rejected_rows(errors)}))

    def _fields(self, found: FoundState, sequence: int, due_ms: int) -> dict[str, Any]:
        """The known fields of a row, which follow the receipt."""
        if found.error is not None:
            return error_to_map(found.error)
        known = {
            "subject": found.subject,
            "dispatched_us": found.dispatched_us,
            "attempts": found.attempts,
            "unanswered_elsewhere": found.unanswered_elsewhere,
            "broker_group": found.broker_group,
        }
        fields: dict[str, Any] = {"outcome": found.outcome.label} | {
            name: value for name, value in known.items() if value
        }
        if found.outcome != Outcome.UNKNOWN:
            fields["due_ms"] = due_ms
        if found.message and found.message != sequence:
            fields["original_receipt"] = format_receipt(self._server_id, due_ms, found.message)
        new_sequence, new_due_ms = found.replaced_by
        if new_sequence:
            fields["rescheduled_to"] = format_receipt(self._server_id, new_due_ms, new_sequence)
        return fields


def _times(found: FoundState) -> dict[str, int]:
    """When the message passed each stage, as far as it is known."""
    times = found.times
    delivered = found.outcome == Outcome.DELIVERED
    known = {
        "accepted_us": times.accepted_us,
        "loaded_us": times.loaded_us,
        "due_us": times.released_us,
        "queued_us": times.queued_us,
        "handed_off_us": times.dispatched_us,
        "delivered_us" if delivered else "settled_us": times.settled_us,
    }
    return {name: value for name, value in known.items() if value}


def _content(part: ContentsPart | None, place: int) -> dict[str, Any]:
    """The contents of a message, for its row; `body_left_out` if the reply has no room for it."""
    if part is None:
        return {}
    content = part.contents.get(place)
    if content is None:
        return {"body_left_out": True} if place in part.left_out else {}
    fields: dict[str, Any] = {
        "message_id": content.message_id,
        "expires_ms": content.expires_ms,
        "properties": msgpack.unpackb(content.properties) if content.properties else {},
        "body": content.body,
    }
    if content.tag:
        fields["tag"] = content.tag
    if content.order_key:
        fields["order_key"] = content.order_key.decode()
    return fields
