"""`pending`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.operations.figures.pending import (
    BUCKETS_AT_ONCE_MAX,
    HOUR_MS,
    MINUTE_MS,
    SUBJECTS_AT_ONCE_MAX,
    Pending,
)
from delayserver.protocol.arguments import integer, invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import Request

# Times in milliseconds since 1970 stay below it, so that microseconds fit into 63 bits.
TIME_MS_MAX: Final = 1 << 53
_CODE_MAX: Final = 1 << 32
_UNITS_MS: Final = {"minute": MINUTE_MS, "hour": HOUR_MS}


class PendingHandlers:
    """Requests for the counts of pending messages."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    async def pending(self, connection: Connection, request: Request) -> dict[str, Any]:
        """A page of counts."""
        arguments = request.arguments
        if arguments.get("by") == "subject":
            return await self._by_subject(connection, arguments)
        unit_ms = _UNITS_MS.get(by) if type(by := arguments.get("by")) is str else None
        if unit_ms is None:
            raise invalid("by", '"minute", "hour" or "subject"', by)
        page = await self._pending.by_time(
            integer(arguments, "from_ms", 0, TIME_MS_MAX, 0),
            integer(arguments, "to_ms", 0, TIME_MS_MAX, TIME_MS_MAX),
            unit_ms,
            integer(arguments, "max", 1, BUCKETS_AT_ONCE_MAX, BUCKETS_AT_ONCE_MAX),
            connection.work(),
        )
        return asdict(page)

    async def _by_subject(self, connection: Connection, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in ("from_ms", "to_ms"):
            if arguments.get(name) is not None:
                raise InvalidArgument(f"{name} does not go with by: subject, which counts all times together")
        work = connection.work()
        page = await self._pending.subjects.page(
            integer(arguments, "after", 0, _CODE_MAX, 0),
            integer(arguments, "max", 1, SUBJECTS_AT_ONCE_MAX, SUBJECTS_AT_ONCE_MAX),
            work,
        )
        rows = []
        for row in page.subjects:
            await work.items()
            if connection.access.may(row.subject):
                rows.append({"subject": row.subject, "pending": row.pending})
        return {"subjects": rows, "next": page.next}
