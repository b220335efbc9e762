"""Reading records one behind the other, and the judgement where one is bad: the end, a torn tail, or corruption.

Unsynced pages may reach the disk in any order, so "bad, then good" alone proves nothing. Each record header carries the
offset that was durable when it was written. Damage below the highest such offset is corruption and is reported. Damage
above it is a torn tail, which a crash leaves, and ends the scan. FORMAT.md numbers the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from store.disk.filesystem import File
from store.errors import CorruptionError, FormatError, UnreadableError
from store.records.column_batch import ColumnBatch
from store.records.record import (
    ALIGN,
    HEADER_BYTES,
    RECORD_MAGIC,
    BadRecordError,
    RecordHeader,
    UnknownRecordError,
    decode_body,
    decode_header,
    known_batch,
)

# One read while scanning: large enough for the disk, small enough for memory.
SCAN_BYTES = 1 << 20
# A disk that cannot read one byte cannot read the sector around it either.
SECTOR_BYTES = 512


class UnreadableRecordError(BadRecordError):
    """The disk cannot read the record, or its header. `errno` is that of the system."""

    def __init__(self, error: UnreadableError) -> None:
        super().__init__(error.detail)
        self.errno = error.errno


@dataclass(frozen=True, slots=True)
class Damage:
    """A range that was durable once and cannot be read. Reading went on at `stop`.

    `errno` is 0 where the bytes are wrong, and that of the system where the disk cannot read them.
    """

    start: int
    stop: int
    detail: str
    errno: int = 0

    def error(self, path: str) -> CorruptionError:
        """The damage as an error of the file at `path`: UnreadableError where the disk cannot read it."""
        if self.errno:
            return UnreadableError(path, self.start, self.detail, self.errno)
        return CorruptionError(path, self.start, self.detail)


@dataclass(slots=True)
class ScanReport:
    """Filled while a scan runs. `end` is where valid records end; `torn` says that bytes after it are a crash's.

    `synced` is the highest offset that a record header says was durable. If the process stopped and not the machine, the
    bytes between `synced` and `end` may be in the page cache only.
    """

    end: int
    torn: bool = False
    torn_detail: str = ""
    synced: int = 0
    damages: list[Damage] = field(default_factory=list)

    def reach(self, end: int) -> None:
        """Valid records, and damage that was passed over, end at this offset."""
        self.end = end

    def add_synced(self, offset: int) -> None:
        """Keeps the offset below which everything was durable once."""
        self.synced = max(self.synced, offset)

    def pass_over(self, damage: Damage) -> None:
        """Goes on behind this damage."""
        self.damages.append(damage)
        self.end = damage.stop

    def stop(self, torn_detail: str | None) -> None:
        """Ends the scan here, at a torn tail where a detail is given."""
        self.torn = torn_detail is not None
        self.torn_detail = torn_detail or ""


class Scan:
    """One pass over a file from `start` to `stop`. `synced`: what the caller knows to be durable and whole."""

    __slots__ = (
        "_buffer", "_buffer_start", "_buffer_synced", "_file", "_known_synced", "_stop", "_synced_behind", "_written",
    )  # fmt: skip

    def __init__(self, file: File, start: int, stop: int) -> None:
        assert start % ALIGN == 0, "records are aligned"
        self._file = file
        self._stop = stop
        self._buffer = memoryview(b"")
        self._buffer_start = start
        self._synced_behind: int | None = None
        # The highest offset that was known to be durable at the last look, and when the buffer was read.
        self._known_synced = self._buffer_synced = 0
        self._written = file.written_ranges(start)

    def records(
        self, start: int, synced: int, report: ScanReport, *, forgive: bool
    ) -> Iterator[tuple[RecordHeader, ColumnBatch]]:
        """Verified records. Damage goes to `report` and is passed over with `forgive`, else raised as CorruptionError.

        Raises FormatError for a whole header of an unknown kind or version, also where the record is cut off.
        """
        position = start
        report.reach(start)
        report.add_synced(synced)
        while position < self._stop:
            try:
                header, batch = self._record(position)
            except UnknownRecordError as error:
                raise FormatError(self._file.path, f"{error} at offset {position}; upgrade this program") from error
            except BadRecordError as error:
                following = self._judge(position, error, report)
                if following is None:
                    return
                if not forgive:
                    raise Damage(position, following, str(error), errno_of(error)).error(self._file.path) from error
                position = following
                continue
            report.add_synced(header.synced_before)
            yield header, batch
            position = header.end
            report.reach(position)

    def _record(self, position: int) -> tuple[RecordHeader, ColumnBatch]:
        header = decode_header(self._bytes(position, HEADER_BYTES), position)
        known_batch(header)  # first: what is preallocated behind a record that is cut off must not change the verdict
        if header.end > self._stop:
            raise BadRecordError("cut off within the record")
        return header, decode_body(header, self._bytes(position + HEADER_BYTES, header.body_bytes))

    def _bytes(self, position: int, length: int) -> memoryview:
        begin = position - self._buffer_start
        if begin < 0 or begin + length > len(self._buffer):
            want = min(max(length, SCAN_BYTES), self._stop - position)
            self._buffer = memoryview(read_ahead(self._file, position, length, want))
            self._buffer_start, self._buffer_synced, begin = position, self._known_synced, 0
        return self._buffer[begin : begin + length]

    def _judge(self, position: int, error: BadRecordError, report: ScanReport) -> int | None:
        """Where to read on behind damage, or None for the end (clean or torn)."""
        detail = str(error)
        if self._synced_behind is None:  # once: what stands behind a later damage stands behind this one too
            self._synced_behind = max((header.synced_before for header in self._headers_behind(position)), default=0)
        report.add_synced(self._synced_behind)
        if isinstance(error, UnreadableRecordError):
            # A crash tears what it interrupts and leaves it readable. So this may have been durable: it is not cut off.
            report.add_synced(self._end_of_unreadable(position))
        if position >= report.synced:
            report.stop(detail if self._anything_from(position) else None)
            return None
        if not errno_of(error) and self._verifies_now(position, report.synced):
            return position
        # The damage ends at the synced offset: from there on a bad record may be torn, with whole ones behind it.
        later = next(self._headers_behind(position), None)
        following = min(report.synced, self._stop, later.offset if later is not None else self._stop)
        report.pass_over(Damage(position, following, detail, errno_of(error)))
        return following

    def _verifies_now(self, position: int, synced: int) -> bool:
        """Whether the record is whole in bytes that were read behind the proof that it was durable. A running server may
        have written it between two reads."""
        if position < self._buffer_synced:
            return False
        self._known_synced, self._buffer = synced, memoryview(b"")
        try:
            self._record(position)
        except BadRecordError as error:
            return isinstance(error, UnknownRecordError)
        return True

    def _headers_behind(self, position: int) -> Iterator[RecordHeader]:
        """All valid headers after `position`; they stand on multiples of 8."""
        for start, data in self._chunks(position + ALIGN, partial(read_around, self._file)):
            words = np.frombuffer(data, "<u8", len(data) // ALIGN)
            for place in (np.flatnonzero((words & np.uint64(0xFFFFFFFF)) == RECORD_MAGIC) * ALIGN).tolist():
                if place >= SCAN_BYTES:
                    break
                try:
                    yield decode_header(data, start + place, place)
                except BadRecordError:
                    continue

    def _end_of_unreadable(self, position: int) -> int:
        """Where the record at `position` ends. If its header is hidden, it may reach to the next valid record, or to the end
        of the data. Nothing of it is cut off, because the disk may read it soon."""
        try:
            end = decode_header(read_around(self._file, position, HEADER_BYTES), position).end
        except BadRecordError:
            later = next(self._headers_behind(position), None)
            end = self._end_of_data(position) if later is None else later.offset
        return min(end, self._stop // ALIGN * ALIGN)

    def _end_of_data(self, position: int) -> int:
        """Behind the last byte that is not zero, or that the disk cannot read. A record may end with zeros, but what is
        preallocated behind it is longer."""
        end = position
        for start, data in self._chunks(position, partial(read_around, self._file, hidden=b"\xff")):
            if length := len(data.rstrip(b"\0")):
                end = start + length
        return -(-end // ALIGN) * ALIGN if self._stop - end > SCAN_BYTES else self._stop

    def _anything_from(self, position: int) -> bool:
        try:
            return any(data != bytes(len(data)) for _, data in self._chunks(position, self._file.pread))
        except UnreadableError:  # behind a place where no record is: nothing that was durable
            return True

    def _chunks(self, position: int, read: Callable[[int, int], bytes]) -> Iterator[tuple[int, bytes]]:
        """The rest of the file in overlapping pieces. Space that was reserved and never written is passed over: a
        segment is preallocated, and reading its empty part would take longer than everything else."""
        for start, stop in self._written:
            position = max(position, start // ALIGN * ALIGN)
            while position < min(stop, self._stop):
                length = min(SCAN_BYTES + HEADER_BYTES - ALIGN, self._stop - position)
                yield position, read(position, length)
                position += SCAN_BYTES


def read_ahead(file: File, position: int, length: int, want: int) -> bytes:
    """`want` bytes, or only the `length` that are needed where more cannot be read. Raises UnreadableRecordError."""
    try:
        return file.pread(position, want)
    except UnreadableError:
        try:
            return file.pread(position, length)  # what cannot be read may lie behind this record
        except UnreadableError as error:
            raise UnreadableRecordError(error) from error


def errno_of(error: BadRecordError) -> int:
    """The errno of the system where the disk cannot read a record; 0 where its bytes are wrong."""
    return error.errno if isinstance(error, UnreadableRecordError) else 0


def read_around(file: File, position: int, length: int, *, hidden: bytes = b"\0") -> bytes:
    """Bytes with zeros, or `hidden`, for the sectors that cannot be read."""
    return b"".join([hidden * size if data is None else data for _, size, data in pieces(file, position, length)])


def pieces(file: File, position: int, length: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Place, length and bytes of what makes a range up: halves of halves, until single sectors cannot be read (None)."""
    try:
        yield position, length, file.pread(position, length)
    except UnreadableError:
        first, last = position // SECTOR_BYTES, (position + length - 1) // SECTOR_BYTES
        if first >= last:
            yield position, length, None
            return
        middle = (first + last + 1) // 2 * SECTOR_BYTES
        yield from pieces(file, position, middle - position)
        yield from pieces(file, middle, position + length - middle)
