"""Removes old windows whose messages all have an outcome, and old segments of message_log that are replayed.

Age alone removes nothing. The counts of a window are durable in the ledger before it is removed, so the balance can
still be proven.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import StorageSettings
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.windows.closed_windows import ClosedWindows
from delayserver.state.windows.windows import Windows
from delayserver.upkeep.on_their_way import OnTheirWay
from store.errors import CorruptionError, DiskError, DiskFullError, FormatError, UnreadableError
from store.logs.dispatch_log import DispatchKey
from store.logs.open_rows import unmatched
from store.logs.schedule_log import ScheduleKey, Source
from store.logs.windows import window_of, window_starts
from store.records.batches import I64, U32, LedgerBatch

INTERVAL_MS = 5_000
# Windows that enter the ledger in one hop to a thread, for which a stop waits. Then one step of the event loop removes their
# files, which takes some milliseconds.
RETIRED_AT_ONCE = 16
# Pause after a compaction of the ledger that failed.
COMPACT_AGAIN_US = 600_000_000
# Whole days that one pass removes. Each closes 1,440 minutes at once.
WHOLE_DAYS_AT_ONCE = 16
_COLUMNS = {
    "delivered": Outcome.DELIVERED,
    "cancelled": Outcome.CANCELLED,
    "expired": Outcome.EXPIRED,
    "deduplicated": Outcome.DEDUPLICATED,
    "dead_lettered": Outcome.DEAD_LETTERED,
    "rolled_back": Outcome.ROLLED_BACK,
}


# Subject codes are below 2**22, so the number of a minute and a subject code fit in one i64, a cell.
_SUBJECT_BITS = 24
_SUBJECT_MASK = (1 << _SUBJECT_BITS) - 1


class Retention:
    """Retires windows."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        coming: OnTheirWay,
        decided: Decided,
        settings: StorageSettings,
        believable: BelievableClock,
        runtime: Runtime,
    ) -> None:
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._ledger = files.ledger
        self._days = files.days
        self._book = windows.book
        self._cursors = windows.cursors
        self._retired = windows.retired
        self._coming = coming
        self._decided = decided
        self._workers = runtime.workers
        self._settings = settings
        self._clock = runtime.clock
        self._believable = believable
        entered = files.ledger.windows()
        self.closed = ClosedWindows(entered[entered[:, 1] == 0, 0], settings.window_ms)
        self._damaged: set[int] = set()
        self._compact_after_us = 0
        self._damage = runtime.damage

    def oldest_due_ms(self) -> int:
        """The oldest due time that is accepted; earlier ones are `too_old`. Their window, which proves duplicates, may
        be removed at any time. Later windows refuse if they are `closed`."""
        return window_of(self._clock.now_ms() - self._settings.retention_ms, self._settings.window_ms)

    def finish_interrupted(self) -> None:
        """Removes the files of windows whose removal a crash interrupted after the entry in the ledger."""
        starts = self._book.starts()
        starts |= {key.start_ms for key in self._dispatch.keys() if self._book.is_outcome_file(key)}
        for start in sorted(starts):
            if self._retired.has(start) and self._is_counted(start):
                self._remove(start)
        self._sync_removed()

    def _is_counted(self, start_ms: int) -> bool:
        """Whether the ledger counts all that the files of a window hold."""
        try:
            return self._last_known(start_ms) <= self._retired.up_to(start_ms)
        except DiskError as error:
            self._damage.report(error)
            return False

    def _last_known(self, start_ms: int) -> int:
        """`_last_sequence`, also of outcomes: a crash may lose a late message in its schedule file, not its outcome."""
        try:
            outcomes = self._dispatch.outcomes(self._book.outcome_file(start_ms), damages=[])
        except (CorruptionError, FormatError):
            return 1 << 62  # the file is kept, and a reader that needs it reports the damage
        return max(self._last_sequence(start_ms), int(outcomes.sequence.max(initial=0)))

    def _last_sequence(self, start_ms: int) -> int:
        return max(self._schedule.last_sequence(file) for file in self._book.files(start_ms))

    def retired_totals(self) -> I64:
        """Outcome counts i64[16] of retired messages, without those that files still hold. A late message can keep a
        window's files after its entry in the ledger, also across a crash."""
        totals = np.zeros(16, dtype=np.int64)
        counts = self._ledger.totals()
        for name, code in _COLUMNS.items():
            totals[int(code)] = int(getattr(counts, name).sum())
        for key in self._dispatch.keys():
            if self._book.is_outcome_file(key) and self._retired.has(key.start_ms):
                outcomes = self._dispatch.outcomes_left(key, damages=[])  # also of a file that lost some
                twice = self._retired.are(key.start_ms, outcomes.sequence)
                twice &= (outcomes.origin_sequence == 0) | (outcomes.outcome == int(Outcome.DEDUPLICATED))
                totals -= np.bincount(outcomes.outcome[twice], minlength=16)
        return totals

    async def run(self) -> None:
        """Retires windows and segments until cancelled."""
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            await self.retire_windows()
            await self.compact_ledger()

    async def retire_windows(self) -> None:
        """One pass over complete windows past retention, by the believable time."""
        end_ms = self._believable.now_ms() - self._settings.retention_ms
        early = [key for key in self._schedule.keys() if key.start_ms < end_ms and self._book.is_delivered_from(key)]
        starts = {key.start_ms for key in early if self._book.end(key.start_ms) <= end_ms}
        # An empty minute has a cursor but no files, so its cursor is removed here.
        for start in self._cursors.windows(end_ms - self._settings.window_ms):
            if start not in starts and not self._book.is_whole(start) and not self._cursors.is_loading(start):
                self._cursors.forget(start)
        done = [start for start in sorted(starts) if self._may_go(start)]
        days = [start for start in done if self._book.is_whole(start)]
        if len(days) > WHOLE_DAYS_AT_ONCE:
            later = set(days[WHOLE_DAYS_AT_ONCE:])
            done = [start for start in done if start not in later]
        if not done:
            return
        # From here on messages for these windows are refused, also if the clock goes back.
        closing = [minute for start in done for minute in self._minutes(start)]
        self.closed.close(closing)
        try:
            await self._retire(done)
        finally:
            self.closed.reopen([start for start in closing if not self._ledger.has(start)])

    def _minutes(self, start_ms: int) -> range:
        return range(start_ms, self._book.end(start_ms), self._settings.window_ms)

    async def _retire(self, done: list[int]) -> None:
        coming = {self._book.start_of(start) for start in await self._coming.windows()}
        done = [start for start in done if start not in coming]
        for first in range(0, len(done), RETIRED_AT_ONCE):
            await self._retire_some(done[first : first + RETIRED_AT_ONCE])
        # A crash before this may bring files back. The ledger has their windows, and the next start removes them.
        await self._workers.run(self._sync_removed)

    async def _retire_some(self, done: list[int]) -> None:
        await self._decided.all_written()
        # Late messages may come while the files are read. Sequences above these are not counted.
        last = {start: self._last_sequence(start) for start in done if self._may_go(start)}
        collect = partial(self._enter, last)
        await self._workers.run(collect)
        for start in last:
            if self._retired.has(start):
                self._remove(start)
        await trio.lowlevel.checkpoint()

    def _sync_removed(self) -> None:
        self._schedule.sync_removed()
        self._dispatch.sync_removed()

    async def compact_ledger(self) -> None:
        """Rewrites the ledger if its many small records would delay a start."""
        if not self._ledger.wants_compaction or self._clock.monotonic_us() < self._compact_after_us:
            return
        try:
            await self._workers.run(self._ledger.compact)
        except (CorruptionError, DiskError, DiskFullError) as error:
            self._compact_after_us = self._clock.monotonic_us() + COMPACT_AGAIN_US
            if not isinstance(error, DiskFullError):
                self._damage.report(error)

    def _may_go(self, start_ms: int) -> bool:
        if self._days.is_draining(start_ms) or start_ms in self._damaged:
            return False  # the drain brings more of its messages, or it is damaged
        return self._book.is_complete(start_ms) and not self._cursors.is_loading(start_ms)

    def _enter(self, last: dict[int, int]) -> None:
        """Writes the counts of windows, each up to its last sequence, durably to the ledger, until the disk is full."""
        for start, last_sequence in last.items():
            try:
                counted = self._count(start, last_sequence)
            except (CorruptionError, FormatError, DiskError) as error:
                if not isinstance(error, (UnreadableError, DiskError)):
                    self._damaged.add(start)  # a window that cannot be counted is not removed
                self._damage.report(error)
                continue
            try:
                self._ledger.append(counted)
            except DiskFullError:
                return  # the other windows keep their files until a later pass

    def _count(self, start_ms: int, last_sequence: int) -> LedgerBatch:
        """The new counts of a window for the ledger: its present counts, and the new rows up to `last_sequence`.

        Raises CorruptionError if rows and outcomes are of different messages, because equal counts would prove nothing.
        """
        if self._book.is_whole(start_ms):
            return self._count_day(start_ms, last_sequence)
        before, retired_to = self._ledger.window(start_ms), self._retired.up_to(start_ms)
        subjects = [before.subject]
        placed = [np.zeros(0, np.int64)]
        # Read before the rows, so that each outcome has its row.
        outcomes = self._dispatch.outcomes(DispatchKey(start_ms, False))
        for key in self._book.files(start_ms):
            if key in self._schedule:
                columns = self._schedule.read_columns(key, ("sequence", "subject", "origin_sequence"))
                new = (columns["sequence"] > retired_to) & (columns["sequence"] <= last_sequence)
                subjects.append(columns["subject"][new & (columns["origin_sequence"] == 0)])
                placed.append(columns["sequence"][columns["sequence"] > retired_to])
        settled = outcomes.sequence[outcomes.sequence > retired_to]
        self._compare(start_ms, np.concatenate(placed), settled, last_sequence)
        codes = np.unique(np.concatenate(subjects))
        if not len(codes):
            codes = np.zeros(1, dtype=np.uint32)  # a window with internal records only has an entry too
        places = np.searchsorted(codes, before.subject)
        balance = (outcomes.origin_sequence == 0) | (outcomes.outcome == int(Outcome.DEDUPLICATED))
        balance &= (outcomes.sequence > retired_to) & (outcomes.sequence <= last_sequence)

        def per_subject(name: str, values: U32) -> I64:
            counts = np.bincount(np.searchsorted(codes, values), minlength=len(codes)).astype(np.int64, copy=False)
            counts[places] += getattr(before, name)
            return counts

        counts = {
            name: per_subject(name, outcomes.subject[balance & (outcomes.outcome == int(code))])
            for name, code in _COLUMNS.items()
        }
        return LedgerBatch.filled(
            len(codes),
            subject=codes,
            start_ms=start_ms,
            accepted=per_subject("accepted", np.concatenate(subjects[1:]) if subjects[1:] else before.subject[:0]),
            last_sequence=max(retired_to, last_sequence),
            **counts,
        )

    def _count_day(self, start_ms: int, last_sequence: int) -> LedgerBatch:
        """Counts a whole day minute by minute, so that the ledger looks as it does for minute files. If the file of the
        day lost all its messages, the first minute stands for it."""
        retired_to = self._retired.up_to(start_ms)
        outcomes = self._dispatch.outcomes(DispatchKey(start_ms, True))
        day = ScheduleKey(start_ms, Source.DAY)
        columns = self._schedule.read_columns(day, ("sequence", "due_ms", "subject", "origin_sequence"))
        sequence = columns["sequence"]
        self._compare(
            start_ms,
            sequence[sequence > retired_to],
            outcomes.sequence[outcomes.sequence > retired_to],
            last_sequence,
        )
        new = np.flatnonzero((sequence > retired_to) & (sequence <= last_sequence))
        minutes = window_starts(columns["due_ms"][new], self._settings.window_ms)
        internal = columns["origin_sequence"][new] != 0
        touched = np.unique(minutes).tolist() or [start_ms]
        before = LedgerBatch.concatenate([LedgerBatch.filled(0), *map(self._ledger.window, touched)])
        # Of a minute with internal records only it is noted all the same that it was there.
        subjects = np.where(internal, 0, columns["subject"][new].astype(np.int64))
        settled = self._cells(window_starts(outcomes.due_ms, self._settings.window_ms), outcomes.subject)
        known = self._cells(before.start_ms, before.subject)
        cells = np.unique(np.concatenate([self._cells(minutes, subjects), known]))
        if not len(cells):
            cells = self._cells(np.array([start_ms]), np.zeros(1, np.int64))
        counts = {name: np.zeros(len(cells), np.int64) for name in ("accepted", *_COLUMNS)}

        def add(name: str, where: I64, values: I64 | int = 1) -> None:
            np.add.at(counts[name], np.searchsorted(cells, where), values)

        for name in counts:
            add(name, known, getattr(before, name))
        add("accepted", self._cells(minutes[~internal], subjects[~internal]))
        balance = (outcomes.origin_sequence == 0) | (outcomes.outcome == int(Outcome.DEDUPLICATED))
        balance &= (outcomes.sequence > retired_to) & (outcomes.sequence <= last_sequence)
        for name, code in _COLUMNS.items():
            add(name, settled[balance & (outcomes.outcome == int(code))])
        return LedgerBatch.filled(
            len(cells),
            subject=(cells & _SUBJECT_MASK).astype(np.uint32),
            start_ms=(cells >> _SUBJECT_BITS) * self._settings.window_ms,
            last_sequence=max(retired_to, last_sequence),
            **counts,
        )

    def _cells(self, starts_ms: I64, subjects: NDArray[Any]) -> I64:
        cells: I64 = starts_ms // self._settings.window_ms << _SUBJECT_BITS | subjects.astype(np.int64)
        return cells

    def _compare(self, start_ms: int, placed: I64, settled: I64, last_sequence: int) -> None:
        undone, orphaned = unmatched(placed, settled)
        undone = undone[undone <= last_sequence]
        if not len(orphaned) and not len(undone):
            return
        first = int(orphaned[0] if len(orphaned) else undone[0])
        key = self._book.outcome_file(start_ms)
        raise CorruptionError(
            self._dispatch.path(key) if key in self._dispatch else f"window {start_ms}",
            0,
            f"{len(orphaned)} outcomes of messages that no schedule file holds, {len(undone)} messages without an outcome "
            f"(the first sequence {first}); the window is kept",
        )

    def _remove(self, start_ms: int) -> bool:
        """Removes files of a window that the ledger counts. False where a late message, a load or damage keeps any."""
        if self._cursors.is_loading(start_ms):  # a clock that was ahead is back in the window: a later pass removes it
            return False
        retired_to = self._retired.up_to(start_ms)
        for key in self._book.files(start_ms):
            if key in self._schedule and not self._schedule.remove(key, retired_to, durable=False):
                return False
        outcomes = self._book.outcome_file(start_ms)
        if outcomes in self._dispatch:
            self._dispatch.remove(outcomes, durable=False)
        self._decided.forget(outcomes)
        self._retired.remove(self._book.files(start_ms))
        self._cursors.forget(start_ms)
        self._book.forget(start_ms)
        return True
