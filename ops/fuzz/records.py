"""Targets for the parts of a log: file header, one record, and column blocks read by two decoders that must agree."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

from ops.fuzz.target import Target, ensure
from store.errors import StoreError
from store.records.batches import (
    IndexBatch,
    LedgerBatch,
    MessageBatch,
    NameBatch,
    OutcomeBatch,
    ProgressBatch,
    RunBatch,
    StoredBatch,
)
from store.records.column_batch import ColumnBatch, MalformedColumnsError, decode_columns, encode_columns
from store.records.column_blocks import decode_blocks
from store.records.file_header import FILE_HEADER_BYTES, FORMAT_VERSION, FileHeader, decode_file_header
from store.records.record import BATCHES, HEADER_BYTES, BadRecordError, decode_record, encode_record, record_bytes

_LENGTHS = struct.Struct("<IIQII")  # columns_bytes, columns_crc, blob_bytes, blob_crc, place at 16 of a record header
_COUNT_MAX = 0xFFFF


def crc_bytes(data: bytes | bytearray) -> bytes:
    """CRC-32C as four bytes."""
    value: int = google_crc32c.value(bytes(data))
    return value.to_bytes(4, "little")


def examples() -> list[ColumnBatch]:
    """A small batch of every kind, with plain, constant and stepping columns."""
    return [
        MessageBatch.filled(
            3, sequence=np.arange(7, 10), due_ms=np.array([60_005, 60_000, 60_100]), accepted_us=9, subject=1,
            ids_length=np.array([1, 0, 2]), bodies_length=5, ids=b"abb", bodies=b"hello" * 3,
        ),
        MessageBatch.filled(1, sequence=10, due_ms=60_000, subject=1, bodies_length=3, bodies=b"one"),
        OutcomeBatch.filled(2, sequence=np.array([7, 9]), due_ms=60_005, subject=1, outcome=4, attempts=1),
        NameBatch.filled(2, code=np.arange(1, 3), name_kind=0, names_length=np.array([1, 2]), names=b"abb"),
        StoredBatch.filled(2, sequence=np.arange(7, 9), position=np.arange(2), server_id=5, subject=1, window_ms=60_000,
                           bodies_length=1, bodies=b"xy"),
        ProgressBatch.filled(2, start=np.array([0, 5]), stop=np.array([5, 9]), subject=1, consumer_group=2),
        RunBatch.filled(2, position=np.array([0, 3]), store_offset=64, row_count=np.array([3, 1])),
        IndexBatch.filled(2, hash=np.array([-5, 8]), place=np.array([64, 4096]), row=np.array([0, 3])),
        LedgerBatch.filled(2, start_ms=60_000, subject=np.array([1, 2]), accepted=5, delivered=5, last_sequence=9),
    ]  # fmt: skip


def mend_file_header(data: bytes) -> bytes:
    """Corrects the checksum in the first 64 bytes."""
    if len(data) < FILE_HEADER_BYTES:
        return data
    return data[:40] + crc_bytes(data[:40]) + data[44:]


def mend_record(data: bytes, start: int = 0, place: int = 0) -> tuple[bytes, int]:
    """Corrects the checksums and the place of the record at `start`, if its lengths are within the data. Returns the
    data and the start of the next record."""
    if len(data) < start + HEADER_BYTES:
        return data, len(data)
    columns_bytes, _, blob_bytes, _, _ = _LENGTHS.unpack_from(data, start + 16)
    size = record_bytes(columns_bytes, blob_bytes)
    mended = bytearray(data)
    if int.from_bytes(data[start + 12 : start + 16], "little") > _COUNT_MAX:
        # Limits the row count, because records near the bound of 2^24 rows take seconds and would take all the time.
        mended[start + 14 : start + 16] = bytes(2)
    if start + size <= len(data):
        columns = start + HEADER_BYTES
        blob = columns + columns_bytes
        mended[start + 20 : start + 24] = crc_bytes(mended[columns:blob])
        mended[start + 32 : start + 36] = crc_bytes(mended[blob : blob + blob_bytes]) if blob_bytes else bytes(4)
    mended[start : start + 4] = b"DREC"
    mended[start + 36 : start + 40] = ((place // 8) & 0xFFFF_FFFF).to_bytes(4, "little")
    mended[start + 4 : start + 8] = crc_bytes(mended[start + 8 : start + HEADER_BYTES])
    return bytes(mended), start + size


def mend_log(data: bytes) -> bytes:
    """Corrects a whole file: the header and every record that the lengths lead to."""
    data = mend_file_header(data)
    position = FILE_HEADER_BYTES
    while position < len(data):
        data, position = mend_record(data, position, position)
    return data


def log_of(kind: int, batches: list[ColumnBatch], base: int = 0, span_ms: int = 0, server_id: int = 5) -> bytes:
    """A whole file of these records. The `synced_before` of each is its own start."""
    parts = [FileHeader(kind, server_id, base, span_ms).encode()]
    offset = FILE_HEADER_BYTES
    for batch in batches:
        record = encode_record(batch, offset, offset)
        parts += [bytes(buffer) for buffer in record.buffers]
        offset += record.total_bytes
    return b"".join(parts)


def verify_accepted(data: bytes, offset: int, batch: ColumnBatch) -> None:
    """Raises Garbage unless a record of a reader is in these bytes, with the same blob and with right checksums."""
    columns_bytes, columns_crc, blob_bytes, blob_crc, place = _LENGTHS.unpack_from(data, offset + 16)
    columns = offset + HEADER_BYTES
    blob = columns + columns_bytes
    ensure(
        crc_bytes(data[offset + 8 : columns]) == data[offset + 4 : offset + 8], "a record without its header checksum"
    )
    ensure(int.from_bytes(crc_bytes(data[columns:blob]), "little") == columns_crc, "columns without their checksum")
    body = data[blob : blob + blob_bytes]
    ensure(len(body) == blob_bytes, "a record longer than the file")
    ensure(not blob_bytes or int.from_bytes(crc_bytes(body), "little") == blob_crc, "a blob without its checksum")
    ensure(place == (offset // 8) & 0xFFFF_FFFF, "a record of another place")
    ensure(
        b"".join(bytes(getattr(batch, name)) for name in batch.schema.blobs) == body, "a blob that is not the record's"
    )


def _header_seeds() -> list[bytes]:
    return [FileHeader(kind, 5, base, 60_000).encode() for kind, base in ((1, 0), (2, 60_000), (8, -1))]


def check_file_header(data: bytes) -> bool:
    """Accepted headers of this version must encode to the same 64 bytes."""
    try:
        header = decode_file_header(data, "/f")
    except StoreError:
        return False
    if int.from_bytes(data[8:10], "little") == FORMAT_VERSION:
        ensure(header.encode() == data[:FILE_HEADER_BYTES], "a file header is written differently")
    return True


def _record_seeds() -> list[bytes]:
    return [b"".join(map(bytes, encode_record(batch, 64, 128).buffers)) for batch in examples()]


def check_record(data: bytes) -> bool:
    """Accepted records must have the same columns after encoding and decoding."""
    try:
        batch = decode_record(data, 128)
    except BadRecordError:
        return False
    shifted = bytes(128) + data
    verify_accepted(shifted, 128, batch)
    ensure(len(batch) <= 1 << 24, "more rows than the bound")
    _same(batch, decode_record(b"".join(map(bytes, encode_record(batch, 64, 128).buffers)), 128))
    return True


def _same(one: ColumnBatch, other: ColumnBatch) -> None:
    for name, _ in one.schema.fields:
        ensure(bool((getattr(one, name) == getattr(other, name)).all()), f"column {name} changes when it is written")


def _mend_one(data: bytes) -> bytes:
    return mend_record(data, 0, 128)[0]


def _blocks_seeds() -> list[bytes]:
    seeds = []
    for batch in examples():
        block = encode_columns(batch)
        head = bytes((batch.schema.kind,)) + len(batch).to_bytes(2, "little") + len(block).to_bytes(2, "little")
        seeds.append(head + block + block)
    return seeds


def check_blocks(data: bytes) -> bool:
    """Reads two blocks one by one and together; the columns must be the same. The input is [kind, count u16, length
    u16, block, block]."""
    if len(data) < 5 or data[0] not in BATCHES:
        return False
    schema = BATCHES[data[0]].schema
    count, length = int.from_bytes(data[1:3], "little") or 1, int.from_bytes(data[3:5], "little")
    blocks = [data[5 : 5 + length], data[5 + length : 5 + 2 * length]]
    names = [name for name, _ in schema.fields]
    try:
        apart = [decode_columns(schema, block, count) for block in blocks]
    except MalformedColumnsError:
        apart = None
    try:
        together = decode_blocks(schema, blocks, [count, count], names)
    except MalformedColumnsError:
        together = None
    if apart is None or together is None:
        ensure(apart is None and together is None, "one decoder accepts what the other refuses")
        return False
    for name in names:
        joined = np.concatenate([columns[name] for columns in apart])
        ensure(bool((together[name] == joined).all()), f"column {name} is read differently")
    return True


TARGETS = (
    Target("file-header", _header_seeds, check_file_header, mend_file_header),
    Target("record", _record_seeds, check_record, _mend_one),
    Target("column-blocks", _blocks_seeds, check_blocks),
)
