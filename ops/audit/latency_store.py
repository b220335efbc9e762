"""Where the cells of a latency report are, and how they are grouped: with Spark, or in this process for small logs.

Both give the same figures. Spark takes its files apart over many processes, and costs a minute before the first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ops.audit.capture import Captured
from ops.audit.histogram import POINTS, Bucket, percentiles, points_of
from ops.audit.latency_cells import HOUR_MS, MINUTE
from ops.audit.latency_source import CellReader, cell_options, gathered, read_cells
from ops.audit.latency_totals import TOTALS, LatencyTotals, read_totals, totals_of
from ops.audit.log_frames import PACK_BYTES, Range

Row = dict[str, Any]


class Groups(Protocol):
    """Figures in microseconds by some keys: count, early, within, max_us, p50_us to p999_us."""

    def count(self) -> int:
        """The number of groups."""

    def first(self, rows_max: int) -> list[Row]:
        """The first groups in ascending order of their keys."""

    def largest(self, values: Sequence[str], rows_max: int) -> list[Row]:
        """The groups with the largest values, largest first; then in ascending order of their keys."""


class Cells(Protocol):
    """The cells of one report."""

    def totals(self) -> LatencyTotals:
        """The cells that do not grow with the data."""

    def groups(self, kind: str, keys: tuple[str, ...]) -> Groups:
        """The cells of a kind by these columns. Hours are made from minutes."""

    def close(self) -> None:
        """Release them."""


class SparkGroups:
    """Groups in a DataFrame that Spark keeps."""

    def __init__(self, frame: DataFrame, keys: tuple[str, ...]) -> None:
        self.frame = frame
        self._keys = keys

    def count(self) -> int:
        """The number of groups."""
        return int(self.frame.count())

    def first(self, rows_max: int) -> list[Row]:
        """The first groups by their keys."""
        return [row.asDict() for row in self.frame.orderBy(*self._keys).limit(rows_max).collect()]

    def largest(self, values: Sequence[str], rows_max: int) -> list[Row]:
        """The groups with the largest values."""
        ordered = self.frame.orderBy(*[F.desc(name) for name in values], *self._keys)
        return [row.asDict() for row in ordered.limit(rows_max).collect()]


class SparkCells:
    """Cells in a DataFrame that Spark keeps until `close`."""

    def __init__(self, spark: SparkSession, dispatch: Captured, chosen: Range, slo_us: int, by: Sequence[str]) -> None:
        self._cells = read_cells(spark, dispatch, chosen, slo_us, by).persist(StorageLevel.MEMORY_AND_DISK)
        self._groups: list[DataFrame] = []

    def totals(self) -> LatencyTotals:
        """The cells that do not grow with the data, by one query."""
        return read_totals(self._cells)

    def groups(self, kind: str, keys: tuple[str, ...]) -> SparkGroups:
        """The cells of a kind by these columns, kept because most are used more than once."""
        cells = self._cells.where(F.col("kind") == kind)
        if kind == MINUTE and "hour_ms" in keys:
            cells = cells.withColumn("hour_ms", F.col("minute_ms") - F.pmod(F.col("minute_ms"), F.lit(HOUR_MS)))
        self._groups.append(percentiles(cells, keys).persist(StorageLevel.MEMORY_AND_DISK))
        return SparkGroups(self._groups[-1], keys)

    def close(self) -> None:
        """Release the cells and the groups."""
        for frame in (self._cells, *self._groups):
            frame.unpersist()


class LocalGroups:
    """Groups in a list, in ascending order of their keys."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def count(self) -> int:
        """The number of groups."""
        return len(self._rows)

    def first(self, rows_max: int) -> list[Row]:
        """The first groups by their keys."""
        return self._rows[:rows_max]

    def largest(self, values: Sequence[str], rows_max: int) -> list[Row]:
        """The groups with the largest values."""
        # The sort is stable, so groups of the same values stay in the order of their keys.
        return sorted(self._rows, key=lambda row: [-row[name] for name in values])[:rows_max]


class LocalCells:
    """Cells in an Arrow table of this process, read without Spark."""

    def __init__(self, dispatch: Captured, chosen: Range, slo_us: int, by: Sequence[str]) -> None:
        options = cell_options(chosen, slo_us, by) | {"capture": dispatch.encode(), "pack_bytes": str(PACK_BYTES)}
        reader = CellReader(options)
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        self._cells = gathered(batches)

    def totals(self) -> LatencyTotals:
        """The cells that do not grow with the data."""
        kinds = pa.array(TOTALS)
        return totals_of(self._cells.filter(pc.is_in(self._cells["kind"], kinds)).to_pylist())

    def groups(self, kind: str, keys: tuple[str, ...]) -> LocalGroups:
        """The cells of a kind by these columns."""
        cells = self._cells.filter(pc.equal(self._cells["kind"], kind))
        if kind == MINUTE and "hour_ms" in keys:
            minute_ms = cells["minute_ms"].to_numpy()
            hour_ms = pa.array(minute_ms - np.mod(minute_ms, HOUR_MS))
            cells = cells.set_column(cells.schema.get_field_index("hour_ms"), "hour_ms", hour_ms)
        sums = [("count", "sum"), ("early", "sum"), ("within", "sum"), ("max_us", "max")]
        by_bucket = cells.group_by([*keys, "bucket"], use_threads=False).aggregate(sums)
        rows = sorted(by_bucket.to_pylist(), key=lambda row: (_order(row, keys), row["bucket"]))
        return LocalGroups(list(_figures(rows, keys)))

    def close(self) -> None:
        """Nothing is kept outside of this object."""


def _order(row: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[bool, Any]]:
    """The place of a row by its keys: null comes first, as with Spark."""
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
