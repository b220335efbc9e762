"""Single rows with their bytes, read back from the file in which a scan met them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from delayserver.recover.checking.window_check import Visited
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.findings import CORRUPT, MISSING, Findings
from store.errors import CorruptionError
from store.indexes.schedule_index import blob_places
from store.records.batches import I64, MessageBatch
from store.records.records import Records
from store.records.scan import Scan, ScanReport

BLOBS = MessageBatch.schema.blobs


def read_blobs(taken: Capture, path: str, records: Records, columns: dict[str, Any], row: int) -> dict[str, bytes]:
    """Id, properties, body and order key of one row; `columns` has the four length columns of all rows of `records`.

    Raises CorruptionError where the file is shorter than it was.
    """
    counts, blob_offsets = np.array(records.counts, np.int64), np.array(records.blob_offsets, np.int64)
    file = taken.open(path)
    found = {}
    try:
        for name, places in zip(BLOBS, blob_places(columns, counts, blob_offsets), strict=True):
            length = int(columns[f"{name}_length"][row])
            found[name] = file.pread(int(places[row]), length) if length else b""
            if len(found[name]) != length:
                raise CorruptionError(
                    path, int(places[row]), f"{length} bytes were here, {len(found[name])} can be read"
                )
    finally:
        taken.release(file)
    return found


@dataclass(frozen=True, slots=True)
class RowsAt:
    """Rows of a file: their sequences i64[n], ascending, each once, in records from offset `first` to offset `last`."""

    path: str
    size: int
    sequences: I64
    first: int
    last: int

    @classmethod
    def of(cls, visited: Visited, rows: NDArray[np.intp]) -> RowsAt:
        """These rows, at least one, of what a survey met."""
        offsets = visited.rows.offset[rows]
        sequences = np.unique(visited.rows.sequence[rows])
        return cls(visited.path, visited.size, sequences, int(offsets.min()), int(offsets.max()))


def message_rows(taken: Capture, at: RowsAt, report: ScanReport | None = None) -> Iterator[MessageBatch]:
    """The whole messages, record by record.

    Checksums are verified. Damage is passed over and goes to `report` (`check` finds it as well).
    Raises FormatError (a newer record).
    """
    report = ScanReport(at.first) if report is None else report
    sequences = at.sequences
    file = taken.open(at.path)
    try:
        scan = Scan(file, at.first, at.size)
        for header, batch in scan.records(at.first, at.size, report, forgive=True):
            if header.kind == MessageBatch.schema.kind:
                messages = cast("MessageBatch", batch)
                places = np.minimum(np.searchsorted(sequences, messages.sequence), len(sequences) - 1)
                rows = np.flatnonzero(sequences[places] == messages.sequence)
                if len(rows):
                    yield messages if len(rows) == len(messages) else messages.take(rows)
            if header.offset >= at.last:
                return
    finally:
        taken.release(file)


def readable_rows(taken: Capture, at: RowsAt, findings: Findings) -> Iterator[MessageBatch]:
    """The same. Damage that hides some of them goes to `findings`, and so does a file that went since it was surveyed."""
    report, left = ScanReport(at.first), len(at.sequences)
    try:
        for batch in message_rows(taken, at, report):
            left -= len(batch)
            yield batch
    except FileNotFoundError:
        detail = f"the file went while it was read, as where its window is retired: {left} messages of it are left out"
        findings.add(MISSING, at.path, 0, detail, left)
        return
    for damage in report.damages if left > 0 else []:
        findings.add(CORRUPT, at.path, damage.start, damage.detail)
