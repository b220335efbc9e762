"""The rows of many records as one set of columns, with the place of each record. The records are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from store.batches import I64
from store.column_blocks import Columns, decode_blocks
from store.columns import ColumnBatch, MalformedColumnsError
from store.errors import CorruptionError
from store.record import RecordHeader


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Columns of n rows from m records: rows in each record i64[m], and where its blob block starts i64[m]."""

    columns: Columns
    counts: I64
    blob_offsets: I64


def collect_rows(
    records: Iterable[tuple[RecordHeader, bytes, bytes]],
    path: str,
    batch_type: type[ColumnBatch],
    names: Sequence[str],
) -> RecordRows:
    """The named columns of verified records, concatenated. Raises CorruptionError for a kind that has no place here."""
    schema = batch_type.schema
    blocks: list[bytes] = []
    counts: list[int] = []
    blob_offsets: list[int] = []
    blob_bytes = 0
    for header, block, _ in records:
        if header.kind != schema.kind or header.version != schema.version:
            raise CorruptionError(path, header.offset, f"unknown record kind {header.kind} version {header.version}")
        blocks.append(block)
        counts.append(header.count)
        blob_offsets.append(header.blob_offset)
        blob_bytes += header.blob_bytes
    try:
        columns = decode_blocks(schema, blocks, counts, names)
    except MalformedColumnsError as error:
        raise CorruptionError(path, blob_offsets[0], str(error)) from error
    lengths = [f"{name}_length" for name in schema.blobs]
    if set(lengths) <= set(names) and blob_bytes != sum([int(columns[name].sum(dtype=np.int64)) for name in lengths]):
        raise CorruptionError(path, blob_offsets[0], "lengths do not add up to the blobs")
    return RecordRows(columns, np.array(counts, np.int64), np.array(blob_offsets, np.int64))
