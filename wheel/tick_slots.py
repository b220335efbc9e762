"""The fine part of the wheel: one slot for each tick, hashed by tick modulo the number of slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wheel.keys import DUE_MS_NONE, Int64s, Mask, groups
from wheel.runs import SortedRuns
from wheel.sorted_run import Opaque, SortedRun


class TickSlots:
    """`slots` slots of `tick_ms`. Rows of a later round lie in the same slot behind those of an earlier one.

    Beside the slots lies the column `first_due` i64[slots], the earliest due time of each. Its minimum is the next
    tick to visit (1 µs for 8,192 slots), so nothing walks over empty slots however far the clock jumps.
    """

    __slots__ = ("_first_due", "_rows", "_slots", "_tick_ms")

    def __init__(self, tick_ms: int, slots: int) -> None:
        self._tick_ms = tick_ms
        self._slots: list[SortedRuns | None] = [None] * slots
        self._first_due = np.full(slots, DUE_MS_NONE, np.int64)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def first_due_ms(self) -> int:
        return int(self._first_due[self._first_due.argmin()])

    def add(self, tick: int, run: SortedRun) -> None:
        """Puts a run whose rows are all due in the given tick into its slot."""
        slot = tick % len(self._slots)
        runs = self._slots[slot]
        if runs is None:
            runs = self._slots[slot] = SortedRuns()
            self._first_due[slot] = run.first_due_ms
        elif run.first_due_ms < self._first_due[slot]:
            self._first_due[slot] = run.first_due_ms
        runs.add(run)
        self._rows += len(run)

    def cut(self, end_ms: int) -> list[SortedRun]:
        """Takes out all rows due before `end_ms`."""
        out: list[SortedRun] = []
        for slot in np.flatnonzero(self._first_due < end_ms).tolist():
            out.extend(self._runs(slot).cut(end_ms))
            self._settle(slot)
        self._rows -= sum(map(len, out))
        return out

    def runs_below(self, due_ms: int) -> Iterator[tuple[Int64s, Int64s, Opaque]]:
        """The columns of the rows due before the given time, run by run."""
        for slot in np.flatnonzero(self._first_due < due_ms).tolist():
            yield from self._runs(slot).runs_below(due_ms)

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before the given time."""
        return sum(self._runs(slot).rows_below(due_ms) for slot in np.flatnonzero(self._first_due < due_ms).tolist())

    def drop_behind(self, due_ms: int, sequence: int) -> int:
        """Drops all rows with a key greater than the given one; returns how many."""
        dropped = 0
        for slot in np.flatnonzero(self._first_due != DUE_MS_NONE).tolist():
            dropped += self._runs(slot).drop_behind(due_ms, sequence)
            self._settle(slot)
        self._rows -= dropped
        return dropped

    def find(self, due_ms: Int64s, sequence: Int64s, *, cancel: bool) -> Mask:
        """True where the row with this key is (with `cancel`: was) here, bool[n]; the n keys ascend."""
        held = np.zeros(len(due_ms), np.bool_)
        ticks = due_ms // self._tick_ms
        near = np.flatnonzero(self._first_due[ticks % len(self._slots)] <= due_ms)
        for tick, start, stop in groups(ticks[near]):
            rows = near[start:stop]
            slot = tick % len(self._slots)
            runs = self._slots[slot]
            if runs is None:  # Emptied just now, by the keys of an earlier round.
                continue
            rows_before = len(runs)
            held[rows] = runs.find(due_ms[rows], sequence[rows], cancel=cancel)
            if cancel:  # The count of found keys would be wrong: a caller may name a key twice.
                self._rows -= rows_before - len(runs)
                self._settle(slot)
        return held

    def check_invariants(self) -> None:
        rows = 0
        for slot, runs in enumerate(self._slots):
            if runs is None:
                assert self._first_due[slot] == DUE_MS_NONE
                continue
            runs.check_invariants()
            assert len(runs) > 0, "an empty slot holds nothing"
            assert self._first_due[slot] == runs.first_due_ms
            rows += len(runs)
            for run in runs:
                ticks = run.due_ms[run.head :] // self._tick_ms
                assert (ticks % len(self._slots) == slot).all()
        assert rows == self._rows

    def _runs(self, slot: int) -> SortedRuns:
        runs = self._slots[slot]
        assert runs is not None, "first_due names a slot that is empty"
        return runs

    def _settle(self, slot: int) -> None:
        runs = self._runs(slot)
        self._first_due[slot] = runs.first_due_ms
        if not len(runs):
            self._slots[slot] = None
