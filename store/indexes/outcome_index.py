"""An index of the outcomes of a window by sequence, in memory. The loader skips its messages, and a lookup reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from store.indexes.sorted_table import SortedTable
from store.records.batches import I64, U8, OutcomeBatch


class OutcomeIndex:
    """Sequence to outcome code (u8, never 0). The first outcome of a sequence counts (one per message)."""

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes = SortedTable(np.int64, np.uint8)

    @classmethod
    def of(cls, batches: Iterable[OutcomeBatch]) -> Self:
        """The outcomes of all rows."""
        index = cls()
        for batch in batches:
            index.add(batch.sequence, batch.outcome)
        return index

    def __len__(self) -> int:
        return self._outcomes.rows

    @property
    def nbytes(self) -> int:
        """Memory held: 9 bytes an outcome."""
        return self._outcomes.nbytes

    def add(self, sequence: I64, outcome: U8) -> None:
        """Adds outcomes of n rows."""
        assert bool((outcome != 0).all()), "0 says that there is no outcome"
        self._outcomes.add(sequence, outcome)

    def lookup(self, sequence: I64) -> U8:
        """Outcome codes u8[n]; 0 where there is none."""
        _, codes = self._outcomes.first(sequence)
        return codes

    def missing(self, sequence: I64) -> NDArray[np.bool_]:
        """True where a sequence has no outcome, bool[n]."""
        found, _ = self._outcomes.first(sequence)
        return ~found

    def check_invariants(self) -> None:
        """For tests."""
        self._outcomes.check_invariants()
