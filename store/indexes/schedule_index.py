"""The columns of scheduled messages that the loader keeps, with the places of their bytes. No files here.

A row says when a message is due, and where in its file the id, the properties and the body stand. So memory holds about a
hundred bytes a message, and its bytes are read when it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, U32, MessageBatch, StoredBatch
from store.records.column_batch import concatenate_columns, constant_column, has_any, ragged_offsets, take_column
from store.records.record import RecordHeader
from store.records.record_rows import collect_rows
from store.records.row_sums import U64, message_sums


@dataclass(frozen=True, slots=True)
class ScheduleIndex:
    """`n` rows; all columns i64[n] or u32[n] (or broadcast to it). Offsets are positions in the schedule file."""

    sequence: I64
    due_ms: I64
    accepted_us: I64
    expires_ms: I64
    origin_sequence: I64
    duplicate_of: I64
    subject: U32
    target_group: U32
    redelivery: U32
    ids_length: U32
    properties_length: U32
    bodies_length: U32
    order_keys_length: U32
    order_hash: U64
    tag: U32
    flags: U32
    ids_offset: I64
    properties_offset: I64
    bodies_offset: I64
    order_keys_offset: I64
    row_sum: U64
    """The sum of the id, properties, body and order key (`row_sums.py`); 0 where the bytes were not read."""

    FROM_BATCH: ClassVar[tuple[str, ...]] = (
        "sequence", "due_ms", "accepted_us", "expires_ms", "origin_sequence", "duplicate_of", "subject",
        "target_group", "redelivery", "ids_length", "properties_length", "bodies_length", "order_keys_length", "order_hash",
        "tag", "flags",
    )  # fmt: skip

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def nbytes(self) -> int:
        """Memory of the columns; a broadcast one counts as nothing."""
        return sum([column.nbytes for column in self._columns() if column.strides != (0,)])

    def _columns(self) -> list[NDArray[Any]]:
        return [getattr(self, name) for name in _NAMES]

    def blob_bytes(self) -> I64:
        """How many bytes the id, the properties, the body and the order key of each row have, i64[n]."""
        lengths: I64 = self.ids_length.astype(np.int64) + self.properties_length + self.bodies_length
        if has_any(self.order_keys_length):
            lengths += self.order_keys_length
        return lengths

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The rows at these indices, in that order."""
        return type(self)(*[take_column(column, rows) for column in self._columns()])

    def slice(self, start: int, stop: int) -> Self:
        """The rows `start` to `stop`, without copying."""
        return type(self)(*[column[start:stop] for column in self._columns()])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """All rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        return cls(*[concatenate_columns([getattr(part, name) for part in parts], _DTYPES[name]) for name in _NAMES])

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        return cls(*[np.zeros(0, _DTYPES[name]) for name in _NAMES])

    @classmethod
    def zeros(cls, count: int) -> Self:
        """Rows that are all zeros, as views of one zero."""
        return cls(*[np.broadcast_to(np.zeros((), _DTYPES[name]), (count,)) for name in _NAMES])

    def masked(self, mask: NDArray[np.bool_]) -> Self:
        """The same rows with zeros where the mask is false."""
        if bool(mask.all()):
            return self
        return type(self)(*[np.where(mask, column, column.dtype.type(0)) for column in self._columns()])

    def between(self, from_key: tuple[int, int] | None, to_key: tuple[int, int] | None) -> NDArray[np.intp] | None:
        """Which rows have a (due_ms, sequence) after `from_key` and not after `to_key`; None: all of them."""
        if from_key is None and to_key is None:
            return None
        mask = np.ones(len(self), np.bool_)
        if from_key is not None:
            due_ms, sequence = from_key
            mask &= (self.due_ms > due_ms) | ((self.due_ms == due_ms) & (self.sequence > sequence))
        if to_key is not None:
            due_ms, sequence = to_key
            mask &= (self.due_ms < due_ms) | ((self.due_ms == due_ms) & (self.sequence <= sequence))
        return None if bool(mask.all()) else np.flatnonzero(mask)


_NAMES = tuple(field.name for field in fields(ScheduleIndex))
_DTYPES = {name: dict(MessageBatch.schema.fields).get(name, "<i8") for name in _NAMES} | {"row_sum": "<u8"}


def blob_places(columns: dict[str, Any], counts: I64, blob_offsets: I64) -> tuple[I64, I64, I64, I64]:
    """Where each row's id, properties, body and order key stand, for rows of several records laid end to end.

    `columns` has the four length columns of all rows, `counts` i64[m] the rows of each record and `blob_offsets`
    i64[m] where its blob block starts. The block of a record holds all ids, then all properties, bodies and order keys.
    The places of order keys are zeros where no row has one.
    """
    bases = blob_offsets
    stops = np.cumsum(counts)
    places = []
    for name in ("ids", "properties", "bodies"):
        offsets = ragged_offsets(columns[f"{name}_length"])
        first = offsets[stops - counts]
        shift = bases - first
        places.append(offsets[:-1] + (int(shift[0]) if len(counts) == 1 else np.repeat(shift, counts)))
        bases = bases + offsets[stops] - first
    if not has_any(columns["order_keys_length"]):
        return places[0], places[1], places[2], constant_column(0, len(places[0]), np.int64)
    offsets = ragged_offsets(columns["order_keys_length"])
    shift = bases - offsets[stops - counts]
    return places[0], places[1], places[2], offsets[:-1] + np.repeat(shift, counts)


def build_index(columns: dict[str, Any], counts: I64, blob_offsets: I64) -> ScheduleIndex:
    """The index of rows whose columns (at least `FROM_BATCH`) come from records with these counts and blob starts; their
    sums are 0."""
    if not len(counts):
        return ScheduleIndex.empty()
    ids_offset, properties_offset, bodies_offset, order_keys_offset = blob_places(columns, counts, blob_offsets)
    return ScheduleIndex(
        **{name: columns[name] for name in ScheduleIndex.FROM_BATCH},
        ids_offset=ids_offset,
        properties_offset=properties_offset,
        bodies_offset=bodies_offset,
        order_keys_offset=order_keys_offset,
        row_sum=np.broadcast_to(np.uint64(0), (len(ids_offset),)),
    )


def part_of_index(
    records: Sequence[tuple[RecordHeader, bytes, bytes]],
    path: str,
    from_key: tuple[int, int] | None,
    to_key: tuple[int, int] | None,
) -> ScheduleIndex:
    """The index of those rows of some verified records that lie between two keys, with their sums.

    Raises CorruptionError as `collect_rows`.
    """
    rows = collect_rows(records, path, MessageBatch, ScheduleIndex.FROM_BATCH)
    index = build_index(rows.columns, rows.counts, rows.blob_offsets)
    chosen = index.between(from_key, to_key)
    blobs = [blob for _, _, blob in records]
    sizes = np.array([len(blob) for blob in blobs], np.int64)
    places = blob_places(rows.columns, rows.counts, np.cumsum(sizes) - sizes)
    if chosen is not None:
        index = index.take(chosen)
        places = places[0][chosen], places[1][chosen], places[2][chosen], take_column(places[3], chosen)
    if not len(index):
        return index
    data = blobs[0] if len(blobs) == 1 else b"".join(blobs)
    lengths = index.ids_length, index.properties_length, index.bodies_length, index.order_keys_length
    sums = message_sums([(data, place, length) for place, length in zip(places, lengths, strict=True)])
    return replace(index, row_sum=sums)


def index_rows(batch: MessageBatch, blob_start: int) -> ScheduleIndex:
    """The index of a batch just appended, without the sums (`batch_sums`); `blob_start` is that of its `Appended`."""
    columns = {name: getattr(batch, name) for name in ScheduleIndex.FROM_BATCH}
    return build_index(columns, np.array([len(batch)], np.int64), np.array([blob_start], np.int64))


def batch_sums(batch: MessageBatch | StoredBatch) -> U64:
    """The sum of each row of a batch."""
    return message_sums(
        [
            (batch.ids, ragged_offsets(batch.ids_length)[:-1], batch.ids_length),
            (batch.properties, ragged_offsets(batch.properties_length)[:-1], batch.properties_length),
            (batch.bodies, ragged_offsets(batch.bodies_length)[:-1], batch.bodies_length),
            (batch.order_keys, ragged_offsets(batch.order_keys_length)[:-1], batch.order_keys_length),
        ]
    )
