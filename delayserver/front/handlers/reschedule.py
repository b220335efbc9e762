"""`reschedule` by items or in columns."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import GivenMessages, put_name, read_due, rejected_rows
from delayserver.operations.access.access import Access
from delayserver.operations.messages.named_messages import GivenItems
from delayserver.operations.messages.reschedule import Change, GivenMoves, Reschedule, Rescheduled
from delayserver.protocol.arguments import one_form
from delayserver.protocol.columns import pack_column
from delayserver.protocol.errors import InvalidArgument, error_to_map
from delayserver.protocol.frames import RequestFrame, RowsReply
from delayserver.protocol.outcomes import OUTCOME_LABELS
from delayserver.protocol.receipts import format_receipt, receipt_and_id
from delayserver.runtime.fair_turns import Work


class RescheduleHandlers:
    """Requests that move messages."""

    def __init__(self, reschedule: Reschedule, reader: GivenMessages, server_id: str) -> None:
        self._reschedule = reschedule
        self._reader = reader
        self._server_id = server_id

    async def reschedule(self, connection: Connection, request: RequestFrame) -> dict[str, Any] | None:
        """Reschedules messages. The reply gives the new ones in the form in which the request names the old ones."""
        arguments, work = request.arguments, connection.work()
        if one_form(arguments, ("items", "count")) == "count":
            return await self._columns(arguments, work, connection.access)
        items = self._reader.items(arguments, "items")
        done = await self._reschedule.by_name(await _given_moves(items, work), work, connection.access)
        await connection.room()
        results = RowsReply(request.id)
        for place in range(len(items)):
            await work.items()
            error = done.errors.get(place)
            results.add(error_to_map(error) if error is not None else self._row(done, place))
        connection.when_room(lambda: connection.reply(results.frame()))
        return None

    async def _columns(self, arguments: dict[str, Any], work: Work, access: Access) -> dict[str, Any]:
        numbers = self._reader.numbers(arguments, "message_due_ms")
        due = read_due(arguments, len(numbers.sequence))
        done = await self._reschedule.by_number(*numbers, due, work, access)
        return {
            "outcome": pack_column(done.moved.outcome),
            "new_sequence": pack_column(done.moved.new_sequence),
            "due_ms": pack_column(done.moves.new_due_ms),
            "rejected": rejected_rows(sorted(done.errors.items())),
        }

    def _row(self, done: Rescheduled, place: int) -> dict[str, Any]:
        moves, moved = done.moves, done.moved
        sequence, old_due_ms = done.closed.get(place, int(moves.sequence[place])), int(moves.due_ms[place])
        row: dict[str, Any] = {"outcome": OUTCOME_LABELS[int(moved.outcome[place])]}
        if sequence or old_due_ms:  # not where nothing was found by an id alone
            row = {"receipt": format_receipt(self._server_id, old_due_ms, sequence)} | row
        new, due_ms = int(moved.new_sequence[place]), int(moves.new_due_ms[place])
        if new:
            receipt, derived_id = receipt_and_id(self._server_id, due_ms, new)
            own_id = moved.message_ids.get(place)
            row |= {
                "new_receipt": receipt,
                "message_id": own_id.decode() if own_id else derived_id,
                "due_ms": due_ms,
                "sequence": new,
            }
        return row


async def _given_moves(items: list[Any], work: Work) -> GivenMoves:
    given = GivenMoves(GivenItems(len(items)))
    messages = given.messages
    for place, item in enumerate(items):
        await work.items()
        if type(item) is not dict:
            messages.errors[place] = InvalidArgument("an item must be a map")
            continue
        if item.get("receipt") is None:
            put_name(messages, place, item, "message_due_ms")
        elif item.get("message_id") is not None:
            messages.errors[place] = InvalidArgument("name a message by receipt or by message_id, not by both")
        else:
            messages.receipts[place] = item["receipt"]
        get = item.get
        given.changes[place] = Change(get("due_ms"), get("delay_ms"), get("body"), get("properties"), get("expires_ms"))
    return given
