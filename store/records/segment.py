"""One append-only file of records with a header.

Appending writes without syncing; `sync` makes everything before it durable. A writer is one thread at a time; readers
may read what is below an `end` they were given. Recovery steps and disk assumptions stand in FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias

from store.disk.filesystem import Buffer, File, FileSystem, directory_of, read_twice
from store.disk.tail_image import THROUGH_BYTES_MAX, TailImage
from store.errors import CorruptionError, DiskFullError, FormatError, StoreError, SyncFailedError
from store.records.column_batch import ColumnBatch
from store.records.file_header import (
    FILE_DISPATCH,
    FILE_HEADER_BYTES,
    FILE_LEDGER,
    FILE_MAGIC,
    FILE_MESSAGE_LOG,
    FILE_NAMES,
    FILE_PROGRESS,
    FILE_QUEUE,
    FILE_SCHEDULE,
    FILE_STORE,
    FORMAT_VERSION,
    FileHeader,
    decode_file_header,
    is_unfinished,
)
from store.records.message_rows import MessageRows, encode_rows
from store.records.progress_row import SingleProgressRow
from store.records.record import (
    HEADER_BYTES,
    BadRecordError,
    EncodedRecord,
    RecordHeader,
    decode_body,
    decode_header,
    encode_record,
)
from store.records.record_image import RecordImage
from store.records.scan import SCAN_BYTES, Damage, Scan, ScanReport
from store.records.stored_rows import StoredRows

__all__ = [
    "FILE_DISPATCH",
    "FILE_HEADER_BYTES",
    "FILE_LEDGER",
    "FILE_MAGIC",
    "FILE_MESSAGE_LOG",
    "FILE_NAMES",
    "FILE_PROGRESS",
    "FILE_QUEUE",
    "FILE_SCHEDULE",
    "FILE_STORE",
    "FORMAT_VERSION",
    "Appendable",
    "Appended",
    "Damage",
    "FileHeader",
    "ScanReport",
    "Segment",
    "encode_appendable",
    "decode_file_header",
    "is_unfinished",
]


Appendable: TypeAlias = ColumnBatch | MessageRows | StoredRows | SingleProgressRow | RecordImage
"""The parts of a record that is appended."""
# All others are batches.
_ENCODERS: Final[dict[type, Callable[[Any, int, int], EncodedRecord]]] = {
    MessageRows: encode_rows,
    StoredRows: StoredRows.encode,
    SingleProgressRow: SingleProgressRow.encode,
    RecordImage: RecordImage.encode,
}


def encode_appendable(batch: Appendable, synced_before: int, offset: int) -> EncodedRecord:
    """The record of what is appended, to stand at `offset` of its file."""
    return _ENCODERS.get(type(batch), encode_record)(batch, synced_before, offset)


class Appended(NamedTuple):
    """Where a batch was written: record start and end, and the start of its blob block, as offsets in the file."""

    start: int
    end: int
    blob_start: int


class _Naming:
    """The name that a segment gets with its first sync, which two threads may make at the same time."""

    __slots__ = ("before", "fs", "lock", "path")

    def __init__(self, fs: FileSystem, path: str, before: Segment) -> None:
        self.fs = fs
        self.path = path
        self.before = before
        self.lock = Lock()


class Segment:
    """An append-only file of records. Not thread-safe; one writer.

    `end` is where the next record goes, `synced` the offset below which everything is known to be durable and whole.
    `assumed` is the same by the operator's decision (durability `os`), 0 where there is none: headers never claim that.
    """

    __slots__ = ("_naming", "_refusal", "allocated", "assumed", "end", "file", "header", "path", "synced")

    def __init__(self, file: File, header: FileHeader, end: int, allocated: int = 0) -> None:
        self.file = file
        self.path = file.path
        self.header = header
        self.end = end
        self.synced = FILE_HEADER_BYTES
        self.assumed = 0
        self.allocated = allocated
        self._refusal = ""
        self._naming: _Naming | None = None

    @classmethod
    def create(
        cls, fs: FileSystem, path: str, header: FileHeader, *, allocate_bytes: int = 0, listed: bool = True
    ) -> Segment:
        """Make a new file with a durable header, durable in its directory unless `listed` is False (then the caller
        syncs the directory before anything points to the file). An existing file without any record is replaced.

        Raises FormatError (there is a file with records), DiskFullError, StoreError, SyncFailedError; then the path is
        free again.
        """
        (segment,) = cls.create_all(fs, [(path, header)], allocate_bytes=allocate_bytes, listed=listed)
        return segment

    @classmethod
    def create_all(
        cls, fs: FileSystem, wanted: Sequence[tuple[str, FileHeader]], *, allocate_bytes: int = 0, listed: bool = True
    ) -> list[Segment]:
        """`create` for several files, all or none: their headers are synced side by side, which takes a journal little
        longer than one of them."""
        files: list[File] = []
        try:
            for path, header in wanted:
                if fs.exists(path) and _holds_records(fs, path):
                    raise FormatError(path, "holds records; a new file must not replace it")
                files.append(file := fs.open(path, create=True))
                file.truncate(0)
                if allocate_bytes:
                    file.allocate(allocate_bytes)
                file.pwrite(0, [header.encode()])
            fs.sync_together(files)
            if listed:
                for folder in dict.fromkeys([directory_of(path) for path, _ in wanted]):
                    fs.sync_directory(folder)
        except StoreError:
            for file in files:
                file.close()
                fs.remove(file.path)
            raise
        headers = [header for _, header in wanted]
        return [
            cls(file, header, FILE_HEADER_BYTES, allocate_bytes) for file, header in zip(files, headers, strict=True)
        ]

    @classmethod
    def adopt(
        cls, fs: FileSystem, prepared: str, path: str, header: FileHeader, allocated: int, before: Segment
    ) -> Segment:
        """Go on in a file that was prepared, allocated and empty, as the segment behind `before`. It has its header and
        takes its records at once. The first `sync` also seals `before` and gives the file its name, `path`: until then a
        start removes it.

        There must be no file at `path`. Raises FileNotFoundError, DiskFullError, StoreError; then the prepared one is gone.
        """
        file = fs.open(prepared)
        try:
            file.pwrite(0, [header.encode()])
        except StoreError:
            file.close()
            fs.remove(prepared)
            raise
        segment = cls(file, header, FILE_HEADER_BYTES, allocated)
        segment._naming = _Naming(fs, path, before)
        return segment

    @classmethod
    def open(cls, fs: FileSystem, path: str, kind: int, server_id: int | None, *, write: bool = True) -> Segment:
        """Open an existing file. `end` is its size, and nothing behind the header counts as synced. `recover` finds out
        more, or the caller knows it (`trust`).

        Raises FileNotFoundError, FormatError (foreign, newer, of another server), CorruptionError (header).
        """
        file = fs.open(path, write=write)
        try:
            header = decode_file_header(read_twice(file, 0, FILE_HEADER_BYTES), path)
            if header.kind != kind:
                raise FormatError(path, f"file kind {header.kind} where {kind} is expected")
            if server_id is not None and header.server_id != server_id:
                raise FormatError(
                    path, f"belongs to server {header.server_id:012x}, this data directory to {server_id:012x}"
                )
            return cls(file, header, file.size())
        except BaseException:
            file.close()
            raise

    @classmethod
    def open_by_name(cls, fs: FileSystem, path: str, header: FileHeader, *, write: bool = True) -> Segment:
        """`open` for a file whose header is damaged. The name says that it was `header`, and each record has a checksum.

        Raises FileNotFoundError, StoreError."""
        file = fs.open(path, write=write)
        return cls(file, header, max(FILE_HEADER_BYTES, file.size()))

    def append(self, batch: ColumnBatch) -> Appended:
        """Write one record at the end, without syncing. Raises DiskFullError (nothing was appended) and StoreError."""
        return self.append_all([batch])[0]

    def append_all(self, batches: Sequence[Appendable]) -> list[Appended]:
        """Write several records with one call to the disk, without syncing: all of them or none.

        Raises DiskFullError, StoreError (nothing was appended), SyncFailedError (an earlier sync failed, or what a failed
        write left could not be undone).
        """
        buffers, places, end = self._encode(batches)
        self._write(buffers, end)
        return places

    def append_durably(self, batches: Sequence[Appendable], warm: int, image: TailImage) -> list[Appended]:
        """`append_all` and `sync` in one. A small group that ends below offset `warm` goes past the page cache by way of
        `image`. Below `warm` the file was written with zeros and synced before. Raises what `append_all` does; after a
        DiskFullError of the sync nothing was appended either."""
        buffers, places, end = self._encode(batches)
        # A failed write was undone by cutting the file off: then there is no space behind it any more.
        warm = min(warm, self.allocated)
        small = end <= warm and end - self.end <= THROUGH_BYTES_MAX and self.synced == self.end and self.is_named
        if not small or not self._write_through(buffers, end, image):
            self._write_and(self.sync, buffers, end)
        return places

    def append_assumed(self, batches: Sequence[Appendable]) -> list[Appended]:
        """`append_all` and `assume_synced` in one. Raises what `append_durably` does."""
        buffers, places, end = self._encode(batches)
        self._write_and(self.assume_synced, buffers, end)
        return places

    def _write_and(self, sync: Callable[[], None], buffers: list[Buffer], end: int) -> None:
        """Write, then sync. The sync may meet a full disk where it seals the segment before, or names this one."""
        before = self.end
        self._write(buffers, end)
        try:
            sync()
        except DiskFullError as error:
            self.end = before
            self._failed(error)
            raise

    def _encode(self, batches: Sequence[Appendable]) -> tuple[list[Buffer], list[Appended], int]:
        if self._refusal:
            raise SyncFailedError(self._refusal)
        buffers: list[Buffer] = []
        places = []
        position = self.end
        for batch in batches:
            record = _ENCODERS.get(type(batch), encode_record)(batch, self.synced, position)
            buffers += record.buffers
            places.append(Appended(position, position + record.total_bytes, position + record.blob_start))
            position += record.total_bytes
        return buffers, places, position

    def _write(self, buffers: list[Buffer], end: int) -> None:
        try:
            self.file.pwrite(self.end, buffers)
        except StoreError as error:
            self._failed(error)
            raise
        self.end = end

    def _write_through(self, buffers: list[Buffer], end: int, image: TailImage) -> bool:
        try:
            if not image.append(self.file, self.end, buffers):
                return False
        except StoreError as error:
            self._failed(error)
            raise
        self.end = self.synced = end
        return True

    def _failed(self, error: StoreError) -> None:
        """Undo a failed write; the caller then raises `error`. Raises SyncFailedError where it cannot be undone."""
        if isinstance(error, SyncFailedError):
            self._refusal = str(error)
            return
        self._undo()
        if self._refusal:  # not as if nothing was appended: the next start may find some of it
            raise SyncFailedError(self._refusal) from error

    def _undo(self) -> None:
        """Cut off the bytes of a failed write, durably. The first records of the group may be whole, and a scan after a
        crash must not find records that were refused."""
        end = self.end
        try:
            self.file.truncate(end)
            self.file.datasync()
        except StoreError:
            self._refusal = f"{self.path}: a failed write could not be undone; restart the server to recover"
            return
        self.allocated = min(self.allocated, end)
        self.synced = end

    def sync(self) -> None:
        """Make all appended records durable. Raises SyncFailedError: final, nothing can be appended any more.

        It may run in a thread beside `append_durably`. Then `synced` may go back to what this sync covered, which costs
        a further sync and nothing else."""
        if self._refusal:  # a later sync would succeed and prove nothing
            raise SyncFailedError(self._refusal)
        naming, end = self._naming, self.end
        if naming is not None:
            naming.before.seal()
        if end > self.synced or naming is not None:
            try:
                self.file.datasync()
                if naming is not None:
                    self._take_name(naming)
            except SyncFailedError as error:
                self._refusal = str(error)
                raise
            self.synced = end

    @property
    def is_named(self) -> bool:
        """Whether a start finds it. Until its first sync an adopted file has another name."""
        return self._naming is None

    def _take_name(self, naming: _Naming) -> None:
        """The header is durable, and all that comes before this file: now it may be found."""
        with naming.lock:
            if self._naming is None:
                return
            if self.path != naming.path:
                naming.fs.replace(self.path, naming.path)
                self.file.follow_rename(naming.path)
                self.path = naming.path
            naming.fs.sync_directory(directory_of(naming.path))
            self._naming = None

    def follow_rename(self, path: str) -> None:
        """Takes `path` as the file's name from now on. The caller has renamed it."""
        self.file.follow_rename(path)
        self.path = path

    def assume_synced(self) -> None:
        """Let everything appended count as durable, by the operator's decision. A file without its name is synced: a start
        would not find it."""
        if self._naming is not None:
            self.sync()
        self.assumed = self.end

    def trust(self, end: int, synced: int) -> None:
        """Take over what the caller knows: the last record ends at `end`, and everything below `synced` is durable."""
        self.end, self.synced = end, synced

    def cut(self, end: int) -> None:
        """Cut off all records behind an offset, durably. Raises StoreError."""
        if self.file.size() > end:
            self.file.truncate(end)
            self.file.datasync()
        self.end = end
        self.synced = min(self.synced, end)

    def preallocate(self, length: int) -> None:
        """Allocate disk blocks up to `length`; none where the disk has no room for them."""
        try:
            self.file.allocate(length)
        except DiskFullError:
            length = 0
        self.allocated = length

    def write_zeros(self, start: int, stop: int) -> bool:
        """Write zeros over allocated space behind the end, without syncing. False, and no space counts as allocated any
        more, where the disk has no room: some file systems allocate at each write."""
        try:
            self.file.pwrite(start, [bytes(stop - start)])
        except DiskFullError:
            self.allocated = 0
            return False
        return True

    def seal(self) -> None:
        """Make all records durable and give back the space behind them. Raises SyncFailedError, DiskFullError."""
        self.sync()
        # A full one has none. Nor has one that an earlier attempt sealed, which then found the disk full.
        if self.file.size() > self.end:
            self.file.truncate(self.end)
            self.file.datasync()
            self.allocated = self.end

    @property
    def refuses(self) -> bool:
        """Whether a failed sync or write was final for it."""
        return bool(self._refusal)

    @staticmethod
    def sync_all(fs: FileSystem, segments: Sequence[Segment]) -> None:
        """`sync` of several segments, side by side. Raises SyncFailedError after all of them ended. The error is final for
        all of them, since it does not name the one that failed."""
        ends = [segment.end for segment in segments]
        waiting = [(segment, end) for segment, end in zip(segments, ends, strict=True) if end > segment.synced]
        try:
            fs.sync_together([segment.file for segment, _ in waiting])
        except SyncFailedError as error:
            for segment, _ in waiting:
                segment._refuse(str(error))
            raise
        for segment, end in waiting:
            segment._synced_to(end)

    def _refuse(self, reason: str) -> None:
        self._refusal = reason

    def _synced_to(self, end: int) -> None:
        self.synced = end

    def read(self, offset: int, *, verify: bool = True) -> tuple[RecordHeader, ColumnBatch]:
        """The record at an offset known to be one. Raises CorruptionError."""
        try:
            header = decode_header(self.file.pread(offset, HEADER_BYTES), offset)
            body = self.file.pread(offset + HEADER_BYTES, header.body_bytes)
            return header, decode_body(header, body, verify=verify)
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
        (raised as CorruptionError where no report is given); a torn tail ends the scan. Raises FormatError (newer)."""
        stop = self.end if stop is None else stop
        own = ScanReport(start) if report is None else report
        scan = Scan(self.file, start, stop)
        return scan.records(start, min(max(self.synced, self.assumed), stop), own, forgive=report is not None)

    def recover(self, start: int = FILE_HEADER_BYTES, *, damages: list[Damage] | None = None) -> ScanReport:
        """Find the end of the valid records from `start`, cut a torn tail off, and make the rest durable.

        Everything before `start` is known to be whole and durable. The rest need not be: after a restart of the process
        alone it may be in the page cache only.

        Corruption raises CorruptionError unless a list for it is given. Raises FormatError (newer record).
        """
        size = self.file.size()
        found: list[Damage] = []
        if start > size:
            found.append(Damage(size, start, f"the file ends here, but {start} bytes were durable"))
            start = FILE_HEADER_BYTES
        self.synced = start
        report = ScanReport(start)
        for _ in self.records(start, size, report):
            pass
        report.damages[:0] = found
        if report.damages and damages is None:
            first = report.damages[0]
            raise first.error(self.path)
        if damages is not None:
            damages += report.damages
        self.end = report.end
        if report.torn:
            self.file.truncate(self.end)
        self.write_again(report.synced, self.end)
        self.file.datasync()
        self.synced = self.end
        return report

    def write_again(self, start: int, stop: int) -> None:
        """Write what stands between two offsets once more, without syncing. Raises DiskFullError, StoreError.

        Where the process stopped because a sync failed, the kernel holds pages that it takes for clean and that the
        disk never got. Writing the last group again makes them dirty, so that the next sync proves something.
        """
        for position in range(start, stop, SCAN_BYTES):
            self.file.pwrite(position, [self.file.pread(position, min(SCAN_BYTES, stop - position))])

    def close(self) -> None:
        """Close the file; what was not synced may be lost."""
        self.file.close()


def _holds_records(fs: FileSystem, path: str) -> bool:
    """Whether anything stands behind the header: the first record would begin right there."""
    file = fs.open(path, write=False)
    try:
        return any(read_twice(file, FILE_HEADER_BYTES, HEADER_BYTES))
    finally:
        file.close()
