"""Rows of a queue that stand side by side. Columns, no clock, no I/O."""

from __future__ import annotations

import numpy as np

from delayserver.state.memory.rows import message_bytes
from wheel.due_rows import DueRows


class Chunk:
    """Rows that stand side by side. It looks for their first and last due time at the first question: a healthy group takes
    its rows before anybody asks."""

    __slots__ = ("_due_range", "rows")

    def __init__(self, rows: DueRows, due_range: tuple[int, int] | None = None) -> None:
        """`due_range`: all rows are due within it, inclusive, if that is known already."""
        self.rows = rows
        self._due_range = due_range

    @property
    def due_range(self) -> tuple[int, int]:
        """All rows are due within it, inclusive."""
        if self._due_range is None:
            self._due_range = int(self.rows.due_ms.min()), int(self.rows.due_ms.max())
        return self._due_range

    def may_hold(self, first_ms: int, last_ms: int) -> bool:
        """Whether some row can be due between two times."""
        first, last = self.due_range
        return first <= last_ms and last >= first_ms

    def part(self, rows: DueRows) -> Chunk:
        """Some of the rows."""
        return Chunk(rows, self._due_range)


def fitting(chunk: DueRows, rows_max: int, bytes_max: int, *, at_least_one: bool) -> tuple[int, int]:
    """How many rows from the front of a chunk fit, and their bytes."""
    sizes = message_bytes(chunk.payload[:rows_max])
    whole = int(sizes.sum())
    if whole <= bytes_max:
        return len(sizes), whole
    total = np.cumsum(sizes)
    stop = int(np.searchsorted(total, bytes_max, side="right"))
    if stop == 0 and at_least_one:
        stop = 1
    return stop, int(total[stop - 1]) if stop else 0
