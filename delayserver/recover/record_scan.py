"""Reading every record of a file, fast, and verifying every checksum. Bytes in, blocks of columns out.

The judgement over what does not verify (the end, torn, corrupt) is `store.scan`'s; it is asked only where something is
wrong. Many records are given at once, so that whoever decodes their columns does it with a few numpy calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c

from delayserver.recover.checksum_fold import RUN_BYTES_MAX
from delayserver.recover.record_run import find_run
from delayserver.recover.records import Records, RecordsBuilder
from delayserver.recover.sectors import bytes_before_bad_sector
from store.errors import CorruptionError, FormatError
from store.filesystem import File
from store.record import BATCHES, HEADER_BYTES, RECORD_BYTES_MAX, RECORD_MAGIC, RECORD_ROWS_MAX, record_bytes
from store.scan import Damage, Scan, ScanReport
from store.segment import FILE_HEADER_BYTES

# One read of the disk: large enough for its speed, small enough to stay in the cache of the processor's third level.
READ_BYTES = 4 << 20
# Records up to this size are verified many at once; beyond it the checksums themselves are most of the work.
SMALL_BYTES_MAX = 4 << 10
# So far it goes record by record where a run has none or has damage, before a run is tried again.
_ONE_BY_ONE_BYTES = RUN_BYTES_MAX // 4
# Records given at once. The columns of so many rows or blocks are some ten megabytes.
CHUNK_ROWS_MAX = 1 << 18
CHUNK_RECORDS_MAX = 1 << 15
_HEADER = struct.Struct("<IIHHIIIQIIQqq")
_LENGTHS = struct.Struct("<IIQ")  # of the columns, their checksum, of the blob
_checksum = google_crc32c.value
_VERSIONS = {kind: batch.schema.version for kind, batch in BATCHES.items()}


class RecordScan:
    """All records of a file from `start` to `stop`, of which those below `synced` are known to be durable.

    While and after it is iterated, `report` says where the records end, whether a torn tail follows and what is
    damaged; `newer` holds the text of a record that only a newer program can read (reading stops there). A record that the
    disk cannot read is damage like any other.
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
        # Where reading failed last. A disk may take seconds for that: it is asked again only with a record that needs it.
        self._bad_sector = -1
        # It knows what stands behind the first damage, for all others too.
        self._judging: Scan | None = None
        self.report = ScanReport(start, synced=max(synced, start))
        self.newer = ""
        self.damaged_between: list[tuple[int, int]] = []
        self._last_sequence = 0
        self._no_run_before = 0

    def __iter__(self) -> Iterator[Records]:
        records = RecordsBuilder()
        position = self._start
        while position < self._stop:
            reached = self._read_run(position, records) or self._read_one(position, records)
            if reached is None:
                following = self._judge(position)
                if following is None:
                    break
                position = following
                continue
            position = self.report.end = reached
            if records.rows >= CHUNK_ROWS_MAX or records.records >= CHUNK_RECORDS_MAX:
                yield records.take()
        if records.records:
            yield records.take()

    def _bytes(self, position: int, length: int) -> int:
        """Make sure that the buffer holds these bytes; returns where in it they start."""
        begin = position - self._buffer_start
        if begin < 0 or begin + length > len(self._buffer):
            want = min(max(length, READ_BYTES), self._stop - position)
            self._buffer = self._read(position, length, want)
            self._buffer_start, begin = position, 0
        return begin

    def _read(self, position: int, length: int, want: int) -> bytes:
        """`want` bytes, of which `length` are needed; fewer where the disk cannot read them all."""
        if position <= self._bad_sector < position + want:
            want = max(length, self._bad_sector - position)
        try:
            return self._file.pread(position, want)
        except CorruptionError:
            data = bytes_before_bad_sector(self._file, position, want)
            self._bad_sector = position + len(data)
            return data

    def _read_run(self, position: int, records: RecordsBuilder) -> int | None:
        """Verify the small records from `position` on together and add them; returns the end of the last one.

        None where the next record is no small one, or where something in the run is not right.
        """
        if position < self._no_run_before or self._stop - position < 2 * HEADER_BYTES:
            return None
        begin = self._bytes(position, HEADER_BYTES)
        if len(self._buffer) - begin < HEADER_BYTES:
            return None
        columns_bytes, _, blob_bytes = _LENGTHS.unpack_from(self._buffer, begin + 16)
        if columns_bytes + blob_bytes > SMALL_BYTES_MAX:
            return None
        buffer = self._read(position, HEADER_BYTES, min(RUN_BYTES_MAX, self._stop - position))
        run = find_run(buffer, position)
        if run is None:
            self._no_run_before = position + _ONE_BY_ONE_BYTES
            return None
        records.add_run(run, buffer, position)
        self._went_on(int(run.firsts[0]), int(run.lasts[-1]), run.synced)
        return position + int(run.ends[-1])

    def _went_on(self, first: int, last: int, synced: int) -> None:
        self.report.synced = max(self.report.synced, synced)
        place = len(self.damaged_between) - 1
        while place >= 0 and self.damaged_between[place][1] < 0:
            self.damaged_between[place] = (self.damaged_between[place][0], first)
            place -= 1
        self._last_sequence = last

    def _read_one(self, position: int, records: RecordsBuilder) -> int | None:
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
        if (
            synced > position
            or not 0 < count <= RECORD_ROWS_MAX
            or size > RECORD_BYTES_MAX
            or position + size > self._stop
        ):
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
        records.add(position, kind, count, first, last, block, blob_bytes)
        self._went_on(first, last, synced)
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
        if self._judging is None:
            self._judging = Scan(self._file, position, self._stop)
        try:
            following: Any = next(self._judging.records(position, self.report.synced, report, forgive=True), None)
        except FormatError as error:
            self.newer = error.detail
            self.report.end = report.end
            return None
        self.report.synced = max(self.report.synced, report.synced)
        self.report.damages += report.damages
        self.damaged_between += [(self._last_sequence, -1)] * len(report.damages)
        if following is not None:
            return int(following[0].offset)
        self.report.end = report.end
        self.report.torn, self.report.torn_detail = report.torn, report.torn_detail
        return None

    @property
    def damages(self) -> list[Damage]:
        """Corrupt ranges passed over so far."""
        return self.report.damages
