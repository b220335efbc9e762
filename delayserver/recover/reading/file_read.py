"""Reading the files of a captured directory: header, records, and findings about what does not verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from delayserver.recover.reading.capture import Capture, LogPart
from delayserver.recover.reading.findings import CORRUPT, MISPLACED, MISSING, TORN, UNREADABLE, Findings
from store.disk.filesystem import File
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_key import ScheduleKey
from store.records.batches import MessageBatch
from store.records.column_batch import ColumnBatch, MalformedColumnsError
from store.records.column_blocks import Columns
from store.records.fast_reader import Blobs, FastReader
from store.records.file_header import (
    FILE_DISPATCH,
    FILE_HEADER_BYTES,
    FILE_MESSAGE_LOG,
    FILE_SCHEDULE,
    FileHeader,
    decode_file_header,
    is_unfinished,
)
from store.records.record import ALIGN, RecordHeader
from store.records.records import Records
from store.records.scan import Scan, ScanReport

Progress = Callable[[int], None]
"""Takes the number of bytes that were read since the last call."""


def no_progress(_bytes: int) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The properties that a file must have: kind and base of its header (None: any base). The file was durable up to
    `synced`; a `sealed` segment is whole."""

    kind: int
    base: int | None = None
    synced: int = FILE_HEADER_BYTES
    sealed: bool = False


class Reader:
    """Reads the files of a captured directory: the one way in which the tools read records.

    Each finding goes to `findings`, and the number of bytes to `progress` while they are read. A reader without these two
    looks at a file once more, or looks for one thing only.
    """

    def __init__(
        self,
        taken: Capture,
        findings: Findings | None = None,
        progress: Progress = no_progress,
        *,
        misnamed_too: bool = False,
    ) -> None:
        """`misnamed_too`: logs are read also where the header of a file has another place than its name."""
        self._misnamed_too = misnamed_too
        self.taken = taken
        self.findings = Findings() if findings is None else findings
        self.progress = progress

    def file(self, path: str, size: int, expected: Expected) -> FileRead:
        """Any file of records, up to `size`."""
        return FileRead(self, path, size, replace(expected, base=None) if self._misnamed_too else expected)

    def schedule(self, key: ScheduleKey) -> FileRead:
        """A schedule file, durable as far as the checkpoint says."""
        taken, known = self.taken, self.taken.marks.schedule_known.get(key)
        expected = Expected(FILE_SCHEDULE, key.start_ms, known.end if known is not None else FILE_HEADER_BYTES)
        return self.file(taken.schedule_path(key), taken.files.schedule[key], expected)

    def dispatch(self, key: DispatchKey) -> FileRead:
        """A dispatch file, durable as far as the checkpoint says."""
        taken, known = self.taken, self.taken.marks.dispatch_known.get(key)
        expected = Expected(FILE_DISPATCH, key.start_ms, known.end if known is not None else FILE_HEADER_BYTES)
        return self.file(taken.dispatch_path(key), taken.files.dispatch[key], expected)

    def batches(self, path: str, size: int, synced: int | None = None) -> Iterator[tuple[RecordHeader, ColumnBatch]]:
        """Every record of a file that verifies, whole, one by one. The file is read as it stands now, which may be another
        one than was captured. Damage is passed over without a finding. The file was durable up to `synced`, by default all.

        Raises FileNotFoundError, FormatError (a record of a newer program).
        """
        file = self.taken.fs.open(path, write=False)
        try:
            scan, report = Scan(file, FILE_HEADER_BYTES, size), ScanReport(FILE_HEADER_BYTES)
            yield from scan.records(FILE_HEADER_BYTES, size if synced is None else synced, report, forgive=True)
        finally:
            file.close()

    def segments(self) -> Iterator[tuple[LogPart, FileRead]]:
        """The segments of message_log, in order."""
        for part, expected in log_parts(self.taken):
            yield part, self.file(part.path, part.size, expected)

    def read_log(self, names: Sequence[str]) -> Iterator[tuple[LogPart, Records, Columns]]:
        """The messages of message_log: segment, records, and these columns of all their rows. The bytes of the messages are
        not verified. Records whose columns make no sense are passed over: `check` reports them."""
        for part, read in self.segments():
            for mine, columns in read.rows(MessageBatch, names):
                yield part, mine, columns


def log_parts(taken: Capture) -> Iterator[tuple[LogPart, Expected]]:
    """The segments with what each must be: a sealed one ends where its successor begins."""
    parts = taken.files.message_log
    replayed = taken.marks.checkpoint.replay_offset
    for place, part in enumerate(parts):
        sealed = place + 1 < len(parts)
        size = min(part.size, parts[place + 1].base - part.base) if sealed else part.size
        # A sealed segment was whole and synced before its successor existed.
        synced = size if sealed else max(FILE_HEADER_BYTES, replayed - part.base)
        yield LogPart(part.base, part.path, size), Expected(FILE_MESSAGE_LOG, part.base, synced, sealed=sealed)


class FileRead:
    """Reads one file and notes what is wrong with it.

    When `records` is exhausted, these are set: `last_sequence`, and `gaps`: the sequences (after, before) between which
    damage may have swallowed records. `rows_at_mark` counts the rows up to the offset
    that the checkpoint names, -1 where no record ends there. `gone`: the file is not there any more. `usable`: it is one of
    ours.
    """

    def __init__(self, reader: Reader, path: str, size: int, expected: Expected) -> None:
        self.findings = reader.findings
        self._taken = reader.taken
        self._progress = reader.progress
        self.path = path
        self._size = size
        self._expected = expected
        self.last_sequence = 0
        self._rows = 0
        self.rows_at_mark = -1
        self.gaps: list[tuple[int, int]] = []
        self.gone = False
        self.usable = False

    def rows(
        self, batch_type: type[ColumnBatch], names: Sequence[str], *, blobs: bool = False, others: str = ""
    ) -> Iterator[tuple[Records, Columns]]:
        """The records of one kind with these columns of all their rows; the rest as `records`.

        Where the file may hold that kind only, `others` is the detail of a finding about records of other kinds. Records
        whose columns make no sense are passed over; with `others` they are a finding too.
        """
        for records in self.records(blobs=blobs):
            mine = records.of_kind(batch_type.schema.kind)
            if others and len(mine) != len(records):
                self.findings.add(CORRUPT, self.path, int(records.offsets[0]), others)
            if not len(mine):
                continue
            try:
                columns = mine.columns(batch_type, names)
            except MalformedColumnsError as error:
                if others:
                    detail = f"columns that contradict each other: {error}"
                    self.findings.add(CORRUPT, self.path, int(mine.offsets[0]), detail)
                continue
            yield mine, columns

    def records(self, *, blobs: bool = True) -> Iterator[Records]:
        """All records; without `blobs` the bytes of messages are not verified. Raises StoreError where the disk fails."""
        try:
            file = self._taken.open(self.path)
        except FileNotFoundError:
            self.gone = True
            return
        try:
            if self._header_is_ours(file):
                self.usable = True
                yield from self._read(file, blobs)
        finally:
            self._taken.release(file)

    def _header_is_ours(self, file: File) -> bool:
        findings = self.findings
        try:
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), self.path)
        except CorruptionError as error:
            if is_unfinished(self._taken.fs, self.path):
                self._nothing_left()
                return False
            findings.add(CORRUPT, self.path, 0, f"{error.detail}; its records are read all the same")
            return True
        except FormatError as error:
            findings.add(UNREADABLE, self.path, 0, error.detail)
            return False
        return self._belongs(header)

    def _nothing_left(self) -> None:
        findings = self.findings
        known = self._expected.synced
        if known > FILE_HEADER_BYTES:
            findings.add(MISSING, self.path, 0, f"nothing is left of the {known} bytes that the checkpoint knows")
        else:
            findings.add(TORN, self.path, 0, "a crash came before its header was written")

    def _belongs(self, header: FileHeader) -> bool:
        expected, findings = self._expected, self.findings
        if header.server_id != self._taken.server_id:
            findings.add(
                UNREADABLE,
                self.path,
                0,
                f"belongs to server {header.server_id:012x}, this directory to {self._taken.server_id:012x}",
            )
            return False
        if header.kind != expected.kind:
            findings.add(MISPLACED, self.path, 10, f"file kind {header.kind} where {expected.kind} is expected")
            return False
        if expected.base is not None and header.base != expected.base:
            findings.add(
                MISPLACED,
                self.path,
                24,
                f"its header says that it starts at {header.base}, its name {expected.base}: give it its name back",
            )
            return False
        return True

    def _read(self, file: File, blobs: bool) -> Iterator[Records]:
        synced = min(self._expected.synced, self._size)
        scan = FastReader(file, FILE_HEADER_BYTES, self._size, synced, Blobs.VERIFY if blobs else Blobs.SKIP)
        position = 0
        for records in scan:
            if self.rows_at_mark < 0:
                self._count_to_mark(records)
            self._rows += records.rows
            self.last_sequence = int(records.lasts[-1])
            yield records
            self._progress(scan.report.end - position)
            position = scan.report.end
        self._progress(self._size - position)
        if scan.report.end == self._expected.synced:
            self.rows_at_mark = self._rows
        self.gaps = [(after, before if before > 0 else 1 << 62) for after, before in scan.damaged_between]
        self._report(scan)

    def _count_to_mark(self, records: Records) -> None:
        """Rows up to the offset that the checkpoint speaks of, where a record ends right there."""
        mark = self._expected.synced
        place = int(np.searchsorted(records.offsets, mark))
        if place < len(records):
            self.rows_at_mark = self._rows + int(records.counts[:place].sum())

    def _report(self, scan: FastReader) -> None:
        known = self._expected.synced
        report, findings = scan.report, self.findings
        if scan.newer:
            findings.add(UNREADABLE, self.path, report.end, scan.newer)
            return
        add, path, size = findings.add, self.path, self._size
        for damage, (after, before) in zip(report.damages, scan.damaged_between, strict=True):
            detail = _affected(damage.stop - damage.start, damage.detail, after, before)
            add(CORRUPT, path, damage.start, detail)
        behind = size - report.end
        if size < known:
            add(CORRUPT, path, size, f"the file ends here, but {known} bytes were durable: {known - size} are lost")
        elif report.torn and self._expected.sealed:
            add(CORRUPT, path, report.end, f"a sealed segment is cut off: {report.torn_detail}")
        elif report.torn and not self._written_meanwhile(report.end):
            add(TORN, path, report.end, f"{behind} bytes behind the last whole record: {report.torn_detail}")
        elif self._expected.sealed and behind:
            add(CORRUPT, path, report.end, f"{behind} bytes are zero where records must be")

    def _written_meanwhile(self, end: int) -> bool:
        """Whether a running server was in the middle of this record: then it is whole by now, or cut off and gone."""
        try:
            file = self._taken.fs.open(self.path, write=False)
        except FileNotFoundError:
            return True
        try:
            size = file.size()
            if end % ALIGN:  # damage up to the end of a file that is cut off: no record begins there
                return size < self._size
            again = FastReader(file, end, size)
            return size < self._size or bool(next(iter(again), None))
        finally:
            file.close()


def _affected(length: int, detail: str, after: int, before: int) -> str:
    where = f"{length} bytes do not verify ({detail})"
    if before > after + 1:
        return f"{where}: at most {before - after - 1} rows with sequences from {after + 1} to {before - 1}"
    return f"{where}: rows behind sequence {after}"
