"""The cells of a latency report as a Spark source. Each task reads its files once and returns cells, not rows.

Internal to the report. A task returns damage as rows of kind `corrupt`, so no second pass is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from ops.audit.arrow_rows import open_names
from ops.audit.capture import Captured, Part
from ops.audit.grouping import Table
from ops.audit.latency_cells import BY, COLUMNS, STAGES, TROUBLE, CellCounter
from ops.audit.log_frames import Range, read_captured
from ops.audit.log_rows import LogPartition, pack
from ops.audit.part_reader import PartReader
from ops.audit.selection import Selection
from store.disk.filesystem import RealFileSystem
from store.records.segment import Damage
from store.tables.names import Names

FORMAT = "delay_latency_cells"
CORRUPT = "corrupt"
_TEXTS = ("subject", "broker_group")
_KEYS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "server_id": pa.string(),
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(("minute_ms", "hour_ms"), pa.int64()),
    **dict.fromkeys(("internal", "delivered"), pa.bool_()),
    **dict.fromkeys(("outcome", "attempts", "stage", "bucket"), pa.int32()),
    **dict.fromkeys(("file", "detail"), pa.string()),
    **dict.fromkeys(("start", "stop"), pa.int64()),
}
_SUMS: dict[str, pa.DataType] = {
    **dict.fromkeys(("count", "early", "within", "retried", "maybe_twice"), pa.int64()),
    **dict.fromkeys(("sum_us", *[f"{stage}_sum_us" for stage in STAGES]), pa.float64()),
}
_MAXIMA: dict[str, pa.DataType] = {
    **dict.fromkeys(("max_us", *[f"{stage}_max_us" for stage in STAGES], "trouble_to_us"), pa.int64()),
    "attempts_max": pa.int32(),
}
_MINIMA: dict[str, pa.DataType] = {"trouble_from_us": pa.int64()}
_TYPES = {**_KEYS, **_SUMS, **_MAXIMA, **_MINIMA}
_SCHEMA = pa.schema(list(_TYPES.items()))


def read_cells(spark: SparkSession, dispatch: Captured, chosen: Range, slo_us: int, by: Sequence[str]) -> DataFrame:
    """The cells of the files of a captured dispatch_log that overlap the range, each cell once."""
    options = cell_options(chosen, slo_us, by)
    values = [F.sum(name).alias(name) for name in _SUMS]
    values += [F.max(name).alias(name) for name in _MAXIMA] + [F.min(name).alias(name) for name in _MINIMA]
    return read_captured(spark, FORMAT, dispatch, options).groupBy(*_KEYS).agg(*values)


def cell_options(chosen: Range, slo_us: int, by: Sequence[str]) -> dict[str, str]:
    """The question as options of the format."""
    return chosen.options() | {"slo_us": str(slo_us), "by": ",".join(by)}


def gathered(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The cells that `read_cells` makes of these batches, without Spark, each once."""
    table = pa.Table.from_batches(batches, schema=_SCHEMA)
    values = [*[(name, "sum") for name in _SUMS], *[(name, "max") for name in _MAXIMA]]
    values += [(name, "min") for name in _MINIMA]
    found = table.group_by(list(_KEYS), use_threads=False).aggregate(values)
    names = {f"{name}_{how}": name for name, how in values}
    renamed = found.rename_columns([names.get(name, name) for name in found.column_names])
    return renamed.select(list(_TYPES)).cast(_SCHEMA)


class LatencyCellSource(DataSource):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """The format `delay_latency_cells`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """The schema of all kinds of cells in one table. A cell is null in the columns of other kinds."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema: StructType = from_arrow_schema(_SCHEMA)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all columns."""
        return CellReader(self.options)


class CellReader(DataSourceReader):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Counts the rows of one partition per task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._captured = Captured.decode(options["capture"])
        self._pack_bytes = int(options["pack_bytes"])
        self._slo_us = int(options["slo_us"])
        self._by = tuple([name for name in options["by"].split(",") if name])
        self._selection = Selection.from_options(options)

    def partitions(self) -> list[LogPartition]:
        """The captured files that overlap the range."""
        return pack([part for part in self._captured.parts if self._selection.touches(part)], self._pack_bytes)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The cells of each server in a partition, and the damage. A vanished file has no rows: the caller of `capture`
        checks for these afterwards."""
        if not isinstance(partition, LogPartition):
            return  # without files, Spark calls this once without a partition
        counters: dict[tuple[str, int], CellCounter] = {}
        for part in partition.parts:
            counter = counters.setdefault((part.directory, part.server_id), CellCounter(self._slo_us, self._by))
            damages: list[Damage] = []
            try:
                self._count(part, counter, damages)
            except FileNotFoundError:
                continue
            if damages:
                yield _corrupt_batch(part, damages)
        for (directory, server_id), counter in counters.items():
            names = open_names(directory, server_id)
            for kind, table in counter.cells().items():
                # Cells of the other kinds are summed over all servers.
                apart = kind == TROUBLE or (kind == BY and "server_id" in self._by)
                yield _batch(kind, server_id if apart else None, table, names)

    def _count(self, part: Part, counter: CellCounter, damages: list[Damage]) -> None:
        names = open_names(part.directory, part.server_id)
        for chunk in PartReader(RealFileSystem(), part, lambda _: COLUMNS, (), damages):
            mask = self._selection.mask(chunk.columns, names)
            rows = chunk.columns
            counter.add(rows if mask is None else {name: column[mask] for name, column in rows.items()})


def _batch(kind: str, server_id: int | None, table: Table, names: Names) -> pa.RecordBatch:
    columns = {"kind": pa.repeat(pa.scalar(kind), len(table))}
    if server_id is not None:
        columns["server_id"] = pa.repeat(pa.scalar(f"{server_id:012x}"), len(table))
    for name, column in table.columns().items():
        columns[name] = _texts(column, names) if name in _TEXTS else pa.array(column).cast(_TYPES[name])
    return _filled(columns, len(table))


def _texts(codes: NDArray[Any], names: Names) -> pa.Array:
    """The names of codes. Code 0 is null, and so is a code that a damaged names.log lost."""
    used, index = np.unique(codes, return_inverse=True)
    texts = [names.name(code) if 0 < code <= len(names) else None for code in used.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(index))


def _corrupt_batch(part: Part, damages: list[Damage]) -> pa.RecordBatch:
    count = len(damages)
    columns = {
        "kind": pa.array([CORRUPT] * count),
        "server_id": pa.array([f"{part.server_id:012x}"] * count),
        "file": pa.array([part.path] * count),
        "start": pa.array([damage.start for damage in damages], pa.int64()),
        "stop": pa.array([damage.stop for damage in damages], pa.int64()),
        "detail": pa.array([damage.detail for damage in damages]),
    }
    return _filled(columns, count)


def _filled(columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [columns[name] if name in columns else pa.nulls(count, kind) for name, kind in _TYPES.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
