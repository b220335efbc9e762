"""One wheel for each broker group behind one face, so that a hot second of one group does not stand before the others.

A single wheel gives out rows in due order: what is due a millisecond after a million others would wait for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from delayserver.routes import Routes
from wheel.due_rows import DueRows
from wheel.hashed_wheel import HashedWheel

I64 = NDArray[np.int64]


class GroupWheels:
    """Rows by the group that their subject is routed to; subjects without a route go to the first group."""

    def __init__(self, wheels: dict[int, HashedWheel], routes: Routes) -> None:
        self._wheels = wheels
        self._routes = routes
        self._default = next(iter(wheels))

    def __len__(self) -> int:
        return sum([len(wheel) for wheel in self._wheels.values()])

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return sum([wheel.nbytes for wheel in self._wheels.values()])

    def codes(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The group code of each subject code, u32[n]."""
        codes = self._routes.groups(np.ascontiguousarray(subjects))
        return np.where(codes == 0, np.uint32(self._default), codes) if len(codes) and not codes.all() else codes

    def add(self, due_ms: I64, sequence: I64, rows: NDArray[np.void]) -> None:
        """Rows in any order; see `HashedWheel.add`."""
        if len(self._wheels) == 1:
            self._wheels[self._default].add(due_ms, sequence, rows)
            return
        codes = self.codes(rows["subject"])
        for code in np.unique(codes).tolist():
            mine = np.flatnonzero(codes == code)
            self._wheels[code].add(due_ms[mine], sequence[mine], rows[mine])

    def advance(self, now_ms: int, rows_max: int) -> Iterator[tuple[int, DueRows]]:
        """A slice of what is due for each group that has any: (group code, rows). Call again until nothing comes."""
        for code, wheel in self._wheels.items():
            rows = wheel.advance(now_ms, rows_max)
            if len(rows):
                yield code, rows

    def next_due_ms(self) -> int | None:
        """The earliest due time held."""
        dues = [due for wheel in self._wheels.values() if (due := wheel.next_due_ms()) is not None]
        return min(dues, default=None)

    def runs_below(self, due_ms: int) -> Iterator[tuple[int, list[DueRows]]]:
        """For each group the runs that are due before a time, which stay; see `HashedWheel.runs_below`."""
        for code, wheel in self._wheels.items():
            yield code, wheel.runs_below(due_ms)

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before a time."""
        return sum([wheel.rows_below(due_ms) for wheel in self._wheels.values()])

    def contains(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Which rows are held, bool[n]."""
        held = np.zeros(len(sequence), dtype=bool)
        for wheel in self._wheels.values():
            held |= wheel.contains(due_ms, sequence)
        return held

    def cancel(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Remove rows by key; True where one was held, bool[n]."""
        held = np.zeros(len(sequence), dtype=bool)
        for wheel in self._wheels.values():
            held |= wheel.cancel(due_ms, sequence)
        return held

    def evict_after(self, due_ms: int, sequence: int) -> int:
        """Drop all rows behind a key; returns how many."""
        return sum([wheel.evict_after(due_ms, sequence) for wheel in self._wheels.values()])

    def check_invariants(self) -> None:
        """For tests."""
        for wheel in self._wheels.values():
            wheel.check_invariants()
