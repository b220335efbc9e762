"""The rows of many records as one set of columns, with the place of each record. The records are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from store.errors import CorruptionError
from store.records.batches import I64
from store.records.column_batch import ColumnBatch, MalformedColumnsError
from store.records.column_blocks import Columns
from store.records.record import RecordHeader
from store.records.versions import decode_versions, knows


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Columns of n rows from m records: rows in each record i64[m], and where its blob block starts i64[m]."""

    columns: Columns
    counts: I64
    blob_offsets: I64


def in_parts(
    records: Iterable[tuple[RecordHeader, bytes, bytes]], bytes_max: int
) -> Iterator[list[tuple[RecordHeader, bytes, bytes]]]:
    """The records in lists; a list ends with the record with which its blocks reach `bytes_max`."""
    part: list[tuple[RecordHeader, bytes, bytes]] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record[1]) + len(record[2])
        if size >= bytes_max:
            yield part
            part, size = [], 0
    if part:
        yield part


def collect_rows(
    records: Iterable[tuple[RecordHeader, bytes, bytes]],
    path: str,
    batch_type: type[ColumnBatch],
    names: Sequence[str],
) -> RecordRows:
    """The named columns of verified records, concatenated. Raises CorruptionError for a kind that has no place here."""
    schema = batch_type.schema
    versions: list[int] = []
    blocks: list[bytes] = []
    counts: list[int] = []
    blob_offsets: list[int] = []
    blob_bytes = 0
    for header, block, _ in records:
        if header.kind != schema.kind or not knows(schema, header.version):
            raise CorruptionError(path, header.offset, f"unknown record kind {header.kind} version {header.version}")
        versions.append(header.version)
        blocks.append(block)
        counts.append(header.count)
        blob_offsets.append(header.blob_offset)
        blob_bytes += header.blob_bytes
    try:
        columns = decode_versions(schema, versions, blocks, counts, names)
    except MalformedColumnsError as error:
        raise CorruptionError(path, blob_offsets[0], str(error)) from error
    lengths = [f"{name}_length" for name in schema.blobs]
    if set(lengths) <= set(names) and blob_bytes != sum([int(columns[name].sum(dtype=np.int64)) for name in lengths]):
        raise CorruptionError(path, blob_offsets[0], "lengths do not add up to the blobs")
    return RecordRows(columns, np.array(counts, np.int64), np.array(blob_offsets, np.int64))
