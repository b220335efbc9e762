"""One append-only file of records with a header, and the scanner that tells a torn tail from corruption.

Appending writes without syncing; `sync` makes everything before it durable. A writer is one thread at a time; readers
may read what is below an `end` they were given. Recovery steps and disk assumptions stand in FORMAT.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from store.columns import ColumnBatch
from store.errors import CorruptionError, FormatError, StoreError
from store.filesystem import Buffer, File, FileSystem
from store.record import (
    HEADER_BYTES,
    RECORD_MAGIC,
    BadRecordError,
    RecordHeader,
    build_batch,
    decode_header,
    encode_record,
    verify_columns,
)

FILE_MAGIC = b"DELAYLOG"
FORMAT_VERSION = 1
FILE_HEADER_BYTES = 64
_FILE_HEADER = struct.Struct("<8sHHIQqqI20x")
# One read while scanning: large enough for the disk, small enough for memory.
SCAN_BYTES = 1 << 20

FILE_MESSAGE_LOG, FILE_SCHEDULE, FILE_DISPATCH, FILE_NAMES, FILE_STORE, FILE_QUEUE, FILE_PROGRESS = range(1, 8)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 64 bytes of every file: what it is, whose it is, its base (an offset or the start of its window)."""

    kind: int
    server_id: int
    base: int
    span_ms: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """64 bytes, the last four of the used part a CRC-32C of what stands before them."""
        fields = (FILE_MAGIC, FORMAT_VERSION, self.kind, self.flags, self.server_id, self.base, self.span_ms, 0)
        head = bytes(_FILE_HEADER.pack(*fields))[:40]
        crc: int = google_crc32c.value(head)
        return head + crc.to_bytes(4, "little") + bytes(FILE_HEADER_BYTES - 44)


def decode_file_header(data: bytes, path: str) -> FileHeader:
    """Raises FormatError for a foreign file or a newer version, CorruptionError for a wrong checksum."""
    if len(data) < FILE_HEADER_BYTES:
        raise FormatError(path, f"only {len(data)} bytes: the file header is cut off")
    magic, version, kind, flags, server_id, base, span_ms, crc = _FILE_HEADER.unpack(data[:FILE_HEADER_BYTES])
    if magic != FILE_MAGIC:
        raise FormatError(path, "not a file of this program (wrong magic)")
    if google_crc32c.value(data[:40]) != crc:
        raise CorruptionError(path, 0, "file header checksum")
    if version > FORMAT_VERSION:
        raise FormatError(path, f"format version {version} is newer than this program's {FORMAT_VERSION}; upgrade it")
    return FileHeader(kind, server_id, base, span_ms, flags)


@dataclass(frozen=True, slots=True)
class Damage:
    """A range that was durable once and can't be read: `stop` is where reading went on."""

    start: int
    stop: int
    detail: str


@dataclass(slots=True)
class ScanReport:
    """Filled while a scan runs. `end` is where valid records end; `torn` says that bytes after it were cut off."""

    end: int
    torn: bool = False
    torn_detail: str = ""
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was written: record start and end, and the start of its blob block, as offsets in the file."""

    start: int
    end: int
    blob_start: int


class Segment:
    """An append-only file of records. Not thread-safe; one writer."""

    __slots__ = ("_failed", "allocated", "end", "file", "header", "path", "synced")

    def __init__(self, file: File, header: FileHeader, end: int) -> None:
        self.file = file
        self.path = file.path
        self.header = header
        self.end = end
        self.synced = end
        self.allocated = 0
        self._failed = False

    @classmethod
    def create(cls, fs: FileSystem, path: str, header: FileHeader, *, allocate_bytes: int = 0) -> Segment:
        """Make a new file, durable in its directory. An existing file without any record is replaced."""
        file = fs.open(path, create=True)
        try:
            file.truncate(0)
            if allocate_bytes:
                file.allocate(allocate_bytes)
            file.pwrite(0, [header.encode()])
            file.datasync()
            fs.sync_directory(path.rsplit("/", 1)[0])
        except StoreError:
            file.close()
            fs.remove(path)
            raise
        segment = cls(file, header, FILE_HEADER_BYTES)
        segment.allocated = allocate_bytes
        return segment

    @classmethod
    def open(cls, fs: FileSystem, path: str, kind: int, server_id: int | None, *, write: bool = True) -> Segment:
        """Open an existing file; `end` is its size until `recover` or the caller says better.

        Raises FileNotFoundError, FormatError (foreign, newer, of another server), CorruptionError (header).
        """
        file = fs.open(path, write=write)
        try:
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), path)
            if header.kind != kind:
                raise FormatError(path, f"file kind {header.kind} where {kind} is expected")
            if server_id is not None and header.server_id != server_id:
                raise FormatError(
                    path, f"belongs to server {header.server_id:012x}, this data directory to {server_id:012x}"
                )
        except Exception:
            file.close()
            raise
        return cls(file, header, max(FILE_HEADER_BYTES, file.size()))

    def append(self, batch: ColumnBatch) -> Appended:
        """Write one record at the end, without syncing. Raises DiskFullError (nothing was appended) and StoreError."""
        return self.append_all([batch])[0]

    def append_all(self, batches: Sequence[ColumnBatch]) -> list[Appended]:
        """Write several records with one call to the disk: all or (as far as this process can see) none."""
        if self._failed:
            raise StoreError(f"{self.path}: an earlier write could not be undone; restart the server to recover")
        buffers: list[Buffer] = []
        places = []
        position = self.end
        for batch in batches:
            record = encode_record(batch, self.synced)
            buffers += record.buffers
            places.append(Appended(position, position + record.total_bytes, position + record.blob_start))
            position += record.total_bytes
        try:
            self.file.pwrite(self.end, buffers)
        except StoreError:
            self._undo()
            raise
        self.end = position
        return places

    def _undo(self) -> None:
        """Zero what a failed write may have left, so that no later scan can take it for a record."""
        try:
            self.file.truncate(self.end)
        except StoreError:
            self._failed = True

    def sync(self) -> None:
        """Make all appended records durable. Raises SyncFailedError: final for this file."""
        end = self.end
        if end > self.synced:
            self.file.datasync()
            self.synced = end

    def read(self, offset: int, *, verify: bool = True) -> tuple[RecordHeader, ColumnBatch]:
        """The record at an offset known to be one. Raises CorruptionError."""
        try:
            header = decode_header(self.file.pread(offset, HEADER_BYTES), offset)
            data = memoryview(self.file.pread(offset + HEADER_BYTES, header.columns_bytes + header.blob_bytes))
            columns = verify_columns(header, data[: header.columns_bytes])
            return header, build_batch(header, columns, data[header.columns_bytes :], verify=verify)
        except BadRecordError as error:
            raise CorruptionError(self.path, offset, str(error)) from error

    def headers(self, start: int = FILE_HEADER_BYTES, stop: int | None = None) -> Iterator[RecordHeader]:
        """Walk over headers only, between offsets known to be record boundaries. Raises CorruptionError."""
        stop = self.end if stop is None else stop
        while start < stop:
            try:
                header = decode_header(self.file.pread(start, HEADER_BYTES), start)
            except BadRecordError as error:
                raise CorruptionError(self.path, start, str(error)) from error
            yield header
            start = header.end

    def records(
        self, start: int = FILE_HEADER_BYTES, stop: int | None = None, report: ScanReport | None = None
    ) -> Iterator[tuple[RecordHeader, ColumnBatch]]:
        """Verified records from `start`. Damage below what was synced is put into `report` and passed over
        (raised as CorruptionError where no report is given); a torn tail ends the scan."""
        stop = self.end if stop is None else stop
        scan = _Scan(self.file, self.path, start, stop)
        own = report if report is not None else ScanReport(start)
        position = start
        while position < stop:
            try:
                header, batch = scan.record(position)
            except BadRecordError as error:
                following = self._judge(scan, position, stop, str(error), own)
                if following is None:
                    return
                if report is None:
                    raise CorruptionError(self.path, position, str(error)) from error
                position = following
                continue
            scan.synced_before = max(scan.synced_before, header.synced_before)
            yield header, batch
            position = own.end = header.end

    def _judge(self, scan: _Scan, position: int, stop: int, detail: str, report: ScanReport) -> int | None:
        """Rule 11: where to read on behind damage, or None for the end (clean or torn)."""
        later, anything = scan.headers_behind(position)
        synced = max([scan.synced_before, *[header.synced_before for header in later]])
        if position >= synced:
            report.torn = anything
            report.torn_detail = detail if anything else ""
            return None
        following = later[0].offset if later else stop
        report.damages.append(Damage(position, following, detail))
        report.end = following
        return following

    def recover(self, start: int = FILE_HEADER_BYTES, *, damages: list[Damage] | None = None) -> ScanReport:
        """Find the end of the valid records from `start`, cut a torn tail off and make that durable.

        Corruption raises CorruptionError unless a list for it is given.
        """
        self.end = max(start, self.file.size())
        report = ScanReport(start)
        for _ in self.records(start, self.end, report):
            pass
        if report.damages and damages is None:
            first = report.damages[0]
            raise CorruptionError(self.path, first.start, first.detail)
        if damages is not None:
            damages += report.damages
        self.end = report.end
        if report.torn:
            self.file.truncate(self.end)
            self.file.datasync()
        self.synced = self.end
        return report

    def close(self) -> None:
        """Close the file; what was not synced may be lost."""
        self.file.close()


class _Scan:
    """Buffered reading of records, and the search for headers behind damage."""

    __slots__ = ("buffer", "buffer_start", "file", "path", "stop", "synced_before")

    def __init__(self, file: File, path: str, start: int, stop: int) -> None:
        self.file, self.path, self.stop = file, path, stop
        self.buffer = memoryview(b"")
        self.buffer_start = start
        self.synced_before = 0

    def _bytes(self, position: int, length: int) -> memoryview:
        begin = position - self.buffer_start
        if begin < 0 or begin + length > len(self.buffer):
            want = min(max(length, SCAN_BYTES), self.stop - position)
            self.buffer = memoryview(self.file.pread(position, want))
            self.buffer_start, begin = position, 0
        return self.buffer[begin : begin + length]

    def record(self, position: int) -> tuple[RecordHeader, ColumnBatch]:
        header = decode_header(self._bytes(position, HEADER_BYTES), position)
        if header.end > self.stop and header.blob_offset + header.blob_bytes > self.stop:
            raise BadRecordError("cut off within the record")
        data = self._bytes(position + HEADER_BYTES, header.columns_bytes + header.blob_bytes)
        columns = verify_columns(header, data[: header.columns_bytes])
        return header, build_batch(header, columns, data[header.columns_bytes :])

    def headers_behind(self, position: int) -> tuple[list[RecordHeader], bool]:
        """Valid headers after `position`, and whether anything but zeros stands from `position` on."""
        found: list[RecordHeader] = []
        anything = False
        start = position
        while start < self.stop:
            data = self.file.pread(start, min(SCAN_BYTES + HEADER_BYTES, self.stop - start))
            words = np.frombuffer(data[: len(data) // 8 * 8], dtype="<u8")
            if not anything:
                anything = bool(words.any()) or any(data[len(words) * 8 :])
            if anything:
                places = np.flatnonzero((words & np.uint64(0xFFFFFFFF)) == RECORD_MAGIC) * 8
                for place in places.tolist():
                    if start + place > position and place < SCAN_BYTES and len(data) - place >= HEADER_BYTES:
                        try:
                            found.append(decode_header(data, start + place, place))
                        except BadRecordError:
                            continue
            start += SCAN_BYTES
        return found, anything


def is_unfinished(fs: FileSystem, path: str) -> bool:
    """Whether a file is what a crash leaves between making it and writing its header: no header and nothing behind.

    The header is durable before the first record is written, so a bad header with bytes behind it is corruption.
    """
    file = fs.open(path, write=False)
    try:
        size = file.size()
        head = file.pread(0, FILE_HEADER_BYTES)
        if len(head) == FILE_HEADER_BYTES and google_crc32c.value(head[:40]) == int.from_bytes(head[40:44], "little"):
            return False
        for start in range(FILE_HEADER_BYTES, size, SCAN_BYTES):
            if any(file.pread(start, min(SCAN_BYTES, size - start)).lstrip(b"\0")[:1]):
                return False
        return True
    finally:
        file.close()
