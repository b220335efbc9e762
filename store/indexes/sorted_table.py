"""A table of integer keys and values in sorted runs: whole arrays are added and looked up, no row is an object.

New rows are sorted into a run of their own, and a run is merged with its elder when it is a quarter of it or more. So
there are few runs (the logarithm to base four of the rows), and each row is merged as often. The idea of a
log-structured merge tree (O'Neil et al., 1996), in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MERGE_RATIO = 4
# Added rows are kept unsorted up to this many parts, then sorted, so that the list is bounded.
_PARTS_MAX = 1024


class SortedTable:
    """A multimap: equal keys keep the order in which they were added, across runs too (older runs come first)."""

    __slots__ = ("_key_dtype", "_parts", "_runs", "_value_dtype", "rows")

    def __init__(self, key_dtype: DTypeLike, value_dtype: DTypeLike) -> None:
        self._key_dtype = np.dtype(key_dtype)
        self._value_dtype = np.dtype(value_dtype)
        self._runs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._parts: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """Memory of the rows."""
        return self.rows * (self._key_dtype.itemsize + self._value_dtype.itemsize)

    def add(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Add n rows; the arrays are copied."""
        if len(keys):
            self._parts.append((np.array(keys, self._key_dtype), np.array(values, self._value_dtype)))
            self.rows += len(keys)
            if len(self._parts) > _PARTS_MAX:
                self.runs()

    def runs(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """All rows as runs of (ascending keys, their values), the oldest first."""
        if self._parts:
            self._runs.append(_sorted(self._parts))
            self._parts = []
            while len(self._runs) > 1 and len(self._runs[-1][0]) * _MERGE_RATIO >= len(self._runs[-2][0]):
                self._runs[-2:] = [_sorted(self._runs[-2:])]
        return self._runs

    def first(self, keys: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """For each of n keys whether it is there (bool[n]), and the value that was added first (0 if none)."""
        found = np.zeros(len(keys), np.bool_)
        values = np.zeros(len(keys), self._value_dtype)
        for run_keys, run_values in self.runs():
            place = np.searchsorted(run_keys, keys)
            place[place == len(run_keys)] = 0
            hits = run_keys[place] == keys
            hits &= ~found
            values[hits] = run_values[place[hits]]
            found |= hits
        return found, values

    def all_matches(self, keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Every row with one of n keys: positions in `keys` i64[m] and values [m], older ones first for each run."""
        positions, values = [np.zeros(0, np.int64)], [np.zeros(0, self._value_dtype)]
        for run_keys, run_values in self.runs():
            left = np.searchsorted(run_keys, keys)
            inside = np.flatnonzero(left < len(run_keys))
            hits = inside[run_keys[left[inside]] == keys[inside]]
            if len(hits):
                start = left[hits]
                counts = np.searchsorted(run_keys, keys[hits], side="right") - start
                step = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
                positions.append(np.repeat(hits, counts))
                values.append(run_values[np.repeat(start, counts) + step])
        return np.concatenate(positions), np.concatenate(values)

    def check_invariants(self) -> None:
        """Runs are sorted, geometric, and hold all rows."""
        runs = self.runs()
        assert sum(len(keys) for keys, _ in runs) == self.rows
        for keys, values in runs:
            assert len(keys) == len(values) and bool((keys[1:] >= keys[:-1]).all())
        for (elder, _), (younger, _) in pairwise(runs):
            assert len(younger) * _MERGE_RATIO < len(elder)


def _sorted(parts: list[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    keys, values = parts[0]
    if len(parts) > 1:
        keys = np.concatenate([part_keys for part_keys, _ in parts])
        values = np.concatenate([part_values for _, part_values in parts])
    if bool((keys[1:] >= keys[:-1]).all()):
        return keys, values
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]
