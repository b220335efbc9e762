"""Which messages the files of a unit hold: what message_log is compared with, row by row."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from delayserver.recover.capture import Capture
from delayserver.recover.file_read import Expected, FileRead
from delayserver.recover.findings import Findings
from delayserver.recover.units import Units
from store.batches import I64, MessageBatch
from store.columns import MalformedColumnsError
from store.file_header import FILE_SCHEDULE
from store.schedule_log import ScheduleKey, Source
from store.windows import day_of


def unit_sequences(taken: Capture, units: Units, code: int, first_kept: int, *, blobs: bool) -> I64 | None:
    """Sequences i64[n], ascending, of all rows that verify in the files of a unit (`Units.codes`), wherever they stand, from
    `first_kept` on and without those that the ledger counts; with `blobs` the bytes of their messages must verify as well.
    None where a file has gone since it was captured."""
    parts = [np.zeros(0, np.int64)]
    for key in _files_of(taken, code):
        path, size = taken.schedule_path(key), taken.schedule[key]
        read = FileRead(taken, path, size, Expected(FILE_SCHEDULE, key.start_ms, size), Findings(), _ignore)
        for records in read.records(blobs=blobs):
            mine = records.of_kind(MessageBatch.schema.kind)
            with suppress(MalformedColumnsError):  # told when the window was read
                columns = mine.columns(MessageBatch, ("sequence", "due_ms"))
                parts.append(columns["sequence"][~units.is_retired(columns["due_ms"], columns["sequence"])])
        if read.gone:
            return None
    sequences = np.unique(np.concatenate(parts))
    return sequences[sequences >= first_kept]


def _files_of(taken: Capture, code: int) -> list[ScheduleKey]:
    key = ScheduleKey(code >> 1, Source.DAY if code & 1 else Source.DIRECT)
    if key in taken.schedule:
        return [key]
    if not code & 1:
        return []
    # A day that was drained lies in its minutes.
    return [
        found for found in taken.schedule if found.source == Source.FROM_DAY and day_of(found.start_ms) == code >> 1
    ]


def _ignore(_bytes: int) -> None:
    pass
