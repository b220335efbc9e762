"""`pending`."""

from __future__ import annotations

from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.front.handlers.described import described, for_client
from delayserver.operations.figures.pending import PendingByTime
from delayserver.operations.listing.pending_messages import PendingMessages
from delayserver.protocol.arguments import invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.schema.pending import CountBySubject, CountByTime, ListMessages

_UNITS: Final = ("minute", "hour")


class PendingHandlers:
    """Requests for the counts of pending messages, and for the messages."""

    def __init__(self, pending: PendingByTime, messages: PendingMessages) -> None:
        self._by_time = described({CountByTime: for_client(pending.by_time)})
        self._by_subject = described({CountBySubject: for_client(pending.subjects.page)})
        self._by_message = described({ListMessages: for_client(messages.page)})

    async def pending(self, connection: Connection, request: RequestFrame) -> dict[str, Any] | None:
        """A page of counts, by time or by subject, or of messages."""
        arguments = request.arguments
        by = arguments.get("by")
        if by == "subject":
            for name in ("from_ms", "to_ms"):
                if arguments.get(name) is not None:
                    raise InvalidArgument(f"{name} does not go with by: subject, which counts all times together")
            return await self._by_subject(connection, request)
        if by == "message":
            return await self._by_message(connection, request)
        if by not in _UNITS:
            raise invalid("by", '"minute", "hour", "subject" or "message"', by)
        return await self._by_time(connection, request)
