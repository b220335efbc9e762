"""The operation `pending`: how many messages wait, by the time at which they are due, or by subject. It adds up counters
and reads no file.

The files of a window count their rows. So the work grows with the windows that are not complete, never with the messages.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

import numpy as np

from delayserver.operations.access.access import Access
from delayserver.protocol.errors import NotReady
from delayserver.protocol.schema.pending import (
    CountBySubject,
    CountByTime,
    PendingBucket,
    PendingPage,
    PendingSubject,
    PendingSubjectsPage,
)
from delayserver.runtime.fair_turns import Work
from delayserver.state.counts.balance import Balance
from delayserver.state.files import Files
from delayserver.state.windows.windows import Windows
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64
from store.tables.names import Names

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

_UNITS_MS: Final = {"minute": MINUTE_MS, "hour": HOUR_MS}

SCANNED_MAX: Final = 65_536
"""Names compared for a client that may not see all: some 50 ms of work, in slices."""

NAMES_AT_ONCE: Final = 256
"""Names decoded and compared between two slices: some 200 µs."""

_WINDOWS_AT_ONCE: Final = 64
"""Windows added up between two slices: some 200 µs."""


class PendingBySubject:
    """Reads the counters of subjects."""

    def __init__(self, balance: Balance, names: Names) -> None:
        self._counts = balance.subjects
        self._names = names

    @property
    def is_counted(self) -> bool:
        """Whether the counters are known. After an upgrade or a crash the server may have to count them first."""
        return self._counts.is_counted

    async def page(self, asked: CountBySubject, work: Work, access: Access) -> PendingSubjectsPage:
        """The subjects behind the code `after` that have pending messages, in the order in which they became known. Those
        that are not open to the client are left out. Raises NotReady."""
        pending = self._require()[asked.after + 1 :]
        codes = np.flatnonzero(pending)
        chosen = codes[: asked.max]
        found = await self._told((chosen + asked.after + 1).tolist(), pending[chosen].tolist(), work)
        rows = [row for row in found if access.may(row.subject)]
        return PendingSubjectsPage(rows, int(chosen[-1]) + asked.after + 1 if len(codes) > asked.max else None)

    async def largest(self, count_max: int, work: Work, access: Access) -> dict[str, int]:
        """The subjects with the most pending messages that are open to the client, the most first; none until they are
        counted. For a client that may not see all, those among the `SCANNED_MAX` with the most."""
        if not self.is_counted:
            return {}
        pending = self._counts.pending()
        codes = np.flatnonzero(pending)
        most = count_max if access.everything else SCANNED_MAX
        if len(codes) > most:
            codes = codes[np.argpartition(pending[codes], -most)[-most:]]
        codes = codes[np.argsort(-pending[codes], kind="stable")]
        counts = pending[codes]
        found: dict[str, int] = {}
        for start in range(0, len(codes), NAMES_AT_ONCE):
            await work.items(NAMES_AT_ONCE // 4)
            some = slice(start, start + NAMES_AT_ONCE)
            told = zip(self._names.names_of(codes[some]), counts[some].tolist(), strict=True)
            found.update([(name, count) for name, count in told if access.may(name)])
            if len(found) >= count_max:
                break
        return dict(islice(found.items(), count_max))

    def _require(self) -> I64:
        if not self.is_counted:
            raise NotReady("the pending messages of each subject are being counted", retry_after_ms=1000)
        return self._counts.pending()

    async def _told(self, codes: list[int], counts: list[int], work: Work) -> list[PendingSubject]:
        found = []
        for code, count in zip(codes, counts, strict=True):
            await work.items()
            found.append(PendingSubject(self._names.name(code), count))
        return found


class PendingByTime:
    """Adds up the counters of windows and days."""

    def __init__(self, files: Files, windows: Windows, balance: Balance) -> None:
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._days = files.days
        self._book = windows.book
        self._drains = windows.drains
        self._balance = balance
        self.subjects = PendingBySubject(balance, files.names)

    async def by_time(self, asked: CountByTime, work: Work, _access: Access) -> PendingPage:
        """The first buckets with pending messages that begin in [from_ms, to_ms).

        A day that has one file, or is on its way to minutes, is one bucket. Each bucket was true in a step of this call."""
        book, buckets, next_ms = self._book, list[PendingBucket](), None
        from_ms, to_ms, unit_ms, count_max = asked.from_ms, asked.to_ms, _UNITS_MS[asked.by], asked.max
        if book.window_ms < unit_ms:  # otherwise a bucket begins where its window does
            from_ms, to_ms = _rounded_up(from_ms, unit_ms), _rounded_up(to_ms, unit_ms)
        days = deque(self._days_between(from_ms, to_ms))
        in_parts = {day.start_ms for day in self._days.draining()}
        position = from_ms
        while next_ms is None:
            starts = book.incomplete_between(position, to_ms, _WINDOWS_AT_ONCE)
            while days and next_ms is None and (not starts or days[0] <= starts[0]):
                next_ms = _append(buckets, PendingBucket(days[0], DAY_MS, await self._of_day(days[0], work)), count_max)
                days.popleft()
            if not starts or next_ms is not None:
                break
            await work.items(len(starts))
            for start in starts:
                if days and days[0] <= start:
                    break
                position = start + 1
                if day_of(start) in in_parts:
                    continue
                next_ms = _append(buckets, self._of_window(start, unit_ms), count_max)
                if next_ms is not None:
                    break
        return PendingPage(buckets, next_ms, max(self._balance.accepted - self._balance.placed, 0))

    def _of_window(self, start_ms: int, unit_ms: int) -> PendingBucket:
        width_ms = self._book.end(start_ms) - start_ms
        pending = self._book.pending(start_ms)
        if width_ms >= unit_ms:
            return PendingBucket(start_ms, width_ms, pending)
        return PendingBucket(start_ms - start_ms % unit_ms, unit_ms, pending)

    def _days_between(self, from_ms: int, to_ms: int) -> list[int]:
        """Starts of the days whose messages are counted in one bucket, but for those that are windows of the book."""
        fine_until_ms = self._days.fine_until_ms
        coarse = [day for day in self._schedule.days() if max(from_ms, fine_until_ms) <= day < to_ms]
        draining = [day.start_ms for day in self._days.draining() if from_ms <= day.start_ms < to_ms]
        return sorted({*coarse, *draining})

    async def _of_day(self, start_ms: int, work: Work) -> int:
        """Messages of a coarse or a draining day. While it drains, its rows and outcomes lie in two tiers."""
        rows = self._schedule.rows(ScheduleKey(start_ms, ScheduleSource.DAY))
        ended = self._dispatch.durable_rows(DispatchKey(start_ms, True))
        if not self._days.is_draining(start_ms):
            return max(rows - ended, 0)
        ended -= self._drains.moved.get(start_ms, 0)
        step = _WINDOWS_AT_ONCE * self._book.window_ms
        for first in range(start_ms, start_ms + DAY_MS, step):
            await work.items(_WINDOWS_AT_ONCE)
            for minute in range(first, min(first + step, start_ms + DAY_MS), self._book.window_ms):
                rows += self._schedule.rows(ScheduleKey(minute, ScheduleSource.DIRECT))
                ended += self._dispatch.durable_rows(DispatchKey(minute, False))
        return max(rows - ended, 0)


def _append(buckets: list[PendingBucket], bucket: PendingBucket, count_max: int) -> int | None:
    """Add a bucket, or add to the last one. Returns its start where there is no room for it."""
    if not bucket.pending:
        return None
    last = buckets[-1] if buckets else None
    if last is not None and last.start_ms == bucket.start_ms:
        buckets[-1] = PendingBucket(last.start_ms, last.width_ms, last.pending + bucket.pending)
        return None
    if len(buckets) == count_max:
        return bucket.start_ms
    buckets.append(bucket)
    return None


def _rounded_up(time_ms: int, unit_ms: int) -> int:
    """The first multiple of `unit_ms` that is not before a time."""
    return -(-time_ms // unit_ms) * unit_ms
