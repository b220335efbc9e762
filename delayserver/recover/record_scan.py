"""Reading every record of a file, fast, and verifying every checksum. Bytes in, blocks of columns out.

The judgement over what does not verify (the end, torn, corrupt) is `store.scan`'s; it is asked only where something is
wrong. Many records are given at once, so that whoever decodes their columns does it with a few numpy calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

from store.batches import I64
from store.column_blocks import Columns, decode_blocks
from store.columns import ColumnBatch, MalformedColumnsError
from store.errors import FormatError
from store.filesystem import File
from store.record import BATCHES, HEADER_BYTES, RECORD_BYTES_MAX, RECORD_MAGIC, RECORD_ROWS_MAX, record_bytes
from store.scan import Damage, Scan, ScanReport
from store.segment import FILE_HEADER_BYTES

# One read of the disk: large enough for its speed, small enough to stay in the cache of the processor's third level.
READ_BYTES = 4 << 20
# Records given at once. The columns of so many rows or blocks are some ten megabytes.
CHUNK_ROWS_MAX = 1 << 18
CHUNK_RECORDS_MAX = 1 << 15
_HEADER = struct.Struct("<IIHHIIIQIIQqq")
_checksum = google_crc32c.value
_VERSIONS = {kind: batch.schema.version for kind, batch in BATCHES.items()}


@dataclass(slots=True)
class Records:
    """Verified records, one entry each: position in the file, kind, rows, first and last sequence, column block, and
    where the blob block starts and how long it is."""

    offsets: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    blob_offsets: list[int] = field(default_factory=list)
    blob_bytes: list[int] = field(default_factory=list)
    rows: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def of_kind(self, kind: int) -> Records:
        """Only the records of one kind."""
        if all(found == kind for found in self.kinds):
            return self
        part = Records()
        for place, found in enumerate(self.kinds):
            if found == kind:
                part.offsets.append(self.offsets[place])
                part.kinds.append(kind)
                part.counts.append(self.counts[place])
                part.firsts.append(self.firsts[place])
                part.lasts.append(self.lasts[place])
                part.blocks.append(self.blocks[place])
                part.blob_offsets.append(self.blob_offsets[place])
                part.blob_bytes.append(self.blob_bytes[place])
                part.rows += self.counts[place]
        return part

    def columns(self, batch_type: type[ColumnBatch], names: Sequence[str]) -> Columns:
        """The named columns of all rows. Raises MalformedColumnsError; all records must be of this kind."""
        lengths = [f"{name}_length" for name in batch_type.schema.blobs]
        columns = decode_blocks(batch_type.schema, self.blocks, self.counts, [*names, *lengths])
        total = sum([int(columns[name].sum(dtype=np.int64)) for name in lengths])
        if total != sum(self.blob_bytes):
            raise MalformedColumnsError("lengths do not add up to the blobs")
        return columns

    def row_offsets(self) -> I64:
        """The offset of each row's record, i64[rows]."""
        return np.repeat(np.array(self.offsets, np.int64), self.counts)


class RecordScan:
    """All records of a file from `start` to `stop`, of which those below `synced` are known to be durable.

    While and after it is iterated, `report` says where the records end, whether a torn tail follows and what is
    damaged; `newer` holds the text of a record that only a newer program can read (reading stops there).
    """

    def __init__(
        self, file: File, start: int, stop: int, synced: int = FILE_HEADER_BYTES, *, blobs: bool = True
    ) -> None:
        self._file = file
        self._start = start
        self._stop = stop
        self._blobs = blobs
        self._buffer = b""
        self._buffer_start = 0
        self.report = ScanReport(start, synced=max(synced, start))
        self.newer = ""
        self.damaged_between: list[tuple[int, int]] = []
        self._last_sequence = 0

    def __iter__(self) -> Iterator[Records]:
        records = Records()
        position = self._start
        while position < self._stop:
            reached = self._read_one(position, records)
            if reached is None:
                following = self._judge(position)
                if following is None:
                    break
                position = following
                continue
            position = self.report.end = reached
            if records.rows >= CHUNK_ROWS_MAX or len(records) >= CHUNK_RECORDS_MAX:
                yield records
                records = Records()
        if len(records):
            yield records

    def _bytes(self, position: int, length: int) -> int:
        """Make sure that the buffer holds these bytes; returns where in it they start."""
        begin = position - self._buffer_start
        if begin < 0 or begin + length > len(self._buffer):
            want = min(max(length, READ_BYTES), self._stop - position)
            self._buffer = self._file.pread(position, want)
            self._buffer_start, begin = position, 0
        return begin

    def _read_one(self, position: int, records: Records) -> int | None:
        """Verify the record at `position` and add it; returns its end, or None where there is no valid record."""
        if position + HEADER_BYTES > self._stop:
            return None
        begin = self._bytes(position, HEADER_BYTES)
        buffer = self._buffer
        if len(buffer) - begin < HEADER_BYTES:
            return None
        magic, header_crc, kind, version, count, columns_bytes, columns_crc, blob_bytes, blob_crc, place, synced, first, last = _HEADER.unpack_from(buffer, begin)  # fmt: skip  # noqa: E501
        if magic != RECORD_MAGIC or place != (position >> 3) & 0xFFFF_FFFF:
            return None
        if _checksum(buffer[begin + 8 : begin + HEADER_BYTES]) != header_crc or _VERSIONS.get(kind) != version:
            return None
        size = record_bytes(columns_bytes, blob_bytes)
        if not 0 < count <= RECORD_ROWS_MAX or size > RECORD_BYTES_MAX or position + size > self._stop:
            return None
        wanted = size if self._blobs else HEADER_BYTES + columns_bytes
        begin = self._bytes(position, wanted)
        buffer = self._buffer
        columns_start = begin + HEADER_BYTES
        blob_start = columns_start + columns_bytes
        block = buffer[columns_start:blob_start]
        if len(block) != columns_bytes or _checksum(block) != columns_crc:
            return None
        if self._blobs and not self._blob_is_whole(buffer, blob_start, blob_bytes, blob_crc, begin + size):
            return None
        records.offsets.append(position)
        records.kinds.append(kind)
        records.counts.append(count)
        records.firsts.append(first)
        records.lasts.append(last)
        records.blocks.append(block)
        records.blob_offsets.append(position + HEADER_BYTES + columns_bytes)
        records.blob_bytes.append(blob_bytes)
        records.rows += count
        self.report.synced = max(self.report.synced, synced)
        if self.damaged_between and self.damaged_between[-1][1] < 0:
            self.damaged_between[-1] = (self.damaged_between[-1][0], first)
        self._last_sequence = last
        return position + size

    def _blob_is_whole(self, buffer: bytes, start: int, length: int, crc: int, end: int) -> bool:
        if len(buffer) < end:
            return False
        if length and _checksum(buffer[start : start + length]) != crc:
            return False
        return not any(buffer[start + length : end])

    def _judge(self, position: int) -> int | None:
        """What stands at `position` is no valid record: the offset to go on from, or None at the end."""
        report = ScanReport(position)
        scan = Scan(self._file, position, self._stop)
        try:
            following: Any = next(scan.records(position, self.report.synced, report, forgive=True), None)
        except FormatError as error:
            self.newer = error.detail
            self.report.end = report.end
            return None
        self.report.synced = max(self.report.synced, report.synced)
        self.report.damages += report.damages
        if report.damages:
            self.damaged_between.append((self._last_sequence, -1))
        if following is not None:
            return int(following[0].offset)
        self.report.end = report.end
        self.report.torn, self.report.torn_detail = report.torn, report.torn_detail
        return None

    @property
    def damages(self) -> list[Damage]:
        """Corrupt ranges passed over so far."""
        return self.report.damages
