"""Seals days that come near and drains their coarse files into minutes, between rounds of the replayer.

Runs in the replayer's task, so it is the only writer of schedule_log too. Outcomes that messages got while they lay in
the coarse file (cancels, suppressed copies) move to the minutes when the day is drained; until then the loader and cancel
ask here for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.deduplication import Deduplication
from delayserver.loader import suppressed_outcomes
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.outcomes import Outcome
from delayserver.replayer import Replayer, Round
from delayserver.settings import StorageSettings
from store.batches import MessageBatch, OutcomeBatch
from store.days import DayTable, SealedDay
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, DiskFullError
from store.filesystem import FileSystem
from store.outcome_index import OutcomeIndex
from store.scan import Damage
from store.schedule_index import index_rows
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.windows import DAY_MS, day_of, window_starts

# Rows drained between two rounds of replay: about 30 ms, so that fresh messages are hardly held up.
DRAIN_ROWS = 1 << 15
# A step of the clock or a resume makes a day near at once, and what is overdue then is to leave within a second.
CHECK_INTERVAL_MS = 500


class DayTier:
    """Coarse days on their way to minutes."""

    def __init__(
        self,
        days: DayTable,
        schedule: ScheduleLog,
        dispatch: DispatchLog,
        recorder: OutcomeRecorder,
        replayer: Replayer,
        deduplication: Deduplication,
        fs: FileSystem,
        settings: StorageSettings,
        clock: Clock,
    ) -> None:
        self._days = days
        self._schedule = schedule
        self._dispatch = dispatch
        self._recorder = recorder
        self._replayer = replayer
        self._deduplication = deduplication
        self._inline = fs.inline
        self._settings = settings
        self._clock = clock
        self._outcomes: dict[int, OutcomeIndex] = {}
        self.positions: dict[int, int] = {}
        # Days with damage stay draining, their files kept: others go on, and so does what was drained of them.
        self._held: set[int] = set()
        self._drained_again: set[int] = set()
        # Days whose coarse outcomes cannot be read, up to the sequence at which they were sealed.
        self._unknown: dict[int, int] = {}
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        self.publish_drained: Callable[[Round, dict[int, OutcomeIndex | None]], None] = lambda _round, _decided: None
        self.is_taken: Callable[[int], bool] = lambda _start_ms: False
        self.moved_already = np.zeros(16, dtype=np.int64)

    def fine_until_ms(self) -> int:
        """Days that start before this are to be fine, by the clock."""
        return day_of(self._clock.now_ms() + self._settings.fine_horizon_ms) + DAY_MS

    def open(self) -> None:
        """After a start: read the outcomes of days in between, and count those a crash left in both places. Where it
        came after the day was drained and before its files were gone, remove them: their rows would count twice."""
        for key in [key for key in self._schedule.keys() if key.source == Source.DAY]:
            if self._days.is_drained(key.start_ms):
                self._remove_day(key.start_ms)
        for left in [key for key in self._dispatch.keys() if key.coarse and self._days.is_drained(key.start_ms)]:
            self._remove_day(left.start_ms)
        for day in self._days.draining():
            written = self._take_outcomes(day)
            for start in np.unique(window_starts(written.due_ms, self._settings.window_ms)).tolist():
                fine = self._fine_outcomes(start)
                both = np.isin(written.sequence, fine.sequence)
                self.moved_already += np.bincount(written.outcome[both], minlength=16)

    def _coarse_outcomes(self, start_ms: int) -> OutcomeBatch:
        return self._dispatch.outcomes(DispatchKey(start_ms, True))

    def _fine_outcomes(self, start_ms: int) -> OutcomeBatch:
        try:
            return self._dispatch.outcomes(DispatchKey(start_ms, False))
        except CorruptionError as error:
            self.on_corruption(error)
            return OutcomeBatch.filled(0)

    def _take_outcomes(self, day: SealedDay) -> OutcomeBatch:
        """Remember what messages of a sealed day got; where that is damaged, the day is held back: somebody may have been
        told that one of them is cancelled."""
        try:
            written = self._coarse_outcomes(day.start_ms)
        except CorruptionError as error:
            self._unknown[day.start_ms] = day.sequence
            self._hold(day.start_ms, error)
            return OutcomeBatch.filled(0)
        self._outcomes[day.start_ms] = _index_of(written)
        return written

    def _hold(self, start_ms: int, error: CorruptionError) -> None:
        self._held.add(start_ms)
        self.on_corruption(error)

    def _drainable(self) -> list[SealedDay]:
        return [day for day in self._days.draining() if day.start_ms not in self._held]

    def outcomes(self, start_ms: int, sequences: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Outcome codes u8[n] that messages of a draining day got while they were coarse; 0 for none, `too_late` where
        damage hides them."""
        sealed_at = self._unknown.get(day_of(start_ms))
        if sealed_at is not None:
            return np.where(sequences <= sealed_at, int(Outcome.TOO_LATE), 0).astype(np.uint8)
        index = self._outcomes.get(day_of(start_ms))
        return np.zeros(len(sequences), dtype=np.uint8) if index is None else index.lookup(sequences)

    def not_done(self, start_ms: int, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True where a message has no such outcome, bool[n]."""
        undone: NDArray[np.bool_] = self.outcomes(start_ms, sequences) == 0
        return undone

    async def run(self) -> None:
        """Look now and then whether a day comes near; cancelled from outside."""
        while True:
            if self._drainable() or self.fine_until_ms() > self._days.fine_until_ms:
                self._replayer.between_rounds = self.step
                self._replayer.wake()
            await self._clock.sleep_ms(CHECK_INTERVAL_MS)

    async def step(self) -> None:
        """Seal what is near, drain a slice of the earliest sealed day; unhooks itself when nothing is left."""
        try:
            if self.fine_until_ms() > self._days.fine_until_ms:
                await self._seal()
            draining = self._drainable()
            if draining:
                await self._drain(draining[0].start_ms)
            else:
                self._replayer.between_rounds = None
        except DiskFullError:
            # Sealing and draining wait for room; each of their steps can be made again.
            await self._clock.sleep_ms(200)

    async def _seal(self) -> None:
        # What was decided so far belongs to the coarse files; nothing coarse is decided outside the replayer's task.
        await self._recorder.flush()
        starts = [key.start_ms for key in self._schedule.keys() if key.source == Source.DAY]
        self._days.seal(self.fine_until_ms(), self._replayer.replayed_sequence, starts)
        for day in self._days.draining():
            if day.start_ms not in self._outcomes and day.start_ms not in self._unknown:
                self._take_outcomes(day)

    async def _drain(self, start_ms: int) -> None:
        key = ScheduleKey(start_ms, Source.DAY)
        position = self.positions.get(start_ms, 0)
        read = partial(self._read, key, position)
        try:
            batch, position = read() if self._inline else await trio.to_thread.run_sync(read)
        except CorruptionError as error:
            self._hold(start_ms, error)
            return
        if batch is not None:
            done = await self._replayer.place_drained(batch)
            async with AsyncExitStack() as stack:
                decided: dict[int, OutcomeIndex | None] = {}
                for start in {placed.key.start_ms for placed in done.placed if self.is_taken(placed.key.start_ms)}:
                    decided[start] = None
                    with suppress(CorruptionError):  # told; what may be cancelled is not handed over
                        decided[start] = await stack.enter_async_context(
                            self._recorder.pinned(DispatchKey(start, False))
                        )
                self.publish_drained(done, decided)
            await self._record_lost_copies(done)
            self.positions[start_ms] = position
        elif self._all_drained(key):
            await self._finish(start_ms)

    def _all_drained(self, key: ScheduleKey) -> bool:
        """Whether the minutes have every row of the day. If not, once more from the beginning: damage is met again, and
        reported, and what a minute lost is put there once more."""
        drained = sum([self._schedule.rows(minute) for minute in self._minutes(key.start_ms)])
        missing = self._schedule.rows(key) - drained
        if missing <= 0:
            return True
        if key.start_ms in self._drained_again:
            detail = f"{missing} messages of the day did not reach their minutes; the file is kept"
            self._hold(key.start_ms, CorruptionError(self._schedule.path(key), 0, detail))
        self._drained_again.add(key.start_ms)
        self.positions.pop(key.start_ms, None)
        return False

    def _minutes(self, start_ms: int) -> list[ScheduleKey]:
        keys = self._schedule.keys_between(start_ms, start_ms + DAY_MS)
        return [key for key in keys if key.source == Source.FROM_DAY]

    async def _record_lost_copies(self, done: Round) -> None:
        """A crash can lose the outcome row of a suppressed copy; a window that is loaded already does not look again."""
        for placed in done.placed:
            copies = np.flatnonzero(placed.batch.duplicate_of)
            if not len(copies):
                continue
            rows = index_rows(placed.batch, placed.appended.blob_start).take(copies)
            with suppress(CorruptionError):  # reported; as long as the outcomes cannot be read, none is added
                async with self._recorder.pinned(DispatchKey(placed.key.start_ms, False)) as index:
                    lost = np.flatnonzero(
                        index.missing(rows.sequence) & self.not_done(placed.key.start_ms, rows.sequence)
                    )
                    self._recorder.record(suppressed_outcomes(rows.take(lost), self._clock.now_us()))

    def _read(self, key: ScheduleKey, position: int) -> tuple[MessageBatch | None, int]:
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
                self.on_corruption(CorruptionError(self._schedule.path(key), damage.start, damage.detail))
        return (MessageBatch.concatenate(batches) if batches else None), position

    async def _finish(self, start_ms: int) -> None:
        """All rows are in minutes: move the outcomes, sync, and only then say so and remove the day's files."""
        try:
            await self._move_outcomes(start_ms)
        except CorruptionError as error:
            self._hold(start_ms, error)
            return
        sync = partial(self._schedule.sync, self._minutes(start_ms))
        if self._inline:
            sync()
        else:
            await trio.to_thread.run_sync(sync)
        self._days.drained(start_ms)
        self._outcomes.pop(start_ms, None)
        self.positions.pop(start_ms, None)
        self._deduplication.forget(ScheduleKey(start_ms, Source.DAY))
        self._remove_day(start_ms)

    def _remove_day(self, start_ms: int) -> None:
        if ScheduleKey(start_ms, Source.DAY) in self._schedule:
            self._schedule.remove(ScheduleKey(start_ms, Source.DAY))
        if DispatchKey(start_ms, True) in self._dispatch:
            self._dispatch.remove(DispatchKey(start_ms, True))
            self._recorder.forget(DispatchKey(start_ms, True))

    async def _move_outcomes(self, start_ms: int) -> None:
        written = self._coarse_outcomes(start_ms)
        starts = window_starts(written.due_ms, self._settings.window_ms)
        for start in np.unique(starts).tolist():
            mine = written.take(np.flatnonzero(starts == start))
            async with self._recorder.pinned(DispatchKey(start, False)) as index:
                self._recorder.record(mine.take(np.flatnonzero(index.missing(mine.sequence))), moved=True)
        await self._recorder.flush()


def _index_of(written: OutcomeBatch) -> OutcomeIndex:
    index = OutcomeIndex()
    if len(written):
        index.add(written.sequence, written.outcome)
    return index
