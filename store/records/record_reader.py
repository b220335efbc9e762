"""Sequential reading of a file below an end that is known to be whole: columns only, or columns and blobs.

The scanner of `scan.py` looks for the end of a file after a crash. Here all records were appended or recovered before, so
a record that does not verify is corruption. A caller that must go on serving gives a list for it.

The server reads below a known end, so it has nothing to judge. Tools and audit use `FastReader`, which verifies many
small records at once. Damage is judged in `scan.py` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c
import numpy as np

from store.disk.filesystem import File
from store.records.record import HEADER_BYTES, RECORD_MAGIC, BadRecordError, RecordHeader, decode_header
from store.records.scan import errno_of, read_ahead, read_around
from store.records.segment import FILE_HEADER_BYTES, Damage

# One read over small records; small enough that a hundred readers at once are no burden.
READ_BYTES = 256 << 10
# Records of at least this size are read one by one, so that skipping their blobs saves reads of the disk.
_RECORD_BYTES_LARGE = 64 << 10
_checksum = google_crc32c.value


class RecordReader:
    """Iterates over (header, column block, blob block); the blob is empty unless `blobs`. Checksums are verified, and
    with `blobs` the padding too."""

    def __init__(
        self, file: File, start: int, stop: int, *, blobs: bool, verify: bool = True, damages: list[Damage] | None
    ) -> None:
        self._file = file
        self._position = max(start, FILE_HEADER_BYTES)
        self._stop = stop
        self._blobs = blobs
        self._verify = verify
        self._damages = damages
        self._buffer = b""
        self._buffer_start = 0
        self._want = READ_BYTES

    def __iter__(self) -> Iterator[tuple[RecordHeader, bytes, bytes]]:
        """Raises CorruptionError, or puts the damage into the list and goes on behind it."""
        while self._position < self._stop:
            try:
                record = self._record(self._position)
            except BadRecordError as error:
                self._pass_over(error)
                continue
            self._position = record[0].end
            yield record

    def _record(self, position: int) -> tuple[RecordHeader, bytes, bytes]:
        header = decode_header(self._bytes(position, HEADER_BYTES), position)
        size = header.end - position
        if header.end > self._stop:
            raise BadRecordError("reaches beyond the end of the file")
        columns_bytes = header.columns_bytes
        self._want = READ_BYTES if size < _RECORD_BYTES_LARGE else HEADER_BYTES + columns_bytes
        data = self._bytes(position + HEADER_BYTES, header.body_bytes if self._blobs else columns_bytes)
        block = data[:columns_bytes]
        if _checksum(block) != header.columns_crc:
            raise BadRecordError("columns checksum")
        if not self._blobs:
            return header, block, b""
        blob_end = columns_bytes + header.blob_bytes
        blob, padding = data[columns_bytes:blob_end], data[blob_end:]
        if self._verify and blob and _checksum(blob) != header.blob_crc:
            raise BadRecordError("blob checksum")
        if self._verify and padding.count(0) != len(padding):
            raise BadRecordError("padding")
        return header, block, blob

    def _bytes(self, position: int, length: int) -> bytes:
        begin = position - self._buffer_start
        if begin < 0 or begin + length > len(self._buffer):
            want = min(max(length, self._want), self._stop - position)
            self._buffer = read_ahead(self._file, position, length, want)
            self._buffer_start, begin = position, 0
        data = self._buffer[begin : begin + length]
        if len(data) != length:
            raise BadRecordError("the file is shorter than it was")
        return data

    def _pass_over(self, error: BadRecordError) -> None:
        following = next_header(self._file, self._position + 8, self._stop)
        damage = Damage(self._position, following, str(error), errno_of(error))
        if self._damages is None:
            raise damage.error(self._file.path) from error
        self._damages.append(damage)
        self._position = following


def next_header(file: File, start: int, stop: int) -> int:
    """Offset of the first valid record header at or after `start` (a multiple of 8), or `stop`."""
    while start < stop:
        data = read_around(file, start, min(READ_BYTES + HEADER_BYTES, stop - start))
        words = np.frombuffer(data, "<u8", len(data) // 8)
        for place in (np.flatnonzero((words & np.uint64(0xFFFFFFFF)) == RECORD_MAGIC) * 8).tolist():
            try:
                decode_header(data, start + place, place)
            except BadRecordError:
                continue
            return int(start + place)
        start += READ_BYTES
    return stop
