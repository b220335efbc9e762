"""Makes records durable at the end of a log: on the event loop while that is quick, in a thread otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from delayserver.runtime.clock import Clock
from delayserver.runtime.disk_pace import DiskPace
from delayserver.runtime.name_look import NameLook
from delayserver.runtime.workers import Workers
from store.logs.message_log import LogEntry, MessageLog
from store.records.segment import Appendable


class AppendedRecords(NamedTuple):
    """Durable records, and when their write began and ended on the monotonic clock."""

    entries: list[LogEntry]
    started_us: int
    ended_us: int


class LogAppender:
    """Appends and syncs. The one writer of its log, one call at a time."""

    def __init__(
        self, log: MessageLog, inline_bytes_max: int, clock: Clock, workers: Workers, *, assumed: bool
    ) -> None:
        """Groups of at most `inline_bytes_max` may be synced on the event loop. `assumed`: the page cache counts as
        durable."""
        self._log = log
        self._assumed = assumed
        self._inline_bytes_max = inline_bytes_max
        self._clock = clock
        self._workers = workers
        self._pace = DiskPace()
        self._name = NameLook(log.require_name)
        self.groups = 0
        self.sync_us_max = 0

    def takes_now(self, size_bytes: int) -> bool:
        """Whether the event loop may wait for the sync: the group is small and the disk quick."""
        return size_bytes <= self._inline_bytes_max and self._pace.quick

    def append_now(self, records: Sequence[Appendable], size_bytes: int) -> AppendedRecords:
        """Appends all or none, in this step. Raises DiskFullError (nothing was appended), StoreError, SyncFailedError."""
        return self._measured(self._append(records), size_bytes)

    async def append(self, records: Sequence[Appendable], size_bytes: int) -> AppendedRecords:
        """As `append_now`, in a thread."""
        appended = await self._workers.run(partial(self._append, records))
        return self._measured(appended, size_bytes)

    def _append(self, records: Sequence[Appendable]) -> AppendedRecords:
        started_us = self._clock.monotonic_us()
        entries = self._log.append_assumed(records) if self._assumed else self._log.append_durably(records)
        ended_us = self._clock.monotonic_us()
        self._name.require(ended_us)
        return AppendedRecords(entries, started_us, ended_us)

    def _measured(self, appended: AppendedRecords, size_bytes: int) -> AppendedRecords:
        took_us = appended.ended_us - appended.started_us
        self.groups += 1
        self.sync_us_max = max(self.sync_us_max, took_us)
        if size_bytes <= self._inline_bytes_max:
            self._pace.add_sync(took_us)
        return appended
