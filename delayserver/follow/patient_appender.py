"""Appends what a member has read to message_log. A full disk is waited for.

Nothing is applied meanwhile, so a primary beats no more, and a standby does not claim: another member is first.
"""

from __future__ import annotations

from collections.abc import Sequence

from delayserver.runtime.clock import Clock
from delayserver.runtime.log_appender import AppendedRecords, LogAppender
from delayserver.runtime.room_wait import RoomWait
from store.errors import DiskFullError
from store.records.segment import Appendable


class PatientAppender:
    """A `LogAppender` whose `append` ends with room."""

    def __init__(self, appender: LogAppender, room: RoomWait, clock: Clock) -> None:
        self._appender = appender
        self._room = room
        self._clock = clock

    def takes_now(self, size_bytes: int) -> bool:
        """As `LogAppender.takes_now`."""
        return not self._room.waiting and self._appender.takes_now(size_bytes)

    def append_now(self, records: Sequence[Appendable], size_bytes: int) -> AppendedRecords | None:
        """As `LogAppender.append_now`; None without room."""
        try:
            return self._appender.append_now(records, size_bytes)
        except DiskFullError:
            return None

    async def append(self, records: Sequence[Appendable], size_bytes: int) -> AppendedRecords:
        """As `LogAppender.append`, when there is room. Raises StoreError, SyncFailedError."""
        while True:
            try:
                appended = await self._appender.append(records, size_bytes)
            except DiskFullError as error:
                self._room.full(size_bytes, error)
                await self._clock.sleep_ms(self._room.pause_ms)
            else:
                self._room.resume()
                return appended
