"""The index of one sealed segment of the store: from the hash of an id or a key to the rows that may have it.

The file has a directory and buckets of rows in the order of their hashes. A search reads the directory and one bucket,
however long the segment is. The index only proposes rows: the caller compares the bytes of the message.

Everything in it follows from the segment. So it is written without haste, and made again when it is damaged or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import File, FileSystem, directory_of, read_twice, write_atomically
from store.errors import CorruptionError
from store.records.batches import I64, U32, IndexBatch
from store.records.file_header import FILE_HEADER_BYTES, FILE_INDEX, FileHeader, decode_file_header
from store.records.record import (
    HEADER_BYTES,
    BadRecordError,
    EncodedRecord,
    decode_body,
    decode_header,
    encode_record,
)

# Rows of a bucket: 20 KiB, which one read brings.
BUCKET_ROWS = 1024
# Buckets that are encoded in one step: about 3 ms.
STEP_BUCKETS = 64
SUFFIX = ".index"


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Rows to be found by hash: `hash` i64[n], the store offset `place` i64[n] of each row's record, its `row` u32[n]."""

    hash: I64
    place: I64
    row: U32

    def __len__(self) -> int:
        return len(self.hash)

    def with_hash(self, hashed: int) -> IndexRows:
        """The rows with one hash, of rows in the order of their hashes."""
        first, last = np.searchsorted(self.hash, hashed), np.searchsorted(self.hash, hashed, side="right")
        return IndexRows(self.hash[first:last], self.place[first:last], self.row[first:last])

    def where(self, mask: NDArray[np.bool_]) -> IndexRows:
        """The rows of a mask, in their order."""
        return IndexRows(self.hash[mask], self.place[mask], self.row[mask])

    @classmethod
    def joined(cls, parts: list[IndexRows]) -> IndexRows:
        """All rows of some parts, in the order of their hashes; rows with one hash keep their order."""
        rows = cls.together(parts)
        order = np.argsort(rows.hash, kind="stable")
        return cls(rows.hash[order], rows.place[order], rows.row[order])

    @classmethod
    def together(cls, parts: list[IndexRows]) -> IndexRows:
        """All rows of some parts, one part behind the other."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32))
        return cls(
            np.concatenate([part.hash for part in parts]),
            np.concatenate([part.place for part in parts]),
            np.concatenate([part.row for part in parts]),
        )


def index_path(directory: str, base: int) -> str:
    """The index of the segment that begins at store offset `base`, in the broker's folder `directory`."""
    return f"{directory}/index/{base:020d}{SUFFIX}"


def base_of(name: str) -> int:
    """The base in the name of an index file; -1 if it is no such name."""
    digits = name.removesuffix(SUFFIX)
    return int(digits) if name.endswith(SUFFIX) and digits.isdecimal() else -1


def write_index(fs: FileSystem, path: str, server_id: int, base: int, rows: IndexRows) -> Iterator[None]:
    """Write the index of a segment, in steps of some milliseconds. A crash leaves no file or a whole one. Raises
    DiskFullError, StoreError."""
    parts = []
    for part in encode_index(server_id, base, rows):
        parts.append(part)
        yield
    fs.make_directory(directory_of(path))
    write_atomically(fs, path, b"".join(parts))


def encode_index(server_id: int, base: int, rows: IndexRows) -> Iterator[bytes]:
    """The bytes of an index file in some parts, of which each is made in some milliseconds. `rows` are in the order of
    their hashes."""
    yield FileHeader(FILE_INDEX, server_id, base).encode()
    if not len(rows):
        return
    buckets = [_bucket(rows, start) for start in range(0, len(rows), BUCKET_ROWS)]
    # The directory says where each bucket stands, and so how long it is itself: its length does not depend on them.
    sizes = []
    for some in _groups(buckets):
        sizes += [encode_record(bucket, 0).total_bytes for bucket in some]
        yield b""
    places = FILE_HEADER_BYTES + np.cumsum([0, *sizes[:-1]])
    directory = _directory(buckets, places)
    directory = _directory(buckets, places + directory.total_bytes)
    yield b"".join(map(bytes, directory.buffers))
    position = FILE_HEADER_BYTES + directory.total_bytes
    for some in _groups(buckets):
        parts: list[bytes] = []
        for bucket in some:
            record = encode_record(bucket, 0, position)
            parts += map(bytes, record.buffers)
            position += record.total_bytes
        yield b"".join(parts)


def _groups(buckets: list[IndexBatch]) -> list[list[IndexBatch]]:
    return [buckets[start : start + STEP_BUCKETS] for start in range(0, len(buckets), STEP_BUCKETS)]


def _bucket(rows: IndexRows, start: int) -> IndexBatch:
    some = slice(start, start + BUCKET_ROWS)
    count = len(rows.hash[some])
    return IndexBatch.filled(count, hash=rows.hash[some], place=rows.place[some], row=rows.row[some])


def _directory(buckets: list[IndexBatch], places: I64) -> EncodedRecord:
    first = np.array([bucket.hash[0] for bucket in buckets], np.int64)
    counts = np.array([len(bucket) for bucket in buckets], np.uint32)
    batch = IndexBatch.filled(len(buckets), hash=first, place=places, row=counts)
    return encode_record(batch, 0, FILE_HEADER_BYTES)


def search_index(fs: FileSystem, path: str, server_id: int, base: int, hashed: int) -> IndexRows:
    """The rows of a segment with one hash. Raises FileNotFoundError, CorruptionError (the index is to be made again),
    FormatError for a file of another server or of a newer program, DiskError."""
    file = fs.open(path, write=False)
    try:
        size = file.size()
        header = decode_file_header(read_twice(file, 0, FILE_HEADER_BYTES), path)
        if (header.kind, header.server_id, header.base) != (FILE_INDEX, server_id, base):
            raise CorruptionError(path, 0, "not the index of this segment")
        found: list[IndexRows] = []
        if size > FILE_HEADER_BYTES:
            directory = _record(file, FILE_HEADER_BYTES, size)
            first = max(int(np.searchsorted(directory.hash, hashed)) - 1, 0)
            for bucket in range(first, len(directory)):
                if int(directory.hash[bucket]) > hashed:
                    break
                rows = _record(file, int(directory.place[bucket]), size)
                found.append(IndexRows(rows.hash, rows.place, rows.row).with_hash(hashed))
        return IndexRows.joined(found)
    finally:
        file.close()


def _record(file: File, position: int, size: int) -> IndexBatch:
    try:
        if not FILE_HEADER_BYTES <= position < size:
            raise BadRecordError(f"a file of {size} bytes has no record there")
        header = decode_header(file.pread(position, HEADER_BYTES), position)
        if header.end > size:
            raise BadRecordError("reaches beyond the end of the file")
        batch = decode_body(header, file.pread(position + HEADER_BYTES, header.body_bytes))
    except BadRecordError as error:
        raise CorruptionError(file.path, position, str(error)) from error
    if not isinstance(batch, IndexBatch):
        raise CorruptionError(file.path, position, f"a record of kind {header.kind} in an index")
    return batch
