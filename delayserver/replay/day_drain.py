"""Drains a sealed day into its minutes, some rows at a time, between rounds of the replayer.

A draining day becomes minute files, not one file sorted by due time. Sorting would write every body once more, and
minutes are loaded and retired one by one. Outcomes move with their messages, so a message and its outcome lie in one
tier.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from delayserver.replay.day_end import DayEnd
from delayserver.replay.drained_rows import DrainedRows
from delayserver.runtime.runtime import Runtime
from delayserver.state.windows.drains import Drains
from store.errors import CorruptionError, DiskError, FormatError, UnreadableError
from store.failed_reads import PATIENCE_MS, FailedReads
from store.logs.due_windows import window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import MessageBatch
from store.records.scan import Damage

# Rows drained between two rounds of replay: about 30 ms, so that fresh messages are hardly held up.
DRAIN_ROWS = 1 << 15
# And of so many minutes: after a downtime each row of a day is of another one, and each minute is a file to make.
DRAIN_FILES = 16
# A step drains so many of these pieces, as long as it takes no longer: fresh messages are replayed between two steps.
PIECES_MAX = 8
STEP_US_MAX = 20_000
# A step of the clock or a resume makes a day near at once, and what is overdue then is to leave within a second. A day that
# the disk cannot read is read again then too.
CHECK_INTERVAL_MS = 500
# Rows of a day that the disk cannot read are passed over when they have failed for a minute and the day starts within this
# time. Before that the day waits for the disk: the file of a minute takes no rows before its last one.
LAST_WAIT_MS = 600_000
DRAIN_TRIES = PATIENCE_MS // CHECK_INTERVAL_MS
# Days whose failed reads are counted.
FAILED_DAYS_MAX = 64


class DayDrain:
    """The file of a day → pieces of few minutes."""

    def __init__(
        self,
        schedule: ScheduleLog,
        drains: Drains,
        rows: DrainedRows,
        end: DayEnd,
        window_ms: int,
        runtime: Runtime,
    ) -> None:
        self._schedule = schedule
        self._drains = drains
        self._rows = rows
        self._end = end
        self._window_ms = window_ms
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._damage = runtime.damage
        # The rows of a day that are read and not drained yet, the day, and the position behind them.
        self._pieces: deque[MessageBatch] = deque()
        self._slice_of = 0
        self._slice_end = 0
        self._failed_reads = FailedReads[int](FAILED_DAYS_MAX)

    async def step(self, start_ms: int) -> None:
        """Drain some pieces of a day, and end it when none is left. A day that cannot be read is held back.

        Raises DiskFullError; the step may be taken again then."""
        if not await self._fill(start_ms):
            return
        if not self._pieces:
            await self._end.reach(start_ms)
            return
        began_us = self._clock.monotonic_us()
        for _ in range(PIECES_MAX):
            await self._rows.add(self._pieces[0])
            self._pieces.popleft()
            if not self._pieces:
                self._drains.positions[start_ms] = self._slice_end
                break
            if self._clock.monotonic_us() - began_us > STEP_US_MAX:
                break

    async def _fill(self, start_ms: int) -> bool:
        """Reads the next pieces of a day where none is left, True; False where they cannot be read."""
        if self._slice_of != start_ms:
            self._slice_of, self._pieces = start_ms, deque()
        if self._pieces:
            return True
        key = ScheduleKey(start_ms, ScheduleSource.DAY)
        read = partial(self._read, key, self._drains.positions.get(start_ms, 0))
        try:
            whole, self._slice_end = await self._workers.run(read)
        except (CorruptionError, FormatError, DiskError) as error:
            self._drains.hold(start_ms, refused=isinstance(error, (DiskError, UnreadableError)))
            self._damage.report(error)
            return False
        if whole is not None:
            self._pieces += by_windows(whole, self._window_ms, DRAIN_FILES)
        return True

    def _read(self, key: ScheduleKey, position: int) -> tuple[MessageBatch | None, int]:
        """The next rows of a day, around damage, and the position behind them. Raises UnreadableError where the disk may
        read some of them soon."""
        batches = []
        rows = 0
        if key in self._schedule:
            damages: list[Damage] = []
            end = self._schedule.end(key)
            for header, batch in self._schedule.batches(key, position or None, end, damages=damages):
                batches.append(batch)
                rows += len(batch)
                position = header.end
                if rows >= DRAIN_ROWS:
                    break
            for damage in damages:
                error = damage.error(self._schedule.path(key))
                if damage.errno and self._waits_for_disk(key.start_ms):
                    raise error
                self._damage.report(error)
        return (MessageBatch.concatenate(batches) if batches else None), position

    def _waits_for_disk(self, start_ms: int) -> bool:
        """Whether a day is read once more before rows that the disk cannot read are passed over."""
        failed = self._failed_reads.count(start_ms)
        return failed < DRAIN_TRIES or self._clock.now_ms() < start_ms - LAST_WAIT_MS


def by_windows(batch: MessageBatch, window_ms: int, windows_max: int) -> list[MessageBatch]:
    """The rows of a batch (in sequence order) in parts of at most `windows_max` windows, the earliest first, each part in
    sequence order."""
    starts = window_starts(batch.due_ms, window_ms)
    distinct = np.unique(starts)
    if len(distinct) <= windows_max:
        return [batch]
    part = np.searchsorted(distinct, starts) // windows_max
    return [batch.take(np.flatnonzero(part == place)) for place in range(int(part.max()) + 1)]
