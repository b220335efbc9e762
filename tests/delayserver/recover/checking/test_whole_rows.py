"""Single rows are read from where they stand, not from the whole file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from delayserver.recover.checking.whole_rows import RowsAt, readable_rows
from delayserver.recover.checking.window_check import ScheduleRows, Visited
from delayserver.recover.mending.rewriting import write_file
from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.file_read import Reader
from delayserver.recover.reading.findings import Findings
from store.disk.filesystem import RealFileSystem
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import MessageBatch
from store.records.file_header import FILE_SCHEDULE, FileHeader
from tests.delayserver.recover import damaging
from tests.delayserver.recover.directories import Made

START_MS = 1_200_000
KEY = ScheduleKey(START_MS, ScheduleSource.DIRECT)
RECORDS, ROWS = 10, 4


def record(number: int) -> MessageBatch:
    sequence = np.arange(number * ROWS, (number + 1) * ROWS) + 1
    bodies = b"".join(b"body %4d" % value for value in sequence.tolist())
    return MessageBatch.filled(
        ROWS, sequence=sequence, due_ms=START_MS, subject=1, bodies=bodies, bodies_length=np.full(ROWS, 9, np.uint32)
    )


@pytest.fixture
def taken(made: Made) -> Capture:
    """A directory with a schedule file of ten records of four messages."""
    taken = capture(RealFileSystem(), str(made.path), Findings())
    path = taken.schedule_path(KEY)
    header = FileHeader(FILE_SCHEDULE, taken.server_id, START_MS, taken.files.window_ms)
    taken.files.schedule[KEY] = write_file(taken.fs, path, header, map(record, range(RECORDS)))
    return taken


def rows_at(taken: Capture, sequences: list[int]) -> RowsAt:
    path = Path(taken.schedule_path(KEY))
    offset = np.repeat([start for start, _, _ in damaging.records(path)], ROWS)
    sequence = np.arange(RECORDS * ROWS) + 1
    same = np.full(len(sequence), START_MS)
    ones = np.ones(len(sequence), np.uint32)
    rows = ScheduleRows(sequence, same, same, same * 0, same * 0, ones, ones * 0, offset)
    visited = Visited(str(path), taken.files.schedule[KEY], KEY, rows, np.zeros(len(sequence), np.uint8))
    return RowsAt.of(visited, np.flatnonzero(np.isin(sequence, sequences)))


def test_rows_are_read_whole(taken: Capture) -> None:
    hidden = Findings()
    wanted = [15, 18, 19, 21]
    batches = list(readable_rows(taken, rows_at(taken, wanted), hidden))
    assert [batch.sequence.tolist() for batch in batches] == [[15], [18, 19], [21]]
    assert b"".join([bytes(batch.bodies) for batch in batches]) == b"".join([b"body %4d" % value for value in wanted])
    assert not list(hidden)


def test_records_before_and_behind_the_rows_are_not_read(taken: Capture) -> None:
    path = Path(taken.schedule_path(KEY))
    records = damaging.records(path)
    for number in (0, 2, 6, 9):
        damaging.flip(path, records[number][1])
    at, hidden = rows_at(taken, [15, 20, 24]), Findings()
    # One that nobody asked for any more is looked for too: damage of other records would be told for it.
    missed = RowsAt(at.path, at.size, np.array([15, 20, 24, 99]), at.first, at.last)
    assert [batch.sequence.tolist() for batch in readable_rows(taken, missed, hidden)] == [[15], [20], [24]]
    assert not list(hidden)


def test_damage_that_hides_a_row_is_reported(taken: Capture) -> None:
    path = Path(taken.schedule_path(KEY))
    start, blob, _ = damaging.records(path)[4]
    at, hidden = rows_at(taken, [15, 20, 24]), Findings()
    damaging.flip(path, blob)
    assert [batch.sequence.tolist() for batch in readable_rows(taken, at, hidden)] == [[15], [24]]
    assert [finding.offset for finding in hidden] == [start]


def test_a_mended_file_is_read_as_it_stands_now(taken: Capture) -> None:
    """A capture holds files of before; `rebuild` may have replaced one of them."""
    path, header = taken.schedule_path(KEY), FileHeader(FILE_SCHEDULE, taken.server_id, START_MS, taken.files.window_ms)
    taken.hold(path)
    size = write_file(taken.fs, path, header, [record(77)])
    [(_, batch)] = Reader(taken).batches(path, size)
    assert isinstance(batch, MessageBatch)
    assert batch.sequence.tolist() == record(77).sequence.tolist()
    taken.close()
