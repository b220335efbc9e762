"""Sorted runs side by side: what one slot of the wheel holds, with the exact k-way take of its first rows.

Which rows belong into which slot is not decided here, and there is no tick and no time of day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from wheel.keys import DUE_MS_NONE, Int64s, Mask, rows_before, rows_through
from wheel.sorted_run import Opaque, SortedRun, merge_columns

RUN_ROWS_MAX: Final = 16_384
"""A batch enters as runs of at most this size: copying one (to sort, merge or release it) takes under 0.5 ms."""

SETTLED_ROWS: Final = RUN_ROWS_MAX // 2
"""Runs of this size are merged no more: each row is copied a few times at most, and rows / SETTLED_ROWS runs remain."""

MERGE_RUNS: Final = 32
"""Small runs gathered before they are merged: a take looks at each run for 5 µs, a merge costs 100 µs and more."""

MERGE_ROWS_MAX: Final = RUN_ROWS_MAX + SETTLED_ROWS
"""The most rows of one merge (about 1 ms), so that no call holds the event loop for long."""

MERGE_BEFORE_FIND: Final = 4
"""Small runs gathered before they are merged for a look-up: each run looked through costs 15 µs."""

SAMPLES_PER_RUN: Final = 32
"""Samples by which a take guesses its last key: with R runs it sorts at most 1 + R / 32 times the rows it returns."""


class SortedRuns:
    """Any number of sorted runs, read as one sequence of rows in (due_ms, sequence) order. Keys are unique."""

    __slots__ = ("_added_rows", "_added_runs", "_rows", "_runs")

    def __init__(self, merge_phase: int = 0) -> None:
        """`merge_phase`: any number; neighbours with different ones do not all merge in the same call."""
        self._runs: list[SortedRun] = []
        self._rows = 0
        self._added_runs = merge_phase % MERGE_RUNS  # Since the last merge.
        self._added_rows = 0

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[SortedRun]:
        return iter(self._runs)

    @property
    def first_due_ms(self) -> int:
        """The earliest due time, DUE_MS_NONE where there are no rows."""
        return min([run.first_due_ms for run in self._runs], default=DUE_MS_NONE)

    def add(self, run: SortedRun) -> None:
        """Takes one run in. When many small ones have gathered they are merged: a trickle cannot pile up runs."""
        self._runs.append(run)
        self._rows += len(run)
        if len(run) < SETTLED_ROWS:
            self._added_runs += 1
            self._added_rows += len(run)
            if self._added_runs >= MERGE_RUNS or self._added_rows >= RUN_ROWS_MAX:
                self.merge_small()

    def extend(self, runs: Iterable[SortedRun]) -> None:
        """Takes in runs that are about to leave in order, which is why merging them would be lost work."""
        for run in runs:
            self._runs.append(run)
            self._rows += len(run)

    def merge_small(self, runs_min: int = 2) -> None:
        """Merges the smallest runs into one, where there are at least `runs_min` of them."""
        self._added_runs = self._added_rows = 0
        small = sorted((run for run in self._runs if len(run) < SETTLED_ROWS), key=len)
        merged_rows = merged_runs = 0
        while merged_runs < len(small) and merged_rows + len(small[merged_runs]) <= MERGE_ROWS_MAX:
            merged_rows += len(small[merged_runs])
            merged_runs += 1
        if merged_runs < max(2, runs_min):
            return
        merged = small[:merged_runs]
        gone = set(map(id, merged))
        self._runs = [run for run in self._runs if id(run) not in gone]
        self._runs.append(merge_columns([run.columns(run.head, run.allocated_rows) for run in merged]))

    def cut(self, end_ms: int) -> list[SortedRun]:
        """Takes out all rows due before `end_ms`, as runs in no particular order."""
        out: list[SortedRun] = []
        kept: list[SortedRun] = []
        for run in self._runs:
            if run.first_due_ms >= end_ms:
                kept.append(run)
            elif run.last[0] < end_ms:
                out.append(run)
            else:
                front = run.cut_front(run.position_due(end_ms - 1))
                if len(front):
                    out.append(front)
                if len(run):
                    run.release()
                    kept.append(run)
        self._runs = kept
        self._rows -= sum(map(len, out))
        return out

    def take(self, due_ms: int, rows_max: int) -> SortedRun | None:
        """Takes out the first `rows_max` rows due at or before `due_ms`, in order; None where there is none.

        Touches only runs that the answer can come from: those that begin before the rows_max-th row of the ones before.
        """
        self._runs.sort(key=_first)
        taken: list[SortedRun] = []
        missing = rows_max
        while missing > 0 and (active := self._active(due_ms, missing)):
            part = _take_first(active, due_ms, missing)
            self._let_go(active)
            missing -= len(part)  # Cancelled rows among the candidates make another round necessary.
            taken.append(part)
        self._rows -= rows_max - missing
        if len(taken) < 2:
            return taken[0] if taken else None
        return merge_columns([run.columns(run.head, run.allocated_rows) for run in taken])

    def runs_below(self, due_ms: int) -> Iterator[tuple[Int64s, Int64s, Opaque]]:
        """The columns of the rows due before the given time, run by run; cancelled ones may be among them."""
        for run in self._runs:
            if run.first_due_ms < due_ms:
                rows = slice(run.head, run.position_due(due_ms - 1))
                yield run.due_ms[rows], run.sequence[rows], run.payload[rows]

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before the given time."""
        return sum(run.rows_between(run.head, run.position_due(due_ms - 1)) for run in self._runs)

    def drop_behind(self, due_ms: int, sequence: int) -> int:
        """Drops all rows with a key greater than the given one; returns how many."""
        dropped = 0
        for run in self._runs:
            if run.last > (due_ms, sequence):
                dropped += run.drop_behind(due_ms, sequence)
        self._rows -= dropped
        self._runs = [run for run in self._runs if len(run)]
        return dropped

    def find(self, due_ms: Int64s, sequence: Int64s, *, cancel: bool) -> Mask:
        """True where the row with this key is (with `cancel`: was, and is no more) here, bool[n]; the n keys ascend."""
        held = np.zeros(len(due_ms), np.bool_)
        if self._added_runs >= MERGE_BEFORE_FIND:
            self.merge_small()
        drained = False
        for run in self._runs:
            start = rows_before(due_ms, sequence, *run.first)
            stop = rows_through(due_ms, sequence, *run.last)
            if start >= stop:
                continue
            positions = run.find(due_ms[start:stop], sequence[start:stop])
            found = positions >= 0
            held[start:stop] |= found
            if cancel and found.any():
                rows_before_cancel = len(run)
                run.cancel(positions[found])
                run.release()
                self._rows -= rows_before_cancel - len(run)
                drained |= not len(run)
        if drained:
            self._runs = [run for run in self._runs if len(run)]
        return held

    def check_invariants(self) -> None:
        assert self._rows == sum(map(len, self._runs))
        for run in self._runs:
            run.check_invariants()

    def _active(self, due_ms: int, rows: int) -> list[SortedRun]:
        """The runs, sorted by first key, among which the first `rows` due rows lie."""
        active: list[SortedRun] = []
        known_rows = 0
        known_last = (due_ms, 0)
        for run in self._runs:
            if run.first_due_ms > due_ms or (known_rows >= rows and run.first > known_last):
                break
            known_last = max(known_last, run.last) if active else run.last
            known_rows += len(run)
            active.append(run)
        return active

    def _let_go(self, active: list[SortedRun]) -> None:
        """Forgets drained runs, frees consumed memory and restores the order after the heads of these runs moved."""
        copy_rows_left = MERGE_ROWS_MAX  # Several times what a take returns, so releasing keeps up without a long call.
        for run in active:
            if copy_rows_left > 0:
                copy_rows_left -= run.release()
        self._runs = [run for run in self._runs if len(run)]
        self._runs.sort(key=_first)


def _first(run: SortedRun) -> tuple[int, int]:
    return run.first_due_ms, run.first_sequence


def _take_first(active: list[SortedRun], due_ms: int, rows: int) -> SortedRun:
    """Takes some of the first rows, at least one and at most `rows`, out of runs that may interleave."""
    stops = [run.position_due(due_ms) for run in active]
    if all(run.last < following.first for run, following in pairwise(active)):
        stops = _from_front(active, stops, rows)
    elif sum(stops) - sum(run.head for run in active) > rows:
        stops = _narrowed(active, stops, rows)
    sources = [(run, stop) for run, stop in zip(active, stops, strict=True) if stop > run.head]
    parts = [run.columns(run.head, stop) for run, stop in sources]
    candidate_rows = sum(len(part[0]) for part in parts)
    if len(parts) == 1 and sources[0][0].kept_rows <= 2 * candidate_rows <= 2 * rows:
        merged = SortedRun(*parts[0])  # A view keeps the arrays of its run alive: only where it is most of them.
    else:
        merged = merge_columns(parts, rows)
    if candidate_rows > rows:
        stops = [run.position_through(*merged.last) for run in active]
    for run, stop in zip(active, stops, strict=True):
        run.drop_front(stop)
    return merged


def _from_front(active: list[SortedRun], stops: list[int], rows: int) -> list[int]:
    """Stops lowered to the first `rows` rows of runs that lie one behind the other."""
    lowered: list[int] = []
    for run, stop in zip(active, stops, strict=True):
        lowered.append(min(stop, run.head + rows))
        rows -= lowered[-1] - run.head
    return lowered


def _narrowed(active: list[SortedRun], stops: list[int], rows: int) -> list[int]:
    """Stops lowered to a key that at least `rows` rows, but not many more, reach.

    Each sample stands for the `stride` rows of its run up to it, so the t-th sample in key order has at least
    t · stride rows at or before it, and at most `stride` more of each run.
    """
    stride = max(1, -(-rows // SAMPLES_PER_RUN))
    samples = [
        run.samples(min(stop, run.head + rows + stride), stride) for run, stop in zip(active, stops, strict=True)
    ]
    due_ms = np.concatenate([sample[0] for sample in samples])
    sequence = np.concatenate([sample[1] for sample in samples])
    wanted = -(-rows // stride) - 1
    if wanted >= len(due_ms):
        return stops
    bound = int(np.lexsort((sequence, due_ms))[wanted])
    key = int(due_ms[bound]), int(sequence[bound])
    return [min(stop, run.position_through(*key)) for run, stop in zip(active, stops, strict=True)]
