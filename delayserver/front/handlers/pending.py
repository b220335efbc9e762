"""`pending`."""

from __future__ import annotations

from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.front.handlers.described import described, for_client
from delayserver.operations.figures.pending import PendingByTime
from delayserver.protocol.arguments import invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.schema.pending import CountBySubject, CountByTime

_UNITS: Final = ("minute", "hour")


class PendingHandlers:
    """Requests for the counts of pending messages."""

    def __init__(self, pending: PendingByTime) -> None:
        self._by_time = described({CountByTime: for_client(pending.by_time)})
        self._by_subject = described({CountBySubject: for_client(pending.subjects.page)})

    async def pending(self, connection: Connection, request: RequestFrame) -> dict[str, Any] | None:
        """A page of counts, by time or by subject."""
        arguments = request.arguments
        by = arguments.get("by")
        if by == "subject":
            for name in ("from_ms", "to_ms"):
                if arguments.get(name) is not None:
                    raise InvalidArgument(f"{name} does not go with by: subject, which counts all times together")
            return await self._by_subject(connection, request)
        if by not in _UNITS:
            raise invalid("by", '"minute", "hour" or "subject"', by)
        return await self._by_time(connection, request)
