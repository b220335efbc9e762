"""The hashed timing wheel: which rows are due next, for millions of rows, in microseconds per batch.

The idea (G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987, scheme 6): time is cut into
ticks, and an array of slots is laid around like the face of a clock. A timer that is due in tick t lies in slot t mod
slots, so that starting one costs the same however many there are. A hand moves on by one slot per tick. The timers in
its slot are due, except for those of a later round. The paper gives each timer a count of rounds, which each visit lowers
by one.

    tick      0     1     2           8190  8191
            +-----+-----+-----+ ... +-----+-----+
    slots   | A F |     | B   |     |     | C   |     A due in tick 0, F in tick 8192: same slot, next round
            +-----+-----+-----+ ... +-----+-----+
    spans   [ D D D D D D D ][ D D D E E ] ...        D, E: batches spread over many ticks, one run per span
    loose   [ D  E ]                                  small batches spread wide, until they are worth cutting
    current   everything due before `current_end`, as sorted runs: rows leave from here only

Differences, and their reasons:

1. A slot holds *sorted runs of columns*, not a list of timers. A batch is sorted once and cut at tick boundaries; no
   step handles one row. The exact due time stands in each row, so rounds need no counter: the slot's rows of this
   round are its first.
2. No tick is rounded. The slot says only where to look; a row leaves when `due_ms <= now_ms`, compared exactly. The
   paper's wheel fires a timer of an exact tick up to one tick early or late, depending on how it rounds.
3. There is no hand that must visit each slot. A column with the first due time of every slot gives the next one to
   visit (`argmin`, 1 µs), so empty stretches cost nothing, a jump of the clock is one step, and a clock that goes
   back does no harm.
4. A batch spread over thousands of ticks (a window loaded from disk) is not cut into thousands of pieces. It is cut
   into *spans* of 32 ticks, as in the paper's hierarchical scheme 7, and its rows move on tick by tick when their
   span has begun. Small batches of that kind are gathered in `loose` until there are enough rows to cut them at once.
5. A slot with a million rows is not emptied at once. Due runs wait in `current`, and `advance` takes the first
   rows_max rows out of them by an exact k-way selection that touches only the runs it needs (see `runs.py`).

Cancelled rows are marked, and copied away when they fill half of a run: of a million rows, most of which are
cancelled before they are due, none is moved more than a few times.

Pure: no clock (the caller says what time it is), no I/O, no callbacks. Not thread-safe: one owner.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheel.due_rows import DueRows
from wheel.keys import DUE_MS_NONE, Int64s, Mask, groups, key_order, rows_through
from wheel.runs import RUN_ROWS_MAX, SortedRuns
from wheel.sorted_run import Opaque, SortedRun, merge_columns
from wheel.span_runs import SpanRuns
from wheel.tick_slots import TickSlots

SPAN_TICKS: Final = 32
"""Ticks per span: a minute of 10 ms ticks is 188 spans, so a batch spread over it is cut into 188 pieces, not 6,000."""

NARROW_TICKS: Final = 8
"""A batch of at most this many ticks goes to the slots, whatever its size."""

LOOSE_ROWS_PER_SPAN: Final = 32
"""A wide batch with fewer rows per span waits in `loose`: cut at once, its pieces would cost more than its rows."""

LOOSE_ROWS_MAX: Final = RUN_ROWS_MAX
"""Rows in `loose` before they are cut into spans: that call then costs 2 ms."""

NARROW_ROWS: Final = 256
"""A batch with at least this many rows per tick goes to the slots: a piece costs 5 µs, 20 ns a row at this size."""


class HashedWheel:
    """Rows by due time.

    `start_ms` is the time at creation, only a hint where rows already due belong. `tick_ms` is the width of a slot, and
    `slots` the number of slots: one round is tick_ms · slots, 82 s by default. `payload_dtype` is the dtype of the payload
    column, opaque here; it may not hold Python objects. Keys (due_ms, sequence) of the rows held must be unique,
    which the caller sees to.
    """

    def __init__(self, start_ms: int, tick_ms: int = 10, slots: int = 8192, *, payload_dtype: npt.DTypeLike) -> None:
        if tick_ms < 1 or slots < 1:
            raise ValueError(f"tick_ms and slots must be at least 1, not {tick_ms} and {slots}")
        self._payload_dtype: np.dtype[Any] = np.dtype(payload_dtype)
        if self._payload_dtype.hasobject or not self._payload_dtype.itemsize:
            raise ValueError(f"the payload must be plain bytes of a fixed width, not {self._payload_dtype}")
        self._opaque = np.dtype((np.void, self._payload_dtype.itemsize))
        self._tick_ms = tick_ms
        self._span_ms = tick_ms * SPAN_TICKS
        self._current = SortedRuns()
        self._current_end_ms = start_ms // tick_ms * tick_ms
        self._loose = SortedRuns()
        self._slots = TickSlots(tick_ms, slots)
        self._spans = SpanRuns(self._span_ms)

    def __len__(self) -> int:
        """Rows held."""
        return len(self._current) + len(self._loose) + len(self._slots) + len(self._spans)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held. The arrays take up to twice that: what is half consumed is copied only then."""
        return len(self) * (16 + self._payload_dtype.itemsize)

    def add(self, due_ms: Int64s, sequence: Int64s, payload: npt.NDArray[Any]) -> None:
        """Takes in n rows in any order and due at any time: i64[n], i64[n], payload_dtype[n]. The columns are copied.

        Raises ValueError for columns of different lengths or another dtype, or a due time of 2**63 - 1.
        """
        self._check_columns(due_ms, sequence, payload)
        opaque = np.ascontiguousarray(payload).view(self._opaque)
        order = key_order(due_ms, sequence)
        if order is not None:
            due_ms, sequence, opaque = due_ms.take(order), sequence.take(order), opaque.take(order)
        start = int(due_ms.searchsorted(self._current_end_ms)) if len(due_ms) else 0
        for chunk in _chunks(due_ms, sequence, opaque, 0, start):
            self._current.add(chunk)
        if start < len(due_ms):
            self._add_later(due_ms[start:], sequence[start:], opaque[start:])

    def advance(self, now_ms: int, rows_max: int) -> DueRows:
        """Takes out the first `rows_max` rows with due_ms <= now_ms, in (due_ms, sequence) order.

        Fewer than `rows_max` rows mean that no more are due. `now_ms` may be less than before: then only what is due
        by that time comes out. The caller owns the columns and may write to them. Columns that are most of the arrays of a
        run are views of these arrays.
        """
        if rows_max < 1:
            raise ValueError(f"rows_max must be at least 1, not {rows_max}")
        while len(self._current) < rows_max:
            first_due_ms = self._later_due_ms()
            if first_due_ms > now_ms:
                break
            self._move_current_end(first_due_ms, now_ms)
        taken = self._current.take(now_ms, rows_max)
        if taken is None:
            return DueRows.empty(self._payload_dtype)
        return DueRows(taken.due_ms, taken.sequence, taken.payload.view(self._payload_dtype))

    def next_due_ms(self) -> int | None:
        """The earliest due time of all rows held, exactly; None where there are none."""
        first_due_ms = min(self._current.first_due_ms, self._later_due_ms())
        return None if first_due_ms == DUE_MS_NONE else first_due_ms

    def runs_below(self, due_ms: int) -> list[DueRows]:
        """The rows due before the given time as they lie: sorted runs, in no order between them. They stay in the wheel.

        Nothing is copied: the columns are views, and the caller must not write to them. They keep their content whatever
        happens to the wheel, except that the owner of rows that left it may write to the payload. Cancelled rows may be
        among them.
        """
        return [
            DueRows(run_due_ms, sequence, payload.view(self._payload_dtype))
            for part in (self._current, *self._later())
            for run_due_ms, sequence, payload in part.runs_below(due_ms)
        ]

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before the given time; costs one binary search per run that begins before it."""
        return sum(part.rows_below(due_ms) for part in (self._current, *self._later()))

    def contains(self, due_ms: Int64s, sequence: Int64s) -> Mask:
        """True for each of n keys, i64[n] and i64[n] in any order, whose row is held: bool[n]."""
        return self._find(due_ms, sequence, cancel=False)

    def cancel(self, due_ms: Int64s, sequence: Int64s) -> Mask:
        """Removes the rows with the given n keys, in any order. True where the row was held: bool[n].

        A key given twice is True twice, for its row was held when the call came.
        """
        return self._find(due_ms, sequence, cancel=True)

    def evict_after(self, due_ms: int, sequence: int) -> int:
        """Drops all rows with a key greater than the given one and frees their memory; returns how many they were."""
        return sum(part.drop_behind(due_ms, sequence) for part in (self._current, *self._later()))

    def evict_between(self, due_ms: int, sequence: int, until_ms: int) -> int:
        """Drops the rows with a key greater than the given one that are due before `until_ms`; returns how many they were.
        Costs a look at all rows that are due before `until_ms`."""
        dropped = 0
        for rows in self.runs_below(until_ms):
            start = rows_through(rows.due_ms, rows.sequence, due_ms, sequence)
            if start < len(rows):
                dropped += int(self.cancel(rows.due_ms[start:], rows.sequence[start:]).sum())
        return dropped

    def check_invariants(self) -> None:
        """Asserts what must hold between operations; costs a walk over all rows."""
        for part in (self._current, *self._later()):
            part.check_invariants()
        assert self._current_end_ms % self._tick_ms == 0
        assert all(run.last[0] < self._current_end_ms for run in self._current)
        assert self._later_due_ms() >= self._current_end_ms
        assert len(self._loose) < LOOSE_ROWS_MAX

    def _later(self) -> tuple[SortedRuns, TickSlots, SpanRuns]:
        """The parts that hold the rows due at or after `current_end`."""
        return self._loose, self._slots, self._spans

    def _later_due_ms(self) -> int:
        return min(self._loose.first_due_ms, self._slots.first_due_ms, self._spans.first_due_ms)

    def _check_columns(self, due_ms: Int64s, sequence: Int64s, payload: npt.NDArray[Any]) -> None:
        if not len(due_ms) == len(sequence) == len(payload):
            raise ValueError(f"columns of {len(due_ms)}, {len(sequence)} and {len(payload)} rows; they must be equal")
        if due_ms.dtype != np.int64 or sequence.dtype != np.int64:
            raise ValueError(f"due_ms and sequence must be int64, not {due_ms.dtype} and {sequence.dtype}")
        if payload.dtype != self._payload_dtype:
            raise ValueError(f"payload must be {self._payload_dtype}, not {payload.dtype}")
        if len(due_ms) and int(due_ms.max()) == DUE_MS_NONE:
            raise ValueError(f"no row may be due at {DUE_MS_NONE}, which stands for no due time")

    def _add_later(self, due_ms: Int64s, sequence: Int64s, payload: Opaque) -> None:
        """Adds sorted rows that are due at or after the end of `current`."""
        ticks = due_ms // self._tick_ms
        ticks_touched = 1 + int(np.count_nonzero(ticks[1:] != ticks[:-1]))
        if ticks_touched <= max(NARROW_TICKS, len(due_ms) // NARROW_ROWS):
            for tick, start, stop in groups(ticks):
                for chunk in _chunks(due_ms, sequence, payload, start, stop):
                    self._slots.add(tick, chunk)
        else:
            self._add_wide(due_ms, sequence, payload)

    def _add_wide(self, due_ms: Int64s, sequence: Int64s, payload: Opaque) -> None:
        spans = list(groups(due_ms // self._span_ms))
        if len(due_ms) < min(LOOSE_ROWS_MAX, len(spans) * LOOSE_ROWS_PER_SPAN):
            for chunk in _chunks(due_ms, sequence, payload, 0, len(due_ms)):
                self._loose.add(chunk)
            if len(self._loose) < LOOSE_ROWS_MAX:
                return
            loose = merge_columns([run.columns(run.head, run.allocated_rows) for run in self._loose])
            self._loose = SortedRuns()
            due_ms, sequence, payload = loose.due_ms, loose.sequence, loose.payload
            spans = list(groups(due_ms // self._span_ms))
        for span, start, stop in spans:
            for chunk in _chunks(due_ms, sequence, payload, start, stop):
                self._spans.add(span, chunk)

    def _move_current_end(self, first_due_ms: int, now_ms: int) -> None:
        """Moves the rows of the next tick into `current`, or of the next span where all of it is due."""
        end_ms = (first_due_ms // self._span_ms + 1) * self._span_ms
        if end_ms > now_ms + 1:
            end_ms = (first_due_ms // self._tick_ms + 1) * self._tick_ms
        for part in self._later():
            self._current.extend(part.cut(end_ms))
        self._current_end_ms = end_ms

    def _find(self, due_ms: Int64s, sequence: Int64s, *, cancel: bool) -> Mask:
        if len(due_ms) != len(sequence):
            raise ValueError(f"columns of {len(due_ms)} and {len(sequence)} keys; they must be equal")
        order = key_order(due_ms, sequence)
        if order is not None:
            due_ms, sequence = due_ms.take(order), sequence.take(order)
        start = int(due_ms.searchsorted(self._current_end_ms))
        held = np.zeros(len(due_ms), np.bool_)
        held[:start] = self._current.find(due_ms[:start], sequence[:start], cancel=cancel)
        for part in self._later():
            held[start:] |= part.find(due_ms[start:], sequence[start:], cancel=cancel)
        if order is None:
            return held
        found = np.empty_like(held)
        found[order] = held
        return found


def _chunks(due_ms: Int64s, sequence: Int64s, payload: Opaque, start: int, stop: int) -> list[SortedRun]:
    """Rows [start, stop) as runs that own their memory: a view would keep a whole batch alive for its last row."""
    return [
        SortedRun(due_ms[rows].copy(), sequence[rows].copy(), payload[rows].copy())
        for rows in (slice(at, min(at + RUN_ROWS_MAX, stop)) for at in range(start, stop, RUN_ROWS_MAX))
    ]
