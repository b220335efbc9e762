"""Seals days that come near and drains their coarse files into minutes, between rounds of the replayer.

A day that is wholly overdue when its turn comes is not drained, if it is small: it stays whole. The loader reads its file as
that of one window, since after a downtime 1,440 files for each day would cost more than its messages.

Runs in the replayer's task, so it is the only writer of schedule_log too. Outcomes that messages got while they lay in
the coarse file (cancels, suppressed copies) move to the minutes when the day is drained; until then the loader and cancel
ask here for them.

A draining day becomes minute files, not one file sorted by due time. Sorting would write every body once more, and
minutes are loaded and retired one by one. Outcomes move with their messages, so a message and its outcome lie in one
tier.

A whole day costs two files, not up to 2,880, for all its messages and outcomes, later ones too. The `DayTable` says
so before anything leaves. A day of which a load has taken a minute is split all the same. A whole day that a wrong
clock left in the future is loaded when it begins.
"""

from __future__ import annotations

from collections import deque
from contextlib import AsyncExitStack, suppress
from functools import partial

import numpy as np
import trio

from delayserver.config.settings import StorageSettings
from delayserver.replay.rounds import Rounds
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.replay_round import Round
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError, DiskFullError, FormatError, UnreadableError
from store.failed_reads import PATIENCE_MS, FailedReads
from store.indexes.outcome_index import OutcomeIndex
from store.indexes.schedule_index import index_rows
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import MessageBatch, OutcomeBatch
from store.records.scan import Damage
from store.tables.days import SealedDay

# Rows drained between two rounds of replay: about 30 ms, so that fresh messages are hardly held up.
DRAIN_ROWS = 1 << 15
# And of so many minutes: after a downtime each row of a day is of another one, and each minute is a file to make.
DRAIN_FILES = 16
# A step drains so many of these pieces, as long as it takes no longer: fresh messages are replayed between two steps.
PIECES_MAX = 8
STEP_US_MAX = 20_000
# A day that is overdue as a whole, with at most this many messages, stays in one file. A larger one moves to minutes: they
# cost less than their messages, and a lookup reads less.
WHOLE_ROWS_MAX = 1 << 17
# A step of the clock or a resume makes a day near at once, and what is overdue then is to leave within a second.
CHECK_INTERVAL_MS = 500
# Rows of a day that the disk cannot read are passed over when they have failed for a minute and the day starts within this
# time. Before that the day waits for the disk: the file of a minute takes no rows before its last one.
LAST_WAIT_MS = 600_000
DRAIN_TRIES = PATIENCE_MS // CHECK_INTERVAL_MS
# Days whose failed reads are counted.
FAILED_DAYS_MAX = 64


class DayTier:
    """Coarse days on their way to minutes."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        decided: Decided,
        rounds: Rounds,
        queue: LogQueue,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        """A ring of `queue.arrived` wakes the replayer, which takes the steps."""
        self._days = files.days
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._book = windows.book
        self._cursors = windows.cursors
        self._retired = windows.retired
        self._drains = windows.drains
        self._decided = decided
        self._overlays = decided.overlays
        self._placing = rounds.placing
        self._memory = rounds.memory
        self._arrived = queue.arrived
        # Whether the replayer is to take a step of this between its rounds.
        self.is_due = False
        self._positions = queue.positions
        self._workers = runtime.workers
        self._settings = settings
        self._clock = runtime.clock
        # The rows of a day that are read and not drained yet, the day, and the position behind them.
        self._pieces: deque[MessageBatch] = deque()
        self._slice_of = 0
        self._slice_end = 0
        self._drained_again: set[int] = set()
        # Days whose outcomes the disk refused to give at their sealing, and those whose files it refused since; both are
        # asked for again.
        self._refused: set[int] = set()
        self._paused: set[int] = set()
        self._failed_reads = FailedReads[int](FAILED_DAYS_MAX)
        self._damage = runtime.damage
        self.moved_already = np.zeros(16, dtype=np.int64)

    def fine_until_ms(self) -> int:
        """Days that start before this are to be fine, by the clock."""
        return day_of(self._clock.now_ms() + self._settings.fine_horizon_ms) + DAY_MS

    def open(self, *, patient: bool) -> None:
        """After a start: read the outcomes of days in between, and count those a crash left in both places. Where it
        came after the day was drained and before its files were gone, remove them: their rows would count twice.

        With `patient` raises UnreadableError where the disk cannot read outcomes; without, those of there count twice."""
        for key in [key for key in self._schedule.keys() if key.source == ScheduleSource.DAY]:
            if self._days.is_drained(key.start_ms):
                self._remove_day(key.start_ms)
        for left in [key for key in self._dispatch.keys() if key.coarse and self._days.is_drained(key.start_ms)]:
            self._remove_day(left.start_ms)
        for day in self._days.draining():
            written = self._take_outcomes(day, patient=patient)
            for start in np.unique(window_starts(written.due_ms, self._settings.window_ms)).tolist():
                fine = self._fine_outcomes(start, patient=patient)
                both = np.isin(written.sequence, fine.sequence)
                self.moved_already += np.bincount(written.outcome[both], minlength=16)
                moved = int(np.count_nonzero(both))
                self._drains.moved[day.start_ms] = self._drains.moved.get(day.start_ms, 0) + moved

    def outcomes_are_back(self, start_ms: int) -> None:
        """The outcomes that the file of a day had lost are in the logs again: the day is held back no more."""
        self._overlays.show(start_ms)
        self._drains.free(start_ms)

    def _outcomes(self, key: DispatchKey) -> OutcomeBatch:
        """Raises CorruptionError where the file is damaged, or of another server."""
        try:
            return self._dispatch.outcomes(key)
        except FormatError as error:
            raise error.as_damage() from error

    def _fine_outcomes(self, start_ms: int, *, patient: bool) -> OutcomeBatch:
        key = DispatchKey(start_ms, False)
        try:
            return self._outcomes(key)
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError):
                raise
            self._damage.report(error)
            return self._outcomes_left(key)

    def _take_outcomes(self, day: SealedDay, *, patient: bool = False) -> OutcomeBatch:
        """Loads the outcomes of a sealed day. If they are damaged, the day is held back: a client may have been answered
        `cancelled` for one of its messages. If the disk cannot read them, it is asked again."""
        try:
            written = self._outcomes(DispatchKey(day.start_ms, True))
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError):
                raise
            self._overlays.hide(day.start_ms, day.sequence)
            self._hold(day.start_ms, error)
            if isinstance(error, UnreadableError):
                self._refused.add(day.start_ms)
            written = self._outcomes_left(DispatchKey(day.start_ms, True))
        self._overlays.put(day.start_ms, OutcomeIndex.of([written]))
        return written

    def _outcomes_left(self, key: DispatchKey) -> OutcomeBatch:
        """Rows that can be read around damage are true."""
        with suppress(CorruptionError, FormatError):  # already reported
            return self._dispatch.outcomes_left(key)
        return OutcomeBatch.filled(0)

    async def _take_refused(self) -> None:
        """Ask once more for the outcomes of days that the disk did not give."""
        for day in [day for day in self._days.draining() if day.start_ms in self._refused]:
            key = DispatchKey(day.start_ms, True)
            index = None
            try:
                index = await self._workers.run(partial(self._index_up_to, key, self._dispatch.end(key)))
            except (DiskError, UnreadableError) as error:
                self._damage.report(error)
                continue
            except CorruptionError:
                pass  # `_take_sealed` meets it again
            if not self._days.is_draining(day.start_ms):
                continue  # it was drained meanwhile
            # Before they are taken: where they are damaged, `_take_sealed` holds the day back again.
            self._overlays.show(day.start_ms)
            self._drains.free(day.start_ms)
            self._refused.discard(day.start_ms)
            self._take_sealed(day, None if index is None else (index, self._dispatch.end(key)), None)

    def _hold(self, start_ms: int, error: CorruptionError | FormatError | DiskError) -> None:
        self._drains.hold(start_ms)
        self._damage.report(error)

    def _pause(self, start_ms: int, error: DiskError | UnreadableError) -> None:
        """Nothing is known to be wrong with the day: `run` frees it, and what was begun is done again."""
        self._hold(start_ms, error)
        self._paused.add(start_ms)

    async def run(self) -> None:
        """Look now and then whether a day comes near; cancelled from outside."""
        while True:
            await self._take_refused()
            while self._paused:
                self._drains.free(self._paused.pop())
            if self._drains.drainable() or self.fine_until_ms() > self._days.fine_until_ms:
                self.is_due = True
                self._arrived.ring()
            await self._clock.sleep_ms(CHECK_INTERVAL_MS)

    async def step(self) -> None:
        """Seal what is near, drain a slice of the earliest sealed day; nothing is due when nothing is left."""
        try:
            if self.fine_until_ms() > self._days.fine_until_ms:
                await self._seal()
            draining = self._drains.drainable()
            if draining:
                await self._drain(draining[0].start_ms)
            else:
                self.is_due = False
        except DiskFullError:
            # Sealing and draining wait for room; each of their steps can be made again.
            await self._clock.sleep_ms(200)

    async def _seal(self) -> None:
        keys = {*self._schedule.keys(), *self._schedule.lost}
        starts = sorted({key.start_ms for key in keys if key.source == ScheduleSource.DAY})
        fine_until_ms = self.fine_until_ms()
        near = [start for start in starts if self._days.fine_until_ms <= start < fine_until_ms]
        near = [start for start in near if not self._may_stay_whole(start)]
        # Read in threads, before the step that seals: from that step on each question about the days needs them. What is not
        # written before that would make this step read the file.
        await self._decided.all_written()
        indexes: dict[int, tuple[OutcomeIndex, int]] = {}
        refused: dict[int, DiskError] = {}
        for start in near:
            key = DispatchKey(start, True)
            end = self._dispatch.end(key)
            try:
                with suppress(CorruptionError):  # `_take_outcomes` meets it again
                    indexes[start] = await self._workers.run(partial(self._index_up_to, key, end)), end
            except DiskError as error:
                refused[start] = error
        # Outcomes so far belong to the coarse files. Only the replayer's task decides about coarse rows.
        await self._decided.all_written()
        whole = [start for start in starts if self._may_stay_whole(start)]
        self._days.seal(fine_until_ms, self._positions.replayed_sequence.value, starts, whole)
        self._book.refresh([start for start in whole if self._days.is_whole(start)])
        for day in self._days.draining():
            if day.start_ms not in self._overlays:
                self._take_sealed(day, indexes.get(day.start_ms), refused.get(day.start_ms))

    def _index_up_to(self, key: DispatchKey, end: int) -> OutcomeIndex:
        try:
            return self._dispatch.index(key, end)
        except FormatError as error:
            raise error.as_damage() from error

    def _take_sealed(self, day: SealedDay, known: tuple[OutcomeIndex, int] | None, refusal: DiskError | None) -> None:
        """`known`: the outcomes of the day, if they could be read, and where they end in the file. `refusal`: the error, if
        the disk refused them."""
        try:
            if refusal is not None:
                raise refusal
            key = DispatchKey(day.start_ms, True)
            if known is not None and known[1] == self._dispatch.end(key):
                self._overlays.put(day.start_ms, known[0])
            else:
                self._take_outcomes(day)
        except DiskError as error:
            self._overlays.hide(day.start_ms, day.sequence)
            self._refused.add(day.start_ms)
            self._hold(day.start_ms, error)

    def _may_stay_whole(self, start_ms: int) -> bool:
        """Whether a coarse day is overdue as a whole, small, and nothing of it is lost or in memory."""
        key = ScheduleKey(start_ms, ScheduleSource.DAY)
        return (
            start_ms + DAY_MS <= self._clock.now_ms()
            and key in self._schedule
            and self._schedule.hiding(key) is None
            and not self._dispatch.is_lost(DispatchKey(start_ms, True))
            and self._schedule.rows(key) <= WHOLE_ROWS_MAX
            # A minute that was taken while it had no file would hide the rows of the day from every load.
            and not self._cursors.is_taken_between(start_ms, start_ms + DAY_MS)
        )

    async def _drain(self, start_ms: int) -> None:
        key = ScheduleKey(start_ms, ScheduleSource.DAY)
        if self._slice_of != start_ms:
            self._slice_of, self._pieces = start_ms, deque()
        if not self._pieces:
            read = partial(self._read, key, self._drains.positions.get(start_ms, 0))
            try:
                whole, self._slice_end = await self._workers.run(read)
            except (DiskError, UnreadableError) as error:
                self._pause(start_ms, error)
                return
            except (CorruptionError, FormatError) as error:
                self._hold(start_ms, error)
                return
            if whole is not None:
                self._pieces += by_windows(whole, self._settings.window_ms, DRAIN_FILES)
        if self._pieces:
            began_us = self._clock.monotonic_us()
            for _ in range(PIECES_MAX):
                await self._drain_piece(self._pieces[0])
                self._pieces.popleft()
                if not self._pieces:
                    self._drains.positions[start_ms] = self._slice_end
                    break
                if self._clock.monotonic_us() - began_us > STEP_US_MAX:
                    break
        elif self._all_drained(key):
            await self._finish(start_ms)

    async def _drain_piece(self, batch: MessageBatch) -> None:
        done = await self._placing.place_drained(batch)
        async with AsyncExitStack() as stack:
            decided: dict[int, OutcomeIndex | None] = {}
            refused = []
            for start in {placed.key.start_ms for placed in done.placed if self._cursors.is_taken(placed.key.start_ms)}:
                decided[start] = None
                try:
                    decided[start] = await stack.enter_async_context(self._decided.pinned(DispatchKey(start, False)))
                except (CorruptionError, DiskError) as error:
                    if self._is_refusal(error):
                        refused.append(start)
            # In the step that publishes: no other round brings these rows again. Where the outcomes are damaged, messages
            # that may be cancelled are not handed over.
            for start in refused:
                self._memory.leave_to_load(start)
            self._memory.publish_drained(done, decided)
            self._positions.published_drained()
        await self._record_lost_copies(done)
        # Now, and not all of them at the end: a round of replay would wait for that.
        await self._sync([placed.key for placed in done.placed])

    def _all_drained(self, key: ScheduleKey) -> bool:
        """Whether the minutes have every row of the day. If not, once more from the beginning: damage is met again, and
        reported, and what a minute lost is put there once more. A day whose file lost messages, or lies under another name,
        stays open: the operator may bring them back."""
        hiding = self._schedule.hiding(key)
        if hiding is not None:
            self._hold(key.start_ms, hiding)
            return False
        drained = sum([self._schedule.rows(minute) for minute in self._minutes(key.start_ms)])
        missing = self._schedule.rows(key) - drained
        if missing <= 0:
            return True
        if key.start_ms in self._drained_again:
            detail = f"{missing} messages of the day did not reach their minutes; the file is kept"
            self._hold(key.start_ms, CorruptionError(self._schedule.path(key), 0, detail))
        self._drained_again.add(key.start_ms)
        self._drains.positions.pop(key.start_ms, None)
        return False

    def _minutes(self, start_ms: int) -> list[ScheduleKey]:
        keys = self._schedule.keys_between(start_ms, start_ms + DAY_MS)
        return [key for key in keys if key.source == ScheduleSource.FROM_DAY]

    async def _record_lost_copies(self, done: Round) -> None:
        """A crash can lose the outcome row of a suppressed copy; a window that is loaded already does not look again."""
        for placed in done.placed:
            copies = np.flatnonzero(placed.batch.duplicate_of)
            if not len(copies):
                continue
            rows = index_rows(placed.batch, placed.appended.blob_start).take(copies)
            try:
                async with self._decided.pinned(DispatchKey(placed.key.start_ms, False)) as index:
                    self._decided.add_lost_copies(placed.key.start_ms, rows, index.missing(rows.sequence))
            except (CorruptionError, DiskError) as error:
                if self._is_refusal(error):
                    self._memory.leave_to_load(placed.key.start_ms)

    def _is_refusal(self, error: CorruptionError | DiskError) -> bool:
        """Whether the disk may give the outcomes of a minute soon. As long as they are damaged, none is added."""
        if isinstance(error, DiskError):
            self._damage.report(error)  # of the others `pinned` has reported
        return isinstance(error, (DiskError, UnreadableError))

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

    async def _finish(self, start_ms: int) -> None:
        """All rows are in minutes: move the outcomes, sync, and only then say so and remove the day's files."""
        try:
            await self._move_outcomes(start_ms)
        except (DiskError, UnreadableError) as error:
            self._pause(start_ms, error)
            return
        except CorruptionError as error:
            self._hold(start_ms, error)
            return
        await self._sync(self._minutes(start_ms))
        self._days.drained(start_ms)
        self._overlays.remove(start_ms)
        self._drains.end(start_ms)
        self._retired.remove([ScheduleKey(start_ms, ScheduleSource.DAY)])
        self._remove_day(start_ms)

    async def _sync(self, keys: list[ScheduleKey]) -> None:
        sync = partial(self._schedule.sync, keys)
        await self._workers.run(sync)

    def _remove_day(self, start_ms: int) -> None:
        if ScheduleKey(start_ms, ScheduleSource.DAY) in self._schedule:
            self._schedule.remove(ScheduleKey(start_ms, ScheduleSource.DAY))
        if DispatchKey(start_ms, True) in self._dispatch:
            self._dispatch.remove(DispatchKey(start_ms, True))
            self._decided.forget(DispatchKey(start_ms, True))

    async def _move_outcomes(self, start_ms: int) -> None:
        read = partial(self._outcomes_by_file, start_ms)
        moved = 0
        for key, mine in await self._workers.run(read):
            async with self._decided.pinned(key) as index:
                self._decided.add(mine.take(np.flatnonzero(index.missing(mine.sequence))), moved=True)
            moved += len(mine)
            await trio.lowlevel.checkpoint()
        if moved:
            await self._decided.all_written()
            self._drains.moved[start_ms] = moved

    def _outcomes_by_file(self, start_ms: int) -> list[tuple[DispatchKey, OutcomeBatch]]:
        return self._decided.by_file(self._outcomes(DispatchKey(start_ms, True)))


def by_windows(batch: MessageBatch, window_ms: int, windows_max: int) -> list[MessageBatch]:
    """The rows of a batch (in sequence order) in parts of at most `windows_max` windows, the earliest first, each part in
    sequence order."""
    starts = window_starts(batch.due_ms, window_ms)
    distinct = np.unique(starts)
    if len(distinct) <= windows_max:
        return [batch]
    part = np.searchsorted(distinct, starts) // windows_max
    return [batch.take(np.flatnonzero(part == place)) for place in range(int(part.max()) + 1)]
