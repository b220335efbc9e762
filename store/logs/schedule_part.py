"""A part of a schedule file: rows of some records, one behind the other, for lists of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from store.indexes.schedule_index import ScheduleIndex, build_index
from store.records.batches import U64, MessageBatch
from store.records.record import RecordHeader
from store.records.record_rows import collect_rows


@dataclass(frozen=True, slots=True)
class SchedulePart:
    """`index` and `id_hash` u64[n] of n rows in file order. `properties`: those of all rows end to end, if they were read.
    `last`: the last sequence of the part; None if it reaches to the end of the file."""

    index: ScheduleIndex
    id_hash: U64
    properties: bytes
    last: int | None

    @classmethod
    def of(cls, records: Sequence[tuple[RecordHeader, bytes, bytes]], path: str, last: int | None) -> SchedulePart:
        """The rows of verified records, with properties if they have their blobs. Raises CorruptionError as
        `collect_rows`."""
        if not records:
            return cls(ScheduleIndex.empty(), np.zeros(0, np.uint64), b"", last)
        rows = collect_rows(records, path, MessageBatch, (*ScheduleIndex.FROM_BATCH, "id_hash"))
        index = build_index(rows.columns, rows.counts, rows.blob_offsets)
        stops = np.cumsum(rows.counts)
        properties = []
        for (header, _, blob), stop in zip(records, stops.tolist(), strict=True):
            if blob:
                mine = slice(stop - header.count, stop)
                start = int(index.ids_length[mine].sum(dtype=np.int64))
                properties.append(blob[start : start + int(index.properties_length[mine].sum(dtype=np.int64))])
        return cls(index, rows.columns["id_hash"], b"".join(properties), last)


def first_records(
    records: Iterable[tuple[RecordHeader, bytes, bytes]], behind: int, upto: int, rows_max: int, bytes_max: int
) -> tuple[list[tuple[RecordHeader, bytes, bytes]], int | None]:
    """The records with sequences above `behind` and up to `upto`, until they have `rows_max` rows or `bytes_max` bytes; one
    at least. Also the last sequence of them, or None if no others follow up to `upto`."""
    taken: list[tuple[RecordHeader, bytes, bytes]] = []
    rows = size = 0
    for record in records:
        header, block, blob = record
        if header.last_sequence <= behind:
            continue
        if header.first_sequence > upto:
            break
        if taken and (rows >= rows_max or size >= bytes_max):
            return taken, taken[-1][0].last_sequence
        taken.append(record)
        rows += header.count
        size += len(block) + len(blob)
    return taken, None
