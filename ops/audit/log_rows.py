"""The work of one Spark task: reads the rows of some file parts as Arrow batches, or the damage in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ops.audit.arrow_rows import ArrowRows, blob_names, stored_columns
from ops.audit.capture import Part
from ops.audit.directories import CorruptRow
from ops.audit.fields import CORRUPT_FIELDS, Field, arrow_type
from ops.audit.readers import names_of, read_part
from ops.audit.selection import Selection
from store.errors import CorruptionError, StoreError
from store.records.column_batch import ColumnBatch
from store.records.segment import Damage


class VanishedError(StoreError):
    """A file has vanished since the read was planned, by retention or the drain of its day. Read again."""


@dataclass
class LogPartition(InputPartition):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Parts that one task reads; usually one."""

    parts: tuple[Part, ...]


def pack(parts: Sequence[Part], pack_bytes: int) -> list[LogPartition]:
    """One partition per part. With `pack_bytes`, neighbours share one up to that size. A task costs some milliseconds,
    so a day of minute files would cost a minute."""
    partitions: list[list[Part]] = []
    size = 0
    for part in parts:
        if partitions and size + part.size_bytes <= pack_bytes:
            partitions[-1].append(part)
            size += part.size_bytes
        else:
            partitions.append([part])
            size = part.size_bytes
    return [LogPartition(tuple(group)) for group in partitions]


def read_rows(
    partition: LogPartition, fields: Sequence[Field], selection: Selection, *, skip: bool, vanished_too: bool
) -> Iterator[pa.RecordBatch]:
    """Record batches of the selected rows. `skip`: skip corruption. Raises CorruptionError, FormatError, VanishedError.
    `vanished_too`: a vanished file has no rows, and the caller of `capture` checks for it afterwards."""
    for part in partition.parts:
        damages: list[Damage] | None = [] if skip else None
        try:
            yield from _part_rows(part, fields, selection, damages)
        except FileNotFoundError:
            if not vanished_too:
                raise VanishedError(f"{part.path}: retired while it was read; read again") from None


def _part_rows(
    part: Part, fields: Sequence[Field], selection: Selection, damages: list[Damage] | None
) -> Iterator[pa.RecordBatch]:
    names = names_of(part)
    rows = ArrowRows(part, fields, names)

    def columns(batch_type: type[ColumnBatch]) -> list[str]:
        return stored_columns(fields, batch_type, selection.columns)

    for chunk in read_part(part, columns, blob_names(fields), damages):
        mask = selection.mask(chunk.columns, names)
        if mask is None or mask.any():
            yield rows.batch(chunk, mask)


def damages_of(parts: Sequence[Part]) -> list[CorruptRow]:
    """The damage in some parts. Checks all checksums of headers and columns, and returns no rows."""
    found: list[CorruptRow] = []
    for part in parts:
        damages: list[Damage] = []
        try:
            for _ in read_part(part, _first_column, (), damages):
                pass
        except FileNotFoundError:
            continue
        except CorruptionError as error:
            damages.append(Damage(error.offset, part.stop, error.detail))
        place: CorruptRow = {"server_id": f"{part.server_id:012x}", "file": part.path}
        found += [{**place, "start": each.start, "stop": each.stop, "detail": each.detail} for each in damages]
    return found


def corrupt_rows(partition: LogPartition) -> Iterator[pa.RecordBatch]:
    """The corrupt report of some parts."""
    rows = damages_of(partition.parts)
    if rows:
        schema = pa.schema([pa.field(field.name, arrow_type(field)) for field in CORRUPT_FIELDS])
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _first_column(batch_type: type[ColumnBatch]) -> list[str]:
    return [batch_type.schema.fields[0][0]]
