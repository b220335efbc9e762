"""One sorted run: columns in (due_ms, sequence) order, consumed from the front.

A run is the wheel's only storage. It holds arrays, a head index, and a mask of cancelled rows where there are any. The
row at the head is always alive, so that the first key is exact. Other modules decide how runs are merged and where they
lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wheel.keys import Int64s, Mask, Positions, key_order, keys_sorted, rows_through
from wheel.packed_keys import PackedKeys

Opaque = npt.NDArray[np.void]
"""Payloads inside the wheel: plain void of the same size, which numpy copies ten times faster than structured rows."""

RELEASE_ROWS_MIN = 64
"""Below this many rows an array is too small for its unused part to matter."""


class SortedRun:
    """Columns `due_ms` i64[n], `sequence` i64[n], `payload` void[n]; rows before `head` have left, `dead` ones too."""

    __slots__ = (
        "_dead",
        "_dead_rows",
        "_packed",
        "due_ms",
        "first_due_ms",
        "first_sequence",
        "head",
        "payload",
        "sequence",
    )

    def __init__(self, due_ms: Int64s, sequence: Int64s, payload: Opaque, dead: Mask | None = None) -> None:
        self.due_ms = due_ms
        self.sequence = sequence
        self.payload = payload
        self._dead = dead
        self._dead_rows = 0 if dead is None else int(np.count_nonzero(dead))
        self._packed: PackedKeys | None = None  # Made by the first look for a key.
        self.head = 0
        self.first_due_ms = self.first_sequence = 0
        self._move_head(0)

    def __len__(self) -> int:
        return len(self.due_ms) - self.head - self._dead_rows

    @property
    def allocated_rows(self) -> int:
        return len(self.due_ms)

    @property
    def kept_rows(self) -> int:
        """Rows of the arrays that a view of this one keeps in memory."""
        owner = self.due_ms.base
        return len(self.due_ms if owner is None else owner)

    @property
    def first(self) -> tuple[int, int]:
        return self.first_due_ms, self.first_sequence

    @property
    def last(self) -> tuple[int, int]:
        """A key that no row of the run exceeds (the last row itself may be cancelled)."""
        return int(self.due_ms[-1]), int(self.sequence[-1])

    def position_due(self, due_ms: int) -> int:
        """The position behind the last row due at or before the given time."""
        return max(self.head, int(self.due_ms.searchsorted(due_ms, "right")))

    def position_through(self, due_ms: int, sequence: int) -> int:
        """The position behind the last row whose key is at most the given one."""
        return max(self.head, rows_through(self.due_ms, self.sequence, due_ms, sequence))

    def rows_between(self, start: int, stop: int) -> int:
        """Living rows in positions [start, stop), start at or behind the head."""
        return stop - start - (0 if self._dead is None else int(np.count_nonzero(self._dead[start:stop])))

    def columns(self, start: int, stop: int) -> tuple[Int64s, Int64s, Opaque]:
        """The living rows in positions [start, stop): views where none is cancelled."""
        columns = self.due_ms[start:stop], self.sequence[start:stop], self.payload[start:stop]
        if self._dead is None or not self._dead[start:stop].any():
            return columns
        alive = np.flatnonzero(~self._dead[start:stop])
        return columns[0].take(alive), columns[1].take(alive), columns[2].take(alive)

    def samples(self, stop: int, stride: int) -> tuple[Int64s, Int64s]:
        """The keys of every stride-th row from the head to `stop`: each stands for the `stride` rows up to it."""
        rows = slice(self.head + stride - 1, stop, stride)
        return self.due_ms[rows], self.sequence[rows]

    def drop_front(self, stop: int) -> None:
        """Drops the rows before position `stop`, which have left."""
        if self._dead is not None:
            self._dead_rows -= int(np.count_nonzero(self._dead[self.head : stop]))
        self._move_head(stop)

    def cut_front(self, stop: int) -> SortedRun:
        """Takes the rows before position `stop` out, as a run of their own that shares the arrays."""
        rows = slice(self.head, stop)
        dead = None if self._dead is None else self._dead[rows]
        front = SortedRun(self.due_ms[rows], self.sequence[rows], self.payload[rows], dead)
        self.drop_front(stop)
        return front

    def drop_behind(self, due_ms: int, sequence: int) -> int:
        """Drops the rows with a greater key; returns how many living ones that were."""
        stop = self.position_through(due_ms, sequence)
        dropped = self.rows_between(stop, len(self.due_ms))
        self._packed = None
        if self._dead is not None:
            self._dead = self._dead[:stop]
            self._dead_rows = int(np.count_nonzero(self._dead[self.head :]))
        self.due_ms, self.sequence, self.payload = self.due_ms[:stop], self.sequence[:stop], self.payload[:stop]
        if dropped and len(self):  # The arrays are views of the old ones now.
            self._rebuild()
        return dropped

    def find(self, due_ms: Int64s, sequence: Int64s) -> Positions:
        """For each of n keys between the first and the last of the run the position of its living row, or -1: intp[n]."""
        if self._packed is None:
            self._packed = PackedKeys.of(self.due_ms, self.sequence)
        at = self._packed.lower_bounds(due_ms, sequence)
        near = np.minimum(at, len(self.due_ms) - 1)
        found = (self.due_ms[near] == due_ms) & (self.sequence[near] == sequence)
        if self._dead is not None:
            found &= ~self._dead[near]
        return np.where(found, near, -1)

    def cancel(self, positions: Positions) -> None:
        """Marks the rows at the given positions as gone."""
        if self._dead is None:
            self._dead = np.zeros(len(self.due_ms), np.bool_)
        self._dead[positions] = True  # A run cut from another shares its mask, but never the same rows of it.
        self._dead_rows = int(np.count_nonzero(self._dead[self.head :]))
        self._move_head(self.head)

    def release(self) -> int:
        """Copies the living rows where they fill less than half of the arrays; returns how many rows were copied."""
        if not len(self) or self.allocated_rows < RELEASE_ROWS_MIN or 2 * len(self) >= self.allocated_rows:
            return 0
        self._rebuild()
        return len(self)

    def check_invariants(self) -> None:
        assert len(self.due_ms) == len(self.sequence) == len(self.payload)
        assert len(self) > 0, "an empty run is let go, not kept"
        assert keys_sorted(self.due_ms, self.sequence)
        assert self.first == (int(self.due_ms[self.head]), int(self.sequence[self.head]))
        if self._dead is None:
            assert self._dead_rows == 0
        else:
            assert len(self._dead) == len(self.due_ms) and not self._dead[self.head]
            assert self._dead_rows == np.count_nonzero(self._dead[self.head :])

    def _rebuild(self) -> None:
        due_ms, sequence, payload = self.columns(self.head, len(self.due_ms))
        self.due_ms, self.sequence, self.payload = due_ms.copy(), sequence.copy(), payload.copy()
        self._dead, self._dead_rows, self._packed, self.head = None, 0, None, 0

    def _move_head(self, head: int) -> None:
        if self._dead is not None and head < len(self.due_ms) and self._dead[head]:
            gone = self._dead[head:]
            skipped = len(gone) if gone.all() else int(gone.argmin())
            self._dead_rows -= skipped
            head += skipped
        self.head = head
        if head < len(self.due_ms):
            self.first_due_ms = int(self.due_ms[head])
            self.first_sequence = int(self.sequence[head])


def merge_columns(parts: Sequence[tuple[Int64s, Int64s, Opaque]], rows_max: int | None = None) -> SortedRun:
    """One new run with the first `rows_max` rows of all parts, by key; it owns its arrays. `parts` is not empty."""
    due_ms = np.concatenate([part[0] for part in parts])
    sequence = np.concatenate([part[1] for part in parts])
    payload = np.concatenate([part[2] for part in parts])
    order = key_order(due_ms, sequence)
    if order is None:
        if rows_max is None or rows_max >= len(due_ms):
            return SortedRun(due_ms, sequence, payload)
        return SortedRun(due_ms[:rows_max].copy(), sequence[:rows_max].copy(), payload[:rows_max].copy())
    order = order[:rows_max]
    return SortedRun(due_ms.take(order), sequence.take(order), payload.take(order))
