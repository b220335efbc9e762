"""The messages that the files of a unit hold, for a comparison with message_log row by row."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Expected, Reader
from delayserver.recover.reading.window_units import Units
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.column_batch import MalformedColumnsError
from store.records.file_header import FILE_SCHEDULE


def unit_sequences(taken: Capture, units: Units, code: int, first_kept: int, *, blobs: bool) -> I64 | None:
    """Sequences i64[n], ascending, of the rows in the files of a unit (`Units.codes`), wherever in the files they stand.

    Rows before `first_kept` and rows that the ledger counts are left out. With `blobs` the bytes of the messages must verify
    as well. None where a file has gone since it was captured.
    """
    parts = [np.zeros(0, np.int64)]
    for key in _files_of(taken, code):
        path, size = taken.schedule_path(key), taken.files.schedule[key]
        read = Reader(taken).file(path, size, Expected(FILE_SCHEDULE, key.start_ms, size))
        for records in read.records(blobs=blobs):
            mine = records.of_kind(MessageBatch.schema.kind)
            with suppress(MalformedColumnsError):  # noted when the window was read
                columns = mine.columns(MessageBatch, ("sequence", "due_ms"))
                parts.append(columns["sequence"][~units.is_retired(columns["due_ms"], columns["sequence"])])
        if read.gone:
            return None
    sequences = np.unique(np.concatenate(parts))
    return sequences[sequences >= first_kept]


def _files_of(taken: Capture, code: int) -> list[ScheduleKey]:
    key = ScheduleKey(code >> 1, ScheduleSource.DAY if code & 1 else ScheduleSource.DIRECT)
    if key in taken.files.schedule:
        return [key]
    if not code & 1:
        return []
    # A day that was drained lies in its minutes.
    return [
        found
        for found in taken.files.schedule
        if found.source == ScheduleSource.FROM_DAY and day_of(found.start_ms) == code >> 1
    ]
