"""The balance of rule 3: accepted = delivered + cancelled + dead-lettered + expired + deduplicated + rolled back + pending.

Counts per subject, of one window or of all; internal records are kept beside it, in `internal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from store.records.batches import I64, U8, U32

ACCEPTED, PENDING, INTERNAL = 0, 7, 8
COUNTERS: Final = (
    "accepted", "delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back", "pending",
    "internal",
)  # fmt: skip
# Column of each outcome code, 0 where the code can be no end of a message.
COLUMN_OF_OUTCOME: Final = np.zeros(256, np.int64)
for _column, _outcome in enumerate(
    (
        Outcome.DELIVERED, Outcome.CANCELLED, Outcome.DEAD_LETTERED, Outcome.EXPIRED, Outcome.DEDUPLICATED,
        Outcome.ROLLED_BACK,
    ),
    1,
):  # fmt: skip
    COLUMN_OF_OUTCOME[int(_outcome)] = _column
_WIDTH = len(COUNTERS)


# Codes count up from 1, so a table of this many is dense. Beyond it only bytes of another writer lead; each such code
# then costs an entry of a dict, not a table as long as the code is high.
_DENSE_MAX: Final = 1 << 22


class SubjectBalances:
    """A matrix i64[subjects, 9] that grows with the highest subject code met."""

    def __init__(self) -> None:
        self._counts: I64 = np.zeros((16, _WIDTH), np.int64)
        self._beyond: dict[int, I64] = {}

    def _room(self, subject: int) -> None:
        if subject >= len(self._counts):
            grown = np.zeros((min(max(subject + 1, 2 * len(self._counts)), _DENSE_MAX), _WIDTH), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown

    def add(self, column: int, subjects: U32) -> None:
        """Count rows (their subjects u32[n]) in one column."""
        if not len(subjects):
            return
        first = int(subjects[0])
        if subjects.strides == (0,) or bool((subjects == first).all()):
            self._row(first)[column] += len(subjects)
            return
        highest = int(subjects.max())
        if highest < max(_DENSE_MAX >> 6, len(subjects)):
            self._room(highest)
            counted = np.bincount(subjects)
            self._counts[: len(counted), column] += counted
            return
        codes, counts = np.unique(subjects, return_counts=True)
        dense = int(np.searchsorted(codes, _DENSE_MAX))
        if dense:
            self._room(int(codes[dense - 1]))
            self._counts[codes[:dense], column] += counts[:dense]
        for code, count in zip(codes[dense:].tolist(), counts[dense:].tolist(), strict=True):
            self._row(code)[column] += count

    def _row(self, subject: int) -> I64:
        if subject < _DENSE_MAX:
            self._room(subject)
            row: I64 = self._counts[subject]
            return row
        return self._beyond.setdefault(subject, np.zeros(_WIDTH, np.int64))

    def add_outcomes(self, outcomes: U8, subjects: U32) -> None:
        """Count outcome rows by their codes u8[n]; codes that are none are left out."""
        columns = COLUMN_OF_OUTCOME[outcomes]
        for column in np.unique(columns).tolist():
            if column:
                self.add(column, subjects[columns == column])

    def add_counts(self, subjects: U32, counts: I64) -> None:
        """Add rows i64[n, 9] of these subjects u32[n], each once."""
        for subject, row in zip(subjects.tolist(), counts, strict=True):
            self._row(subject)[:] += row

    def merge(self, other: SubjectBalances) -> None:
        """Add all of another one."""
        if len(other._counts) > len(self._counts):
            self._room(len(other._counts) - 1)
        self._counts[: len(other._counts)] += other._counts
        for subject, row in other._beyond.items():
            self._row(subject)[:] += row

    def rows(self) -> tuple[NDArray[np.intp], I64]:
        """Subject codes that have any count, ascending, and their rows i64[n, 9]."""
        subjects = np.flatnonzero(self._counts.any(axis=1))
        beyond = sorted(self._beyond)
        if not beyond:
            return subjects, self._counts[subjects]
        rows = np.array([self._beyond[subject] for subject in beyond], np.int64)
        return np.concatenate([subjects, beyond]).astype(np.intp), np.concatenate([self._counts[subjects], rows])

    def totals(self) -> I64:
        """The sum over all subjects, i64[9]."""
        totals: I64 = self.rows()[1].sum(axis=0)
        return totals

    def unbalanced(self) -> Iterator[tuple[int, int, int]]:
        """(subject, accepted, sum of what became of them) where the two differ."""
        subjects, counts = self.rows()
        sums = counts[:, 1:INTERNAL].sum(axis=1)
        for place in np.flatnonzero(sums != counts[:, ACCEPTED]).tolist():
            yield int(subjects[place]), int(counts[place, ACCEPTED]), int(sums[place])


def to_map(counts: I64) -> dict[str, Any]:
    """One row i64[9] by the names of its counters."""
    return dict(zip(COUNTERS, counts.tolist(), strict=True))
