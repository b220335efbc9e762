from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.disk.space_reserve import SpaceReserve
from store.errors import CorruptionError, DiskFullError
from store.logs.dispatch_log import DispatchKey, DispatchLog, count_outcomes
from store.logs.due_windows import day_of
from store.logs.window_files import FileUse
from store.records.batches import OutcomeBatch
from store.records.segment import FILE_DISPATCH, Damage, Segment
from tests.fakes.disk import FakeDisk
from tests.fakes.rows import outcomes

MINUTE = 1_795_252_500_000
KEY = DispatchKey(MINUTE, False)
DAY = DispatchKey(day_of(MINUTE), True)
ROOT = "/data/dispatch_log"
PAGE = 4096


def opened(disk: FakeDisk, open_files_max: int = 256, reserve_bytes: int = 4 * PAGE) -> DispatchLog:
    return DispatchLog(disk, ROOT, 7, 60_000, FileUse(open_files_max), reserve_bytes=reserve_bytes)


def assert_same(left: OutcomeBatch, right: OutcomeBatch) -> None:
    for name in OutcomeBatch.schema.names:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)


def assert_counts_are_those_of_a_scan(log: DispatchLog) -> None:
    for key in log:
        scanned = count_outcomes(log.outcomes(key))
        np.testing.assert_array_equal(np.stack([log.counts(key), log.internal_counts(key)]), scanned)
        assert log.rows(key) == int(scanned.sum())


def test_files_are_named_by_window_or_day(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, outcomes([1]))
    log.append(DAY, outcomes([2]))
    assert disk.files() == [f"{ROOT}/2026-11-21/0915.log", f"{ROOT}/2026-11-21/day.log"]
    assert log.keys() == [DAY, KEY] and log.keys_between(MINUTE, MINUTE + 60_000) == [KEY]


def test_outcomes_are_read_back_in_the_order_written() -> None:
    log = opened(FakeDisk())
    parts = [outcomes([9, 3, 5]), outcomes([1]), outcomes(list(range(20, 600))), outcomes([2]), outcomes([8, 7])]
    places = [log.append(KEY, part) for part in parts]
    assert_same(log.outcomes(KEY), OutcomeBatch.concatenate(parts))
    assert_same(log.outcomes(KEY, places[3].start, places[4].start), parts[3])
    assert len(log.outcomes(DAY)) == 0 and log.end(DAY) == 0


@pytest.mark.parametrize("part_bytes", [1, 5_000, 1 << 20])
def test_rows_of_some_messages_are_read_around_damage_and_a_part_at_a_time(
    part_bytes: int, monkeypatch: pytest.MonkeyPatch, disk: FakeDisk
) -> None:
    monkeypatch.setattr("store.logs.dispatch_log.PART_BYTES", part_bytes)
    log = opened(disk)
    written = [outcomes(list(range(first, first + 50))) for first in range(100, 1_000, 50)]
    places = [log.append(KEY, part) for part in written]
    log.sync()
    disk.flip_bit(disk.files()[0], places[2].start + 70)
    damages: list[Damage] = []
    found = log.rows_of(KEY, np.array([149, 949, 201, 500, 7]), damages)
    assert found.sequence.tolist() == [149, 500, 949]
    wanted = [written[0].slice(49, 50), written[8].slice(0, 1), written[16].slice(49, 50)]
    assert_same(found, OutcomeBatch.concatenate(wanted))
    assert [damage.start for damage in damages] == [places[2].start]
    assert len(log.rows_of(DAY, np.array([149]), damages)) == 0


def test_internal_records_are_counted_apart_and_deduplicated_ones_are_not_internal() -> None:
    log = opened(FakeDisk())
    batch = OutcomeBatch.filled(
        6,
        sequence=np.arange(1, 7),
        outcome=np.array([4, 4, 4, 7, 8, 5], np.uint8),
        origin_sequence=np.array([0, 3, 0, 2, 5, 0]),
        redelivery=np.array([0, 0, 1, 0, 2, 0], np.uint32),
    )
    log.append(KEY, batch)
    assert {code: count for code, count in enumerate(log.counts(KEY).tolist()) if count} == {4: 1, 7: 1, 5: 1}
    assert {code: count for code, count in enumerate(log.internal_counts(KEY).tolist()) if count} == {4: 2, 8: 1}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), max_size=20), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_counts_after_a_crash_equal_those_of_a_full_scan(steps: list[tuple[int, int, bool]], seed: int) -> None:
    disk, sequence = FakeDisk(), 1
    keys = [KEY, DAY, DispatchKey(MINUTE + 60_000, False)]
    log = opened(disk, 2)
    marks, synced = log.marks(), {}
    for which, count, sync in steps:
        log.append(keys[which], outcomes(list(range(sequence, sequence + count))))
        sequence += count
        if sync:
            log.sync()
            marks, synced = log.marks(), {key: log.rows(key) for key in log}
        log.check_invariants()
        assert_counts_are_those_of_a_scan(log)
    disk.crash(Random(seed))
    again = opened(disk, 2)
    again.recover_all(marks)
    again.check_invariants()
    assert again.damages == []
    assert all(again.rows(key) >= rows for key, rows in synced.items())
    assert_counts_are_those_of_a_scan(again)
    scanned = opened(disk)
    scanned.recover_all({})
    assert scanned.marks() == again.marks()


def test_one_file_is_restored_and_counted_on(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, outcomes([1, 2, 3]))
    log.sync()
    mark = log.mark(KEY)
    log.append(KEY, outcomes([4, 5]))
    log.sync()
    again = opened(disk)
    again.recover_all({KEY: mark})
    assert again.mark(KEY) == log.mark(KEY)
    assert_counts_are_those_of_a_scan(again)


def test_a_record_with_an_outcome_beyond_the_table_is_damage_and_the_others_are_counted(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, outcomes([1, 2, 3]))
    log.sync()
    segment = Segment.open(disk, log.path(KEY), FILE_DISPATCH, 7)
    segment.recover()
    place = segment.append(outcomes([4, 5]).with_columns(outcome=16))
    segment.append(outcomes([6, 7]))
    segment.sync()
    again = opened(disk)
    again.recover_all({})
    damage = Damage(place.start, place.end, "outcome code 16 is beyond the table")
    assert [found.damage for found in again.damages] == [damage] and again.rows(KEY) == 5
    assert str(again.damages[0]) == f"{again.path(KEY)}: corrupt at offset {damage.start}: {damage.detail}"
    damages: list[Damage] = []
    assert again.outcomes(KEY, damages=damages).sequence.tolist() == [1, 2, 3, 6, 7] and damages == [damage]
    with pytest.raises(CorruptionError, match=f"offset {place.start}: outcome code 16"):
        again.outcomes(KEY)


def test_the_reserve_is_given_up_when_the_disk_is_full() -> None:
    disk = FakeDisk(capacity_bytes=16 * PAGE)
    log = opened(disk)
    assert log.restore_reserve()
    log.append(KEY, outcomes([1]))
    full = disk.capacity_bytes = disk.used_bytes
    rows = 1
    while log.reserve.held:
        log.append(KEY, outcomes([rows + 1]))
        rows += 1
    assert rows > 1 and disk.used_bytes < full
    log.sync()
    assert len(log.outcomes(KEY)) == log.rows(KEY) == rows
    assert not log.restore_reserve() and not disk.exists(f"{ROOT}/reserve")
    disk.capacity_bytes = full + 16 * PAGE
    assert log.restore_reserve() and log.restore_reserve()


def test_the_reserve_serves_a_file_that_is_new_too() -> None:
    disk = FakeDisk(capacity_bytes=16 * PAGE)
    log = opened(disk)
    log.restore_reserve()
    disk.capacity_bytes = disk.used_bytes
    log.append(KEY, outcomes([1]))
    assert not log.reserve.held and log.rows(KEY) == 1


def test_without_a_reserve_a_full_disk_is_raised_and_nothing_is_appended() -> None:
    disk = FakeDisk(capacity_bytes=16 * PAGE)
    log = opened(disk)
    log.append(KEY, outcomes([1]))
    log.sync()
    disk.capacity_bytes = disk.used_bytes
    end, rows = log.end(KEY), log.rows(KEY)
    with pytest.raises(DiskFullError):
        log.append(KEY, outcomes([2] * 5000))
    assert (log.end(KEY), log.rows(KEY)) == (end, rows)
    assert_counts_are_those_of_a_scan(log)
    disk.capacity_bytes += 512 * PAGE
    log.append(KEY, outcomes([3]))
    assert log.rows(KEY) == 2


def test_the_reserve_is_no_stranger_and_stays_over_a_restart(disk: FakeDisk) -> None:
    opened(disk).restore_reserve()
    again = opened(disk)
    again.recover_all({})
    assert again.strangers == [] and again.reserve.held


def test_the_content_of_a_renamed_file_is_not_taken_for_the_outcomes_of_a_window(disk: FakeDisk) -> None:
    log = opened(disk)
    other = DispatchKey(MINUTE + 60_000, False)
    log.append(KEY, outcomes([1, 2]))
    log.sync()
    path = log.path(KEY)
    disk.replace(path, path.replace("0915", "0916"))
    log = opened(disk)
    log.recover_all({})
    assert [damage.key for damage in log.damages] == [other]
    assert log.keys() == [] and len(log.outcomes(KEY)) == 0
    for _ in range(2):
        with pytest.raises(CorruptionError, match=path.replace("0915", "0916")):
            log.outcomes(other)
        log.append(other, outcomes([7]))  # set aside, it holds up nothing, but what the window had stays unknown
        log.sync()
        log = opened(disk)
        log.recover_all({})
    assert log.rows(other) == 2


def test_a_reserve_of_nothing_is_never_held() -> None:
    reserve = SpaceReserve(FakeDisk(), "/data/reserve", 0)
    assert not reserve.restore() and not reserve.held and not reserve.release()


def test_a_removed_file_is_gone_after_a_crash(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, outcomes([1]))
    log.sync()
    log.remove(KEY)
    disk.crash(Random(0))
    again = opened(disk)
    again.recover_all({})
    assert again.keys() == [] and KEY not in log
