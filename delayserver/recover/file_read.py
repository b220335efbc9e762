"""One file of ours from its first byte to its end: header, records, and findings about what does not verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from delayserver.recover.capture import Capture
from delayserver.recover.findings import CORRUPT, MISPLACED, MISSING, TORN, UNREADABLE, Findings
from delayserver.recover.record_scan import RecordScan
from delayserver.recover.records import Records
from store.errors import CorruptionError, FormatError
from store.file_header import FILE_HEADER_BYTES, FileHeader, decode_file_header, is_unfinished
from store.filesystem import File
from store.record import ALIGN

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file must be: kind and base of its header (None: any base), and up to where it is known to be durable."""

    kind: int
    base: int | None = None
    synced: int = FILE_HEADER_BYTES
    sealed: bool = False


class FileRead:
    """Reads one file and says in `findings` what is wrong with it.

    After `records` was exhausted: `end` where the records end, `last_sequence`, `rows`, and `gaps`, the sequences
    (after, before) between which damage may have swallowed records. `usable` is False where nothing of it was read.
    """

    def __init__(
        self, taken: Capture, path: str, size: int, expected: Expected, findings: Findings, progress: Progress
    ) -> None:
        self._taken = taken
        self.path = path
        self._size = size
        self._expected = expected
        self._findings = findings
        self._progress = progress
        self.end = FILE_HEADER_BYTES
        self.last_sequence = 0
        self.rows = 0
        self.rows_at_mark = -1
        self.gaps: list[tuple[int, int]] = []
        self.gone = False
        self.usable = False

    def records(self, *, blobs: bool = True, quiet: bool = False) -> Iterator[Records]:
        """All records. `quiet`: say nothing, for a second look at a file."""
        findings = Findings() if quiet else self._findings
        try:
            file = self._taken.open(self.path)
        except FileNotFoundError:
            self.gone = True
            return
        try:
            if self._header_is_ours(file, findings):
                self.usable = True
                yield from self._read(file, findings, blobs)
        finally:
            self._taken.release(file)

    def _header_is_ours(self, file: File, findings: Findings) -> bool:
        expected = self._expected
        try:
            header = decode_file_header(file.pread(0, FILE_HEADER_BYTES), self.path)
        except CorruptionError as error:
            if is_unfinished(self._taken.fs, self.path):
                self._nothing_left(findings)
                return False
            findings.add(CORRUPT, self.path, 0, f"{error.detail}; its records are read all the same")
            return True
        except FormatError as error:
            findings.add(UNREADABLE, self.path, 0, error.detail)
            return False
        return self._belongs(header, expected, findings)

    def _nothing_left(self, findings: Findings) -> None:
        known = self._expected.synced
        if known > FILE_HEADER_BYTES:
            findings.add(MISSING, self.path, 0, f"nothing is left of the {known} bytes that the checkpoint knows")
        else:
            findings.add(TORN, self.path, 0, "a crash came before its header was written")

    def _belongs(self, header: FileHeader, expected: Expected, findings: Findings) -> bool:
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

    def _read(self, file: File, findings: Findings, blobs: bool) -> Iterator[Records]:
        synced = min(self._expected.synced, self._size)
        scan = RecordScan(file, FILE_HEADER_BYTES, self._size, synced, blobs=blobs)
        position = 0
        for records in scan:
            if self.rows_at_mark < 0:
                self._count_to_mark(records)
            self.rows += records.rows
            self.last_sequence = int(records.lasts[-1])
            yield records
            self._progress(scan.report.end - position)
            position = scan.report.end
        self._progress(self._size - position)
        self.end = scan.report.end
        if self.end == self._expected.synced:
            self.rows_at_mark = self.rows
        self.gaps = [(after, before if before > 0 else 1 << 62) for after, before in scan.damaged_between]
        self._report(scan, findings)

    def _count_to_mark(self, records: Records) -> None:
        """Rows up to the offset that the checkpoint speaks of, where a record ends right there."""
        mark = self._expected.synced
        place = int(np.searchsorted(records.offsets, mark))
        if place < len(records):
            self.rows_at_mark = self.rows + int(records.counts[:place].sum())

    def _report(self, scan: RecordScan, findings: Findings) -> None:
        known = self._expected.synced
        report = scan.report
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
            again = RecordScan(file, end, size)
            return size < self._size or bool(next(iter(again), None))
        finally:
            file.close()


def _affected(length: int, detail: str, after: int, before: int) -> str:
    where = f"{length} bytes do not verify ({detail})"
    if before > after + 1:
        return f"{where}: at most {before - after - 1} rows with sequences from {after + 1} to {before - 1}"
    return f"{where}: rows behind sequence {after}"
