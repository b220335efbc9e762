"""The cells of a latency report, and how they are grouped into figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops.audit.histogram import POINTS, Bucket, points_of
from ops.audit.latency_cells import HOUR_MS, MINUTE
from ops.audit.latency_totals import TOTALS, LatencyTotals, totals_of

Row = dict[str, Any]


class Groups:
    """Figures in microseconds by some keys: count, early, within, max_us, p50_us to p999_us; ascending by the keys."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def count(self) -> int:
        """The number of groups."""
        return len(self._rows)

    def rows(self) -> list[Row]:
        """All groups by their keys."""
        return self._rows

    def first(self, rows_max: int) -> list[Row]:
        """The first groups by their keys."""
        return self._rows[:rows_max]

    def largest(self, values: Sequence[str], rows_max: int) -> list[Row]:
        """The groups with the largest values."""
        # The sort is stable, so groups of the same values stay in the order of their keys.
        return sorted(self._rows, key=lambda row: [-row[name] for name in values])[:rows_max]


class Cells:
    """The cells of one report, an Arrow table as `read_cells` gives it."""

    def __init__(self, cells: pa.Table) -> None:
        self._cells = cells

    def totals(self) -> LatencyTotals:
        """The cells that do not grow with the data."""
        kinds = pa.array(TOTALS)
        return totals_of(self._cells.filter(pc.is_in(self._cells["kind"], kinds)).to_pylist())

    def groups(self, kind: str, keys: tuple[str, ...]) -> Groups:
        """The cells of a kind by these columns. Hours are made from minutes."""
        cells = self._cells.filter(pc.equal(self._cells["kind"], kind))
        if kind == MINUTE and "hour_ms" in keys:
            minute_ms = cells["minute_ms"].to_numpy()
            hour_ms = pa.array(minute_ms - np.mod(minute_ms, HOUR_MS))
            cells = cells.set_column(cells.schema.get_field_index("hour_ms"), "hour_ms", hour_ms)
        sums = [("count", "sum"), ("early", "sum"), ("within", "sum"), ("max_us", "max")]
        by_bucket = cells.group_by([*keys, "bucket"], use_threads=False).aggregate(sums)
        rows = sorted(by_bucket.to_pylist(), key=lambda row: (_order(row, keys), row["bucket"]))
        return Groups(list(_figures(rows, keys)))


def _order(row: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """The place of a row by its keys: null comes first."""
    return [(row[key] is not None, row[key] if row[key] is not None else 0) for key in keys]


def _figures(rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> Iterator[Row]:
    """The figures of each group, from its buckets in ascending order."""
    for _, found in groupby(rows, key=lambda row: [row[key] for key in keys]):
        buckets = list(found)
        points = points_of(Bucket(row["bucket"], row["count_sum"], row["max_us_max"]) for row in buckets)
        yield {
            **{key: buckets[0][key] for key in keys},
            **{name: sum([row[f"{name}_sum"] for row in buckets]) for name in ("count", "early", "within")},
            "max_us": max([row["max_us_max"] for row in buckets]),
            **{f"{name}_us": points[name] for name in POINTS},
        }
