"""`cancel` by receipts, by ids or in columns."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import GivenMessages
from delayserver.front.handlers.results import reply_results
from delayserver.operations.messages.cancel import Cancel
from delayserver.protocol.arguments import one_form
from delayserver.protocol.cancel_reply import encode_cancel_reply
from delayserver.protocol.columns import pack_column
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.outcomes import OUTCOME_LABELS


class CancelHandlers:
    """Requests that cancel messages."""

    def __init__(self, cancel: Cancel, reader: GivenMessages, server_id: str) -> None:
        self._cancel = cancel
        self._reader = reader
        self._server_id = server_id

    async def cancel(self, connection: Connection, request: RequestFrame) -> dict[str, Any] | None:
        """Cancels messages. The reply has the form in which the request names them."""
        arguments = request.arguments
        form = one_form(arguments, ("receipts", "messages", "count"))
        if form == "count":
            numbers = self._reader.numbers(arguments, "due_ms")
            return {"outcome": pack_column(await self._cancel.by_number(*numbers, connection.access))}
        work = connection.work()
        given = await self._reader.given(arguments, form, work)
        cancelled = await self._cancel.by_name(given, work, connection.access)
        named, outcome = cancelled.named, cancelled.outcome
        if not named.errors and named.receipts is not None:
            connection.reply(encode_cancel_reply(request.id, named.receipts, outcome))
            return None
        fields = [{"outcome": OUTCOME_LABELS[code]} for code in outcome.tolist()]
        await reply_results(connection, request.id, self._server_id, named, fields, work)
        return None
