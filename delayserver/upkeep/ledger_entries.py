"""The entries of retired windows for the ledger: what was accepted of each, and how it ended.

Rows and outcomes must be of the same messages, because equal counts would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.windows.ledger_writer import LedgerWriter
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError, DiskFullError, FormatError, UnreadableError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_starts
from store.logs.open_rows import unmatched
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, U32, LedgerBatch
from store.records.outcome_balance import in_balance

# Pause after a compaction of the ledger that failed.
COMPACT_AGAIN_US = 600_000_000
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


class LedgerEntries:
    """Counts windows, and has them entered. In a single server nobody else writes the ledger while it runs."""

    def __init__(
        self, files: Files, windows: Windows, decided: Decided, writer: LedgerWriter, runtime: Runtime
    ) -> None:
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._ledger = files.ledger
        self._book = windows.book
        self._retired = windows.retired
        self._decided = decided
        self._window_ms = windows.book.window_ms
        self._clock = runtime.clock
        self._workers = runtime.workers
        self._damage = runtime.damage
        self.writer = writer
        self._damaged: set[int] = set()
        self._compact_after_us = 0

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
                twice &= in_balance(outcomes.origin_sequence, outcomes.outcome)
                totals -= np.bincount(outcomes.outcome[twice], minlength=16)
        return totals

    def is_damaged(self, start_ms: int) -> bool:
        """Whether a window could not be counted because its files are damaged. It stays."""
        return start_ms in self._damaged

    def has(self, start_ms: int) -> bool:
        """Whether this window is in the ledger."""
        return self._ledger.has(start_ms)

    async def enter(self, starts_ms: Iterable[int], may_go: Callable[[int], bool]) -> list[int]:
        """Enters the windows that still may go when all outcomes are written. Returns those that it counted; of these the
        ledger lacks the ones that are damaged, and those that a full disk refused."""
        await self.wait_all_written()
        # Late messages may come while the files are read. Sequences above these are not counted.
        last = {start: self._book.last_sequence(start) for start in starts_ms if may_go(start)}
        await self._workers.run(partial(self._enter, last))
        await self.writer.finish()
        return [*last]

    async def wait_all_written(self) -> None:
        """Return when all that is decided now is in its files."""
        await self._decided.wait_all_written()

    async def compact(self) -> None:
        """Rewrites the ledger if its many small records would delay a start."""
        if not self._ledger.wants_compaction or self._clock.monotonic_us() < self._compact_after_us:
            return
        try:
            await self._workers.run(self._ledger.compact)
        except (CorruptionError, DiskError, DiskFullError) as error:
            self._compact_after_us = self._clock.monotonic_us() + COMPACT_AGAIN_US
            if not isinstance(error, DiskFullError):
                self._damage.report(error)

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
                self.writer.append(counted)
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
        balance = in_balance(outcomes.origin_sequence, outcomes.outcome)
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
        day = ScheduleKey(start_ms, ScheduleSource.DAY)
        columns = self._schedule.read_columns(day, ("sequence", "due_ms", "subject", "origin_sequence"))
        sequence = columns["sequence"]
        self._compare(
            start_ms,
            sequence[sequence > retired_to],
            outcomes.sequence[outcomes.sequence > retired_to],
            last_sequence,
        )
        new = np.flatnonzero((sequence > retired_to) & (sequence <= last_sequence))
        minutes = window_starts(columns["due_ms"][new], self._window_ms)
        internal = columns["origin_sequence"][new] != 0
        touched = np.unique(minutes).tolist() or [start_ms]
        before = LedgerBatch.concatenate([LedgerBatch.filled(0), *map(self._ledger.window, touched)])
        # Of a minute with internal records only it is noted all the same that it was there.
        subjects = np.where(internal, 0, columns["subject"][new].astype(np.int64))
        settled = self._cells(window_starts(outcomes.due_ms, self._window_ms), outcomes.subject)
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
        balance = in_balance(outcomes.origin_sequence, outcomes.outcome)
        balance &= (outcomes.sequence > retired_to) & (outcomes.sequence <= last_sequence)
        for name, code in _COLUMNS.items():
            add(name, settled[balance & (outcomes.outcome == int(code))])
        return LedgerBatch.filled(
            len(cells),
            subject=(cells & _SUBJECT_MASK).astype(np.uint32),
            start_ms=(cells >> _SUBJECT_BITS) * self._window_ms,
            last_sequence=max(retired_to, last_sequence),
            **counts,
        )

    def _cells(self, starts_ms: I64, subjects: NDArray[Any]) -> I64:
        cells: I64 = starts_ms // self._window_ms << _SUBJECT_BITS | subjects.astype(np.int64)
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
