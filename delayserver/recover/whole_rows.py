"""Single rows with their bytes, read back from the file in which a scan met them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from delayserver.recover.capture import Capture
from delayserver.recover.findings import CORRUPT, Findings
from delayserver.recover.records import Records
from store.batches import I64, MessageBatch
from store.errors import CorruptionError
from store.file_header import FILE_HEADER_BYTES
from store.scan import Scan, ScanReport
from store.schedule_index import blob_places

BLOBS = ("ids", "properties", "bodies")


def read_blobs(taken: Capture, path: str, records: Records, columns: dict[str, Any], row: int) -> dict[str, bytes]:
    """Id, properties and body of one row; `columns` has the three length columns of all rows of `records`.

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


def message_rows(
    taken: Capture, path: str, stop: int, sequences: I64, report: ScanReport | None = None
) -> Iterator[tuple[int, MessageBatch]]:
    """The whole messages of a file with these sequences (ascending), record by record, with the record's offset.

    Checksums are verified; what does not verify is passed over, and told to `report` (`check` reports it as well).
    Raises FormatError (a newer record).
    """
    report = ScanReport(FILE_HEADER_BYTES) if report is None else report
    file = taken.open(path)
    try:
        scan = Scan(file, FILE_HEADER_BYTES, stop)
        for header, batch in scan.records(FILE_HEADER_BYTES, stop, report, forgive=True):
            if header.kind != MessageBatch.schema.kind:
                continue
            messages = cast("MessageBatch", batch)
            places = np.minimum(np.searchsorted(sequences, messages.sequence), len(sequences) - 1)
            rows = np.flatnonzero(sequences[places] == messages.sequence)
            if len(rows) == len(messages):
                yield header.offset, messages
            elif len(rows):
                yield header.offset, messages.take(rows)
    finally:
        taken.release(file)


def readable_rows(taken: Capture, path: str, stop: int, sequences: I64, findings: Findings) -> Iterator[MessageBatch]:
    """The same, without offsets. Damage that hides some of them goes to `findings`."""
    report, left = ScanReport(FILE_HEADER_BYTES), len(sequences)
    for _, batch in message_rows(taken, path, stop, sequences, report):
        left -= len(batch)
        yield batch
    for damage in report.damages if left > 0 else []:
        findings.add(CORRUPT, path, damage.start, damage.detail)
