"""Open rows are those of a model of sets, whatever files and parts they are read from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.due_windows import day_of
from store.logs.open_rows import Unit, open_rows, read_open_rows, units_of, unmatched, without_row
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, OutcomeBatch
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import messages, outcomes

MINUTE = 1_795_252_500_000
DAY = day_of(MINUTE)
NAMES = ("sequence", "subject")
SEQUENCES = st.lists(st.integers(1, 40), max_size=30)
# Which of the files of a draining day have a message, and which have its outcome.
PLACES = st.dictionaries(
    st.integers(1, 300),
    st.tuples(st.sets(st.sampled_from("dfm"), min_size=1), st.sets(st.sampled_from("dm"))),
    max_size=60,
)


def column(values: list[int]) -> I64:
    return np.array(values, np.int64)


def logs(disk: FakeDisk) -> tuple[ScheduleLog, DispatchLog]:
    return ScheduleLog(disk, "/data/schedule_log", 7, 60_000), DispatchLog(disk, "/data/dispatch_log", 7, 60_000)


@given(SEQUENCES, st.lists(SEQUENCES, max_size=3))
def test_open_rows_are_the_first_rows_of_the_messages_that_no_table_has(
    rows: list[int], tables: list[list[int]]
) -> None:
    indexes = [OutcomeIndex.of([OutcomeBatch.filled(len(t), sequence=column(t), outcome=1)]) for t in tables]
    found = open_rows(column(rows), indexes).tolist()
    wanted = sorted(set(rows) - set().union(*tables))
    assert found == [rows.index(sequence) for sequence in wanted]


@given(SEQUENCES, st.lists(SEQUENCES, max_size=3))
def test_an_outcome_is_without_a_row_where_no_file_has_its_message(ended: list[int], files: list[list[int]]) -> None:
    found = without_row(column(ended), [column(file) for file in files]).tolist()
    assert found == [sequence not in set().union(*files) for sequence in ended]


@given(SEQUENCES, SEQUENCES)
def test_unmatched_rows_and_outcomes_are_those_of_sets(placed: list[int], settled: list[int]) -> None:
    found = [sequences.tolist() for sequences in unmatched(column(placed), column(settled))]
    assert found == [sorted(set(placed) - set(settled)), sorted(set(settled) - set(placed))]


@settings(max_examples=40)
@given(PLACES, st.sampled_from([1, 5_000, 1 << 20]))
def test_the_open_rows_of_files_are_those_of_a_model(
    places: dict[int, tuple[set[str], set[str]]], part_bytes: int
) -> None:
    """`d`: the file of the day; `f` and `m`: those of a minute, with rows from the day and from the message_log."""
    schedule, dispatch = logs(FakeDisk())
    files = {
        "d": (DAY, ScheduleSource.DAY),
        "f": (MINUTE, ScheduleSource.FROM_DAY),
        "m": (MINUTE, ScheduleSource.DIRECT),
    }
    for name, (start_ms, source) in files.items():
        for sequence in sorted(sequence for sequence, (rows, _) in places.items() if name in rows):
            schedule.append(ScheduleKey(start_ms, source), messages(sequence, 1))
    for name, key in (("d", DispatchKey(DAY, True)), ("m", DispatchKey(MINUTE, False))):
        ended = sorted(sequence for sequence, (_, ends) in places.items() if name in ends)
        for sequence in ended:
            dispatch.append(key, outcomes([sequence]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("store.logs.schedule_log.INDEX_PART_BYTES", part_bytes)
        patch.setattr("store.logs.dispatch_log.PART_BYTES", part_bytes)
        draining = units_of(schedule, dispatch, {DAY})
        found = [read_open_rows(schedule, dispatch, unit, NAMES) for _, unit in draining]
        assert len(draining) == bool(places)
        assert [row for part in found for row in part["sequence"].tolist()] == sorted(
            sequence for sequence, (_, ends) in places.items() if not ends
        )
        fine = dict(units_of(schedule, dispatch, ()))
        open_of_minute = read_open_rows(schedule, dispatch, fine.get(MINUTE, Unit()), NAMES)["sequence"].tolist()
        assert open_of_minute == sorted(
            sequence for sequence, (rows, ends) in places.items() if rows & {"f", "m"} and "m" not in ends
        )


def test_what_comes_behind_the_end_of_a_unit_is_not_read() -> None:
    schedule, dispatch = logs(FakeDisk())
    schedule.append(ScheduleKey(MINUTE, ScheduleSource.DIRECT), messages(1, 3))
    dispatch.append(DispatchKey(MINUTE, False), outcomes([1]))
    [(_, unit)] = units_of(schedule, dispatch, ())
    schedule.append(ScheduleKey(MINUTE, ScheduleSource.DIRECT), messages(4, 3))
    dispatch.append(DispatchKey(MINUTE, False), outcomes([2]))
    assert read_open_rows(schedule, dispatch, unit, NAMES)["sequence"].tolist() == [2, 3]


def test_messages_count_as_open_where_their_outcomes_cannot_be_read(disk: FakeDisk) -> None:
    schedule, dispatch = logs(disk)
    schedule.append(ScheduleKey(MINUTE, ScheduleSource.DIRECT), messages(1, 3))
    place = dispatch.append(DispatchKey(MINUTE, False), outcomes([1]))
    dispatch.append(DispatchKey(MINUTE, False), outcomes([2]))
    dispatch.sync()
    disk.flip_bit(dispatch.path(DispatchKey(MINUTE, False)), place.start + 70)
    [(_, unit)] = units_of(schedule, dispatch, ())
    assert read_open_rows(schedule, dispatch, unit, NAMES)["sequence"].tolist() == [1, 3]
