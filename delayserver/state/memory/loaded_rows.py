"""Rows of schedule files on their way into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64
from wheel.keys import KEY_HIGHEST, Key, key_order


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """n rows, ready for the wheel."""

    due_ms: I64
    sequence: I64
    rows: NDArray[Any]
    """Index rows (`rows.py`)."""
    limit: Key = KEY_HIGHEST
    """All rows with keys up to this one are here. A later load reads the rows behind it."""

    def __len__(self) -> int:
        return len(self.sequence)

    def parts(self, rows_max: int) -> Iterator[LoadedRows]:
        """The rows in key order, at most `rows_max` at a time, at least one part. `limit` of a part is the last key of
        it, and KEY_HIGHEST for the last one."""
        if len(self) <= rows_max:
            yield LoadedRows(self.due_ms, self.sequence, self.rows)
            return
        order = key_order(self.due_ms, self.sequence)
        for start in range(0, len(self), rows_max):
            place = slice(start, start + rows_max) if order is None else order[start : start + rows_max]
            due_ms, sequence = self.due_ms[place], self.sequence[place]
            limit = KEY_HIGHEST if start + rows_max >= len(self) else Key(int(due_ms[-1]), int(sequence[-1]))
            yield LoadedRows(due_ms, sequence, self.rows[place], limit)

    @classmethod
    def concatenate(cls, parts: Sequence[LoadedRows]) -> LoadedRows:
        """The rows of all parts (at least one), in order; without their limits."""
        opaque = np.dtype((np.void, parts[0].rows.dtype.itemsize))
        return cls(
            np.concatenate([part.due_ms for part in parts]),
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.rows.view(opaque) for part in parts]).view(parts[0].rows.dtype),
        )

    def take(self, indices: NDArray[np.intp]) -> LoadedRows:
        """The rows at `indices`."""
        return LoadedRows(self.due_ms[indices], self.sequence[indices], self.rows[indices])

    def by_key(self) -> LoadedRows:
        """The rows in key order."""
        return self.take(np.lexsort((self.sequence, self.due_ms)))
