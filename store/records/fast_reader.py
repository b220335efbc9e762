"""The reader of the tools and the audit: verifies every checksum of a file and gives many records at once.

`FastReader` reads bytes and gives `Records`, whose columns a few numpy calls decode. It never judges damage: where something
does not verify, it asks `store.records.scan` whether that is the end, a torn tail or corruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

import google_crc32c

from store.disk.filesystem import File
from store.errors import CorruptionError, FormatError
from store.records.checksum_fold import RUN_BYTES_MAX
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import HEADER_BYTES, BadRecordError, RecordHeader, decode_header, known_batch
from store.records.record_run import find_run
from store.records.records import Records, RecordsBuilder
from store.records.scan import Damage, Scan, ScanReport, pieces

# One read of the disk where records are verified one by one: large enough for the disk, small enough to stay in the
# third-level cache of the processor.
READ_BYTES = 4 << 20
# Blobs that are not wanted are passed over from this size on: that saves reads of the disk.
_SKIPPED_BYTES_MIN = 64 << 10
# A run holds records up to this size. The checksums of longer records are most of the work: they are verified one by one.
SMALL_BYTES_MAX = 4 << 10
# Where no run is found, so many bytes are read record by record before the reader looks for a run again.
_ONE_BY_ONE_BYTES = RUN_BYTES_MAX // 4
# A chunk ends with the record that reaches one of these bounds. Its columns take about ten megabytes.
CHUNK_ROWS_MAX = 1 << 17
CHUNK_RECORDS_MAX = 1 << 15
CHUNK_BLOB_BYTES_MAX = 16 << 20
_checksum = google_crc32c.value


class Blobs(Enum):
    """How the reader treats the blobs of records."""

    SKIP = "neither read nor verified, where that saves reads"
    VERIFY = "verified, with the padding"
    KEEP = "verified, with the padding, and given with the records"


class FastReader:
    """Iterates over the records of a file from `start` to `stop`. The file was durable up to `synced`.

    Damage never ends the iteration. During and after it, `report` says where the records end, whether a torn tail follows
    and which ranges are damaged. `damaged_between` has the sequences (after, before) around each range; `before` is
    -1 where no record followed. A record that only a newer program can read ends the iteration; `newer` then says so.
    """

    def __init__(
        self, file: File, start: int, stop: int, synced: int = FILE_HEADER_BYTES, blobs: Blobs = Blobs.VERIFY
    ) -> None:
        self._file = file
        self._start = start
        self._stop = stop
        self._blobs = blobs
        self._buffer = b""
        self._buffer_start = 0
        self._read_ahead = READ_BYTES
        # The sector at which the last read failed, or -1. A disk may take seconds for a failed read. So this sector is read
        # again only with a record that needs it.
        self._bad_sector = -1
        # One scan judges all damage of the file, because it remembers what stands behind the first one.
        self._scan: Scan | None = None
        # The record that the scan took and that is read again in bytes of now, or -1.
        self._read_again = -1
        self.report = ScanReport(start, synced=max(synced, start))
        self.newer = ""
        self.damaged_between: list[tuple[int, int]] = []
        self._last_sequence = 0
        self._no_run_before = 0

    def __iter__(self) -> Iterator[Records]:
        """Raises DiskError where the disk fails otherwise than by unreadable sectors."""
        records = RecordsBuilder()
        position: int | None = self._start
        while position is not None and position < self._stop:
            reached = self._read_some(position, records)
            if reached is None:
                position = self._judge(position)
                continue
            position = reached
            self.report.reach(reached)
            if (
                records.rows >= CHUNK_ROWS_MAX
                or records.records >= CHUNK_RECORDS_MAX
                or (self._blobs is Blobs.KEEP and records.blob_bytes >= CHUNK_BLOB_BYTES_MAX)
            ):
                yield records.take()
        if records.records:
            yield records.take()

    def _bytes(self, position: int, length: int) -> int:
        """Read these bytes into the buffer unless it has them. Returns where they start in it; it may end before them."""
        begin = position - self._buffer_start
        if begin < 0 or begin + length > len(self._buffer):
            self._load(position, length)
            return 0
        return begin

    def _load(self, position: int, length: int) -> None:
        """Fill the buffer from `position` on: with `length` bytes, and more where that costs no failed read."""
        want = min(max(length, self._read_ahead), self._stop - position)
        if position <= self._bad_sector < position + want:
            want = max(length, self._bad_sector - position)
        try:
            self._buffer = self._file.pread(position, want)
        except CorruptionError:
            self._buffer = bytes_before_bad_sector(self._file, position, want)
            self._bad_sector = position + len(self._buffer)
            if len(self._buffer) < length:
                self._load_only(position, length)
        self._buffer_start = position

    def _load_only(self, position: int, length: int) -> None:
        """Read no byte that is not needed: what cannot be read may share its sector with the end of these bytes."""
        with suppress(CorruptionError):
            self._buffer = self._file.pread(position, min(length, self._stop - position))

    def _read_some(self, position: int, records: RecordsBuilder) -> int | None:
        """Verify the record at `position`, and the small ones behind a small one with it, and add them. Returns where they
        end, or None where no valid record stands."""
        begin = self._bytes(position, HEADER_BYTES)
        try:
            header = decode_header(self._buffer, position, begin)
            known_batch(header)
        except BadRecordError:
            return None
        if header.end > self._stop:
            return None
        if header.columns_bytes + header.blob_bytes <= SMALL_BYTES_MAX and position >= self._no_run_before:
            reached = self._read_run(position, records)
            if reached is not None:
                return reached
            self._no_run_before = position + _ONE_BY_ONE_BYTES
        return self._read_one(header, records)

    def _read_run(self, position: int, records: RecordsBuilder) -> int | None:
        """None where not even two records verify together."""
        self._read_ahead = RUN_BYTES_MAX
        if position != self._buffer_start or len(self._buffer) > RUN_BYTES_MAX:
            self._load(position, HEADER_BYTES)
        run = find_run(self._buffer, position)
        if run is None:
            return None
        records.add_run(run, self._buffer, position)
        self._went_on(int(run.firsts[0]), int(run.lasts[-1]), run.synced)
        return position + int(run.ends[-1])

    def _read_one(self, header: RecordHeader, records: RecordsBuilder) -> int | None:
        """None where the record does not verify."""
        size, skip = header.end - header.offset, self._blobs is Blobs.SKIP
        wanted = HEADER_BYTES + header.columns_bytes if skip else size
        self._read_ahead = wanted if size - wanted >= _SKIPPED_BYTES_MIN else READ_BYTES
        begin = self._bytes(header.offset, wanted)
        if len(self._buffer) - begin < wanted:
            return None
        start = begin + HEADER_BYTES
        blob = start + header.columns_bytes
        padding = blob + header.blob_bytes
        block = self._buffer[start:blob]
        if _checksum(block) != header.columns_crc:
            return None
        if not skip:
            if header.blob_bytes and _checksum(self._buffer[blob:padding]) != header.blob_crc:
                return None
            if any(self._buffer[padding : begin + size]):
                return None
        records.add(header, self._buffer[start:padding] if self._blobs is Blobs.KEEP else block)
        self._went_on(header.first_sequence, header.last_sequence, header.synced_before)
        return header.end

    def _went_on(self, first: int, last: int, synced: int) -> None:
        self.report.add_synced(synced)
        place = len(self.damaged_between) - 1
        while place >= 0 and self.damaged_between[place][1] < 0:
            self.damaged_between[place] = (self.damaged_between[place][0], first)
            place -= 1
        self._last_sequence = last

    def _judge(self, position: int) -> int | None:
        """No valid record stands at `position`. Returns the offset at which to go on, or None at the end."""
        report, known = ScanReport(position), len(self.report.damages)
        if self._scan is None:
            self._scan = Scan(self._file, position, self._stop)
        try:
            following: Any = next(self._scan.records(position, self.report.synced, report, forgive=True), None)
        except FormatError as error:
            self.newer = error.detail
            self.report.reach(report.end)
            return None
        self.report.add_synced(report.synced)
        self.report.damages.extend(report.damages)
        reached = None if following is None else int(following[0].offset)
        if following is not None and reached == position:
            if self._read_again != position:
                # A running server wrote it between the two reads.
                self._read_again, self._buffer = position, b""
                return position
            # The scan takes a record that did not verify here. To read it again would never end.
            reached = int(following[0].end)
            self.report.damages.append(Damage(position, reached, "the record verifies in one of two readers only"))
        self.damaged_between += [(self._last_sequence, -1)] * (len(self.report.damages) - known)
        if reached is not None:
            return reached
        self.report.reach(report.end)
        self.report.stop(report.torn_detail if report.torn else None)
        return None


def bytes_before_bad_sector(file: File, position: int, length: int) -> bytes:
    """Those of these bytes that stand before the first sector that cannot be read."""
    parts: list[bytes] = []
    for _, _, data in pieces(file, position, length):
        if data is None:
            break
        parts.append(data)
    return b"".join(parts)
