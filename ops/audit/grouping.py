"""GROUP BY over numpy columns: sums, maxima and minima by several integer keys, with one sort and no step per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[Any]]
_CODES_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with integer `keys`, and values that `grouped` sums up or reduces to the largest or smallest. All arrays
    have the same length."""

    keys: Columns
    sums: Columns
    maxima: Columns = field(default_factory=dict)
    minima: Columns = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.keys.values())))

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns by name."""
        return {**self.keys, **self.sums, **self.maxima, **self.minima}

    def by(self, *keys: str) -> Table:
        """The same rows with only these keys."""
        return replace(self, keys={name: self.keys[name] for name in keys})

    def where(self, wanted: NDArray[np.bool_]) -> Table:
        """The rows where `wanted`, bool[n], is True."""
        if wanted.all():
            return self
        parts = (self.keys, self.sums, self.maxima, self.minima)
        return Table(*[{name: column[wanted] for name, column in part.items()} for part in parts])

    def grouped(self) -> Table:
        """One row for each combination of keys, ascending by the keys."""
        if not len(self):
            return self
        codes = combined(list(self.keys.values()))
        order = np.argsort(codes)
        ordered = codes[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        first = order[starts]
        return Table(
            {name: column[first] for name, column in self.keys.items()},
            _reduced(np.add, self.sums, order, starts),
            _reduced(np.maximum, self.maxima, order, starts),
            _reduced(np.minimum, self.minima, order, starts),
        )


def concatenated(tables: Sequence[Table]) -> Table:
    """The rows of all tables, which have the same columns."""
    first = tables[0]
    if len(tables) == 1:
        return first
    return Table(
        {name: np.concatenate([table.keys[name] for table in tables]) for name in first.keys},
        {name: np.concatenate([table.sums[name] for table in tables]) for name in first.sums},
        {name: np.concatenate([table.maxima[name] for table in tables]) for name in first.maxima},
        {name: np.concatenate([table.minima[name] for table in tables]) for name in first.minima},
    )


def combined(keys: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """One number for each combination of keys, i64[n], in the order of the keys. n is at least 1."""
    codes = np.zeros(len(keys[0]), np.int64)
    size = 1
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        if size * (high - low + 1) > _CODES_MAX:
            # The product would overflow, so the distinct values are numbered instead.
            codes, size = _numbered(codes)
            key, low, high = _numbered(key)[0], 0, len(key) - 1  # noqa: PLW2901 - the same key, numbered
        codes = codes * (high - low + 1) + (key.astype(np.int64, copy=False) - low)
        size *= high - low + 1
    return codes


def _numbered(values: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    found, index = np.unique(values, return_inverse=True)
    return index.astype(np.int64, copy=False), len(found)


def _reduced(
    operation: np.ufunc, columns: Columns, order: NDArray[np.intp], starts: NDArray[np.intp]
) -> dict[str, NDArray[Any]]:
    return {name: operation.reduceat(column[order], starts) for name, column in columns.items()}
