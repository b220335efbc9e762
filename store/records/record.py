"""One record: a 64-byte header, a column block, a blob block. Bytes only; FORMAT.md draws them, change both together.

     0 magic u32         |  4 header_crc u32 |  8 kind u16          | 10 version u16       | 12 count u32
    16 columns_bytes u32 | 20 columns_crc u32 | 24 blob_bytes u64  | 32 blob_crc u32      | 36 place u32
    40 synced_before u64 | 48 first_sequence i64                    | 56 last_sequence i64

`header_crc` covers bytes 8 to 64. `synced_before` is the offset in the same file below which everything was durable
when this record was written: damage below the highest such offset is corruption, damage above it is a torn tail.
`place` is the record's own offset in the file, divided by 8: a record that stands anywhere else (a copy within a body,
a page written to the wrong place, a batch written twice) is not a record.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from store.disk.filesystem import Buffer
from store.records.batches import (
    CancelBatch,
    FollowedBatch,
    IndexBatch,
    KeptBatch,
    LedgerBatch,
    MessageBatch,
    NameBatch,
    OutcomeBatch,
    ProgressBatch,
    RunBatch,
    StoredBatch,
    TableBatch,
)
from store.records.column_batch import (
    ColumnBatch,
    MalformedColumnsError,
    Schema,
    blob_size,
    blob_sizes,
    decode_columns,
    encode_columns,
)
from store.records.versions import knows, lowest_schema, schema_at, with_newer_fields

RECORD_MAGIC = 0x43455244  # "DREC"
HEADER_BYTES = 64
ALIGN = 8
# A record is one group commit or one replay slice; readers refuse longer ones before they allocate.
RECORD_BYTES_MAX = 256 << 20
RECORD_ROWS_MAX = 1 << 24

_TAIL = struct.Struct("<HHIIIQIIQqq")
_HEAD = struct.Struct("<II")
_extend = google_crc32c.extend
_checksum = google_crc32c.value

Batch = TypeVar("Batch", bound=ColumnBatch)
BATCHES: dict[int, type[ColumnBatch]] = {
    batch.schema.kind: batch
    for batch in (
        MessageBatch,
        CancelBatch,
        OutcomeBatch,
        NameBatch,
        StoredBatch,
        ProgressBatch,
        RunBatch,
        LedgerBatch,
        IndexBatch,
        FollowedBatch,
        TableBatch,
        KeptBatch,
    )
}


class BadRecordError(ValueError):
    """The bytes are not a whole record. The scanner decides whether that is a torn tail or corruption."""


class UnknownRecordError(BadRecordError):
    """A whole header of a kind or version that this program does not know: a newer one wrote it, it must not be cut."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A verified header. `offset` is where the record starts; `end` where the next one does."""

    offset: int
    kind: int
    version: int
    count: int
    columns_bytes: int
    columns_crc: int
    blob_bytes: int
    blob_crc: int
    synced_before: int
    first_sequence: int
    last_sequence: int

    @property
    def end(self) -> int:
        """Offset after the padding."""
        return self.offset + record_bytes(self.columns_bytes, self.blob_bytes)

    @property
    def body_bytes(self) -> int:
        """Bytes behind the header, padding included."""
        return record_bytes(self.columns_bytes, self.blob_bytes) - HEADER_BYTES

    @property
    def blob_offset(self) -> int:
        """Where the first blob byte stands."""
        return self.offset + HEADER_BYTES + self.columns_bytes


def record_bytes(columns_bytes: int, blob_bytes: int) -> int:
    """Length of a record on disk, padding included."""
    return (HEADER_BYTES + columns_bytes + blob_bytes + ALIGN - 1) // ALIGN * ALIGN


class EncodedRecord(NamedTuple):
    """Buffers to write in order, their total, and where the blob block starts within them."""

    buffers: list[Buffer]
    total_bytes: int
    blob_start: int


def encode_record(batch: ColumnBatch, synced_before: int, offset: int = 0) -> EncodedRecord:
    """Encode a batch, to stand at `offset` of its file, without copying its blobs. It must have at least one row."""
    assert len(batch) and offset % ALIGN == 0 and synced_before >= 0
    schema = batch.schema if batch.schema.version == 1 else lowest_schema(batch)
    columns = encode_columns(batch, schema)
    blobs: list[Buffer] = []
    blob_bytes, blob_crc = 0, 0
    for name, length_name in batch.schema.blob_lengths:
        blob = getattr(batch, name)
        assert len(blob) == blob_size(getattr(batch, length_name)), f"the lengths of {name} do not add up to it"
        if len(blob):
            blobs.append(blob)
            blob_bytes += len(blob)
            blob_crc = _extend(blob_crc, bytes(blob) if not isinstance(blob, bytes) else blob)
    first, last = _key_range(batch)
    header = encode_header(schema, len(batch), columns, blob_bytes, blob_crc, synced_before, offset, first, last)
    total = record_bytes(len(columns), blob_bytes)
    buffers: list[Buffer] = [header + columns, *blobs]
    padding = total - HEADER_BYTES - len(columns) - blob_bytes
    if padding:
        buffers.append(bytes(padding))
    assert total <= RECORD_BYTES_MAX and len(batch) <= RECORD_ROWS_MAX, "a record beyond the bound of its readers"
    return EncodedRecord(buffers, total, HEADER_BYTES + len(columns))


def encode_header(
    schema: Schema,
    count: int,
    columns: bytes,
    blob_bytes: int,
    blob_crc: int,
    synced_before: int,
    offset: int,
    first_sequence: int,
    last_sequence: int,
) -> bytes:
    """The 64 bytes before a column block, of a record to stand at `offset`."""
    assert synced_before <= offset, "what comes behind a record is not durable before it"
    tail = _TAIL.pack(
        schema.kind, schema.version, count, len(columns), _checksum(columns), blob_bytes, blob_crc,
        place_of(offset), synced_before, first_sequence, last_sequence,
    )  # fmt: skip
    return _HEAD.pack(RECORD_MAGIC, _checksum(tail)) + tail


def place_of(offset: int) -> int:
    """The field `place` of a record at this offset of its file (unique below 32 GiB)."""
    return (offset // ALIGN) & 0xFFFF_FFFF


def _key_range(batch: ColumnBatch) -> tuple[int, int]:
    key = getattr(batch, batch.schema.names[0])
    return int(key.item(0)), int(key.item(-1))


def decode_header(data: Buffer, offset: int, position: int = 0) -> RecordHeader:
    """Verify the 64 bytes at `position` of `data`, which stand at `offset` of the file.

    Raises BadRecordError (also for a run of zeros, and for a record that was written for another place).
    """
    if len(data) - position < HEADER_BYTES:
        raise BadRecordError("cut off within the header")
    magic, crc = _HEAD.unpack_from(data, position)
    if magic != RECORD_MAGIC:
        raise BadRecordError("no record magic")
    tail = bytes(data[position + 8 : position + HEADER_BYTES])
    if _checksum(tail) != crc:
        raise BadRecordError("header checksum")
    kind, version, count, columns_bytes, columns_crc, blob_bytes, blob_crc, place, synced, first, last = _TAIL.unpack(
        tail
    )
    if place != place_of(offset):
        raise BadRecordError(f"a record written for another place ({place * ALIGN})")
    if synced > offset:
        raise BadRecordError(f"bytes up to {synced} were durable before the record at {offset} was written")
    if not 0 < count <= RECORD_ROWS_MAX or record_bytes(columns_bytes, blob_bytes) > RECORD_BYTES_MAX:
        raise BadRecordError("beyond the bounds of a record")
    return RecordHeader(
        offset, kind, version, count, columns_bytes, columns_crc, blob_bytes, blob_crc, synced, first, last
    )


def known_batch(header: RecordHeader) -> type[ColumnBatch]:
    """The batch that a header announces. Raises UnknownRecordError: its header alone says so, however much of the record
    is there."""
    batch_type = BATCHES.get(header.kind)
    if batch_type is None or not knows(batch_type.schema, header.version):
        raise UnknownRecordError(f"unknown record kind {header.kind} version {header.version}")
    return batch_type


def verify_columns(header: RecordHeader, data: Buffer) -> dict[str, np.ndarray[Any, Any]]:
    """Check the column block's checksum and decode it. Raises BadRecordError."""
    batch_type = known_batch(header)
    if len(data) != header.columns_bytes:
        raise BadRecordError("cut off within the columns")
    if _checksum(bytes(data)) != header.columns_crc:
        raise BadRecordError("columns checksum")
    try:
        columns = decode_columns(schema_at(batch_type.schema, header.version), data, header.count)
    except MalformedColumnsError as error:
        raise BadRecordError(str(error)) from error
    if header.version < batch_type.schema.version:
        with_newer_fields(batch_type.schema, columns, header.count)
    if sum(blob_sizes(batch_type.schema, columns)) != header.blob_bytes:
        raise BadRecordError("lengths do not add up to the blob")
    return columns


def build_batch(header: RecordHeader, columns: Mapping[str, Any], blob: Buffer, *, verify: bool = True) -> ColumnBatch:
    """Put verified columns and the blob block together. Raises BadRecordError for a wrong blob checksum."""
    if len(blob) != header.blob_bytes:
        raise BadRecordError("cut off within the blob")
    if verify and header.blob_bytes and _checksum(bytes(blob)) != header.blob_crc:
        raise BadRecordError("blob checksum")
    batch_type = BATCHES[header.kind]
    view, position, blobs = memoryview(blob), 0, {}
    for name, size in zip(batch_type.schema.blobs, blob_sizes(batch_type.schema, dict(columns)), strict=True):
        blobs[name] = view[position : position + size]
        position += size
    return batch_type(**columns, **blobs)


def decode_body(header: RecordHeader, body: Buffer, *, verify: bool = True) -> ColumnBatch:
    """The batch from everything behind the header, padding included. Raises BadRecordError."""
    view = memoryview(body)
    columns = verify_columns(header, view[: header.columns_bytes])
    blob_end = header.columns_bytes + header.blob_bytes
    batch = build_batch(header, columns, view[header.columns_bytes : blob_end], verify=verify)
    padding = header.body_bytes - blob_end
    if padding and bytes(view[blob_end : header.body_bytes]) != bytes(padding):
        raise BadRecordError("padding")
    return batch


def decode_record(data: Buffer, offset: int = 0, *, verify: bool = True) -> ColumnBatch:
    """A whole record from its bytes, which stand at `offset` of the file. Raises BadRecordError."""
    header = decode_header(data, offset)
    return decode_body(header, memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.body_bytes], verify=verify)
