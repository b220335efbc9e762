"""Where in a file a sequence lies: a sparse table of stretches of records. In memory, rebuilt from headers."""

from __future__ import annotations

import numpy as np

from store.records.batches import I64
from store.records.segment import FILE_HEADER_BYTES

# A lookup reads one stretch; so long that a table of a file of a gigabyte has 16 thousand entries (512 KiB).
STRETCH_BYTES = 64 << 10
# Beyond every sequence: a gap that reaches to the end of the file.
EVERYTHING = 1 << 62
Gap = tuple[int, int]
"""The last sequence before damage and the first one behind it: whatever lies between may stand in it."""


class SequenceMap:
    """Stretches of records with ascending sequences: first and last sequence, start and stop offset.

    One thread adds; others may look up beside it, because a snapshot of the arrays is never changed below its length,
    except for the last stretch, which only grows.
    """

    __slots__ = ("_count", "_passed_over", "_table", "end", "gaps", "last_sequence")

    def __init__(self) -> None:
        self._table: I64 = np.zeros((4, 64), np.int64)
        self._count = 0
        self._passed_over = False
        self.end = FILE_HEADER_BYTES
        self.last_sequence = 0
        self.gaps: list[Gap] = []

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._table.nbytes

    def add(self, first_sequence: int, last_sequence: int, start: int, stop: int) -> None:
        """Adds a record behind all others. Bytes between them are damage."""
        if start > self.end:
            self.gaps.append((self.last_sequence, first_sequence))
        self.last_sequence = last_sequence
        table, count = self._table, self._count
        if count and not self._passed_over and stop - table[2, count - 1] <= STRETCH_BYTES:
            assert first_sequence > table[1, count - 1]
            table[3, count - 1] = stop
            table[1, count - 1] = last_sequence
        else:
            if count == table.shape[1]:
                table = np.zeros((4, count * 2), np.int64)
                table[:, :count] = self._table
                self._table = table
            table[:, count] = (first_sequence, last_sequence, start, stop)
            self._count = count + 1
        self.end = stop
        self._passed_over = False

    def pass_over(self) -> None:
        """Passes over a record that does not rise. It is damage and part of no stretch: it may hide any sequence not
        found elsewhere."""
        self._passed_over = True
        if (0, EVERYTHING) not in self.gaps:
            self.gaps.append((0, EVERYTHING))

    def stretches(self, sequences: I64) -> I64:
        """Start and stop offsets i64[m, 2] of the stretches that may hold any of these sequences, ascending."""
        if not self._count:  # a crash can leave a file with its header alone
            return np.empty((0, 2), np.int64)
        table = self._table[:, : self._count]
        place = np.searchsorted(table[0], sequences, side="right") - 1
        place = np.unique(place[(place >= 0) & (sequences <= table[1][place])])
        return table[2:, place].T

    def start_behind(self, sequence: int) -> int:
        """The offset of the first stretch with sequences above this one, or the end of all of them."""
        table = self._table[:, : self._count]
        place = int(np.searchsorted(table[1], sequence, side="right"))
        return int(table[2, place]) if place < table.shape[1] else self.end
