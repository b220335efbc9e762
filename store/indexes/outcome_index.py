"""An index of the outcomes of a window by sequence, in memory. The loader skips its messages, and a lookup reads it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.indexes.sorted_table import SortedTable
from store.records.batches import I64, U8


class OutcomeIndex:
    """Sequence to outcome code (u8, never 0) and origin. The first outcome of a sequence counts (one per message)."""

    __slots__ = ("_origins", "_outcomes")

    def __init__(self) -> None:
        self._outcomes = SortedTable(np.int64, np.uint8)
        self._origins = SortedTable(np.int64, np.int64)

    def __len__(self) -> int:
        return self._outcomes.rows

    @property
    def nbytes(self) -> int:
        """Memory held: 9 bytes an outcome, 16 more for one with an origin."""
        return self._outcomes.nbytes + self._origins.nbytes

    def add(self, sequence: I64, outcome: U8, origin_sequence: I64 | None = None) -> None:
        """Outcomes of n rows; `origin_sequence` 0 for rows without one (or None for all of them)."""
        assert bool((outcome != 0).all()), "0 says that there is no outcome"
        self._outcomes.add(sequence, outcome)
        if origin_sequence is not None:
            some = origin_sequence != 0
            if bool(some.any()):
                self._origins.add(sequence[some], origin_sequence[some])

    def lookup(self, sequence: I64) -> U8:
        """Outcome codes u8[n]; 0 where there is none."""
        _, codes = self._outcomes.first(sequence)
        return codes

    def origins(self, sequence: I64) -> I64:
        """Origin sequences i64[n]; 0 where there is none."""
        _, origins = self._origins.first(sequence)
        return origins

    def missing(self, sequence: I64) -> NDArray[np.bool_]:
        """True where a sequence has no outcome, bool[n]."""
        found, _ = self._outcomes.first(sequence)
        return ~found

    def check_invariants(self) -> None:
        """For tests."""
        self._outcomes.check_invariants()
        self._origins.check_invariants()
