"""The cells of a latency report. Each task reads its files once and returns cells, not rows.

A task returns damage as rows of kind `corrupt`, so no second pass is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops.audit.capture import Captured, Part
from ops.audit.engines import Engine
from ops.audit.grouping import Table
from ops.audit.latency_cells import BY, COLUMNS, STAGES, TAKEOVER, TROUBLE, CellCounter
from ops.audit.log_frames import PACK_BYTES
from ops.audit.log_rows import pack
from ops.audit.readers import names_of, read_part
from ops.audit.selection import Selection
from ops.audit.takeovers import Takeover
from store.records.segment import Damage
from store.tables.names import Names

CORRUPT = "corrupt"
_TEXTS = ("subject", "broker_group")
_KEYS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "server_id": pa.string(),
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(("minute_ms", "hour_ms", "epoch"), pa.int64()),
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


@dataclass(frozen=True, slots=True)
class CellQuestion:
    """What a task counts: the rows of `selection`, by the dimensions `by`, within `slo_us` or not, and those that waited
    for a takeover."""

    selection: Selection
    slo_us: int
    by: tuple[str, ...]
    takeovers: tuple[Takeover, ...] = ()

    def counter(self, server_id: int) -> CellCounter:
        """Counts the rows of a server."""
        return CellCounter(self.slo_us, self.by, [each for each in self.takeovers if each.server_id == server_id])


def read_cells(engine: Engine, dispatch: Captured, question: CellQuestion) -> pa.Table:
    """The cells of the files of a captured dispatch_log that overlap the range, each cell once."""
    parts = [part for part in dispatch.parts if question.selection.touches(part)]
    tasks = [partition.parts for partition in pack(parts, PACK_BYTES)]
    found = engine.folded(tasks, partial(_count_task, question), _together)
    return gathered([]) if found is None else pa.ipc.open_stream(found).read_all()


def _count_task(question: CellQuestion, parts: tuple[Part, ...]) -> bytes:
    return _encoded(gathered(list(_cells_of(question, parts))))


def _together(left: bytes, right: bytes) -> bytes:
    tables = [pa.ipc.open_stream(each).read_all() for each in (left, right)]
    return _encoded(gathered(pa.concat_tables(tables).to_batches()))


def _encoded(table: pa.Table) -> bytes:
    """A table as bytes, which any process reads without a step per row."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def gathered(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The cells of these batches, each once."""
    table = pa.Table.from_batches(batches, schema=_SCHEMA)
    values = [*[(name, "sum") for name in _SUMS], *[(name, "max") for name in _MAXIMA]]
    values += [(name, "min") for name in _MINIMA]
    found = table.group_by(list(_KEYS), use_threads=False).aggregate(values)
    names = {f"{name}_{how}": name for name, how in values}
    renamed = found.rename_columns([names.get(name, name) for name in found.column_names])
    return renamed.select(list(_TYPES)).cast(_SCHEMA)


def _cells_of(question: CellQuestion, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """The cells of each server in some parts, and the damage. A vanished file has no rows: the caller of `capture` checks
    for these afterwards."""
    counters: dict[tuple[str, int], CellCounter] = {}
    last: dict[tuple[str, int], Part] = {}
    for part in parts:
        last[part.directory, part.server_id] = part
        counter = counters.setdefault((part.directory, part.server_id), question.counter(part.server_id))
        damages: list[Damage] = []
        try:
            _count(question, part, counter, damages)
        except FileNotFoundError:
            continue
        if damages:
            yield _corrupt_batch(part, damages)
    for (directory, server_id), counter in counters.items():
        names = names_of(last[directory, server_id])
        for kind, table in counter.cells().items():
            # Cells of the other kinds are summed over all servers.
            apart = kind in (TROUBLE, TAKEOVER) or (kind == BY and "server_id" in question.by)
            yield _batch(kind, server_id if apart else None, table, names)


def _count(question: CellQuestion, part: Part, counter: CellCounter, damages: list[Damage]) -> None:
    names = names_of(part)
    for chunk in read_part(part, lambda _: COLUMNS, (), damages):
        mask = question.selection.mask(chunk.columns, names)
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
