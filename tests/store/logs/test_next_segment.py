"""The next segment, made ahead: a roll without making a file, crashes at each of its steps, and disks without room."""

from __future__ import annotations

import errno
from random import Random

import pytest

from store.errors import DiskFullError, SyncFailedError
from store.logs.message_log import MessageLog
from store.logs.next_segment import NEXT_NAME
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash
from tests.store.message_logs import DIRECTORY, SEGMENT_BYTES, batch, fill, lose_power, opened, sequences

NEXT = f"{DIRECTORY}/{NEXT_NAME}"


def prepare(log: MessageLog, zero_bytes: int = 0) -> None:
    plan = log.preparation(zero_bytes)
    assert plan is not None
    plan.make()
    log.adopt_prepared(plan)


def fill_up(log: MessageLog, first: int = 1) -> int:
    """Append until the last segment is full; the last sequence."""
    (base, _, _), sequence = log.segments()[-1], first - 1
    while log.end - base < SEGMENT_BYTES:
        sequence += 1
        fill(log, 1, first=sequence)
    return sequence


def made(fs: FakeDisk) -> tuple[int, int]:
    return fs.counts["create"], fs.counts["allocate"]


def test_a_commit_at_the_end_of_a_segment_makes_no_file(disk: FakeDisk) -> None:
    log = opened(disk)
    last = 0
    for _ in range(5):
        last = fill_up(log, last + 1)
        prepare(log)
        before, syncs = made(disk), disk.counts["datasync"]
        last += 1
        fill(log, 1, first=last)
        assert made(disk) == before
        assert disk.counts["datasync"] == syncs + 1, "one sync for the header and the commit; the full one was synced"
        assert NEXT not in disk.files()
    assert len(log.segments()) == 6 and sequences(log) == list(range(1, last + 1))
    disk.kill()
    log = opened(disk)
    assert log.damages == [] and sequences(log) == list(range(1, last + 1))


def test_a_next_segment_is_wanted_once_from_three_quarters_of_a_segment_on() -> None:
    log = opened(FakeDisk())
    assert log.preparation() is None
    sequence = 0
    while log.end < log.prepare_from:
        assert log.preparation() is None
        sequence += 1
        fill(log, 1, first=sequence)
    assert SEGMENT_BYTES * 3 // 4 <= log.end < SEGMENT_BYTES
    plan = log.preparation()
    assert plan is not None and log.preparation() is None, "it is being made"
    log.give_up_preparing()
    prepare(log)
    assert log.preparation() is None and log.prepare_from > log.end + SEGMENT_BYTES // 2


def test_space_that_was_zeroed_ahead_is_warm_from_the_first_append_on(disk: FakeDisk) -> None:
    log = opened(disk)
    last = fill_up(log)
    prepare(log, SEGMENT_BYTES)
    syncs, through = disk.counts["datasync"], disk.counts["write_through"]
    log.append_durably([batch(last + 1)])
    assert (disk.counts["datasync"], disk.counts["write_through"]) == (syncs + 1, through), "with the name"
    log.append_durably([batch(last + 2)])
    assert (disk.counts["datasync"], disk.counts["write_through"]) == (syncs + 1, through + 1)
    disk.crash(Random(3))
    assert sequences(opened(disk)) == list(range(1, last + 3))


@pytest.mark.parametrize("zero_bytes", [0, PAGE])
def test_a_crash_at_each_step_of_making_and_using_a_next_segment_takes_nothing_that_was_acknowledged(
    zero_bytes: int,
) -> None:
    crashes = 0
    for point in range(1, 18):
        for seed in range(8):
            fs = FakeDisk()
            log = opened(fs)
            done = fill_up(log)
            fs.crash_after(point)
            try:
                prepare(log, zero_bytes)
                for _ in range(2):
                    log.append_durably([batch(done + 1)])
                    done += 1
            except SimulatedCrash:
                crashes += 1
            lose_power(fs, seed, done)
            assert NEXT not in fs.files(), "a start removes it"
    assert crashes > 80


def test_a_kill_leaves_the_next_segment_and_the_next_start_removes_it(disk: FakeDisk) -> None:
    log = opened(disk)
    done = fill_up(log)
    prepare(log)
    disk.kill()
    assert NEXT in disk.files()
    log = opened(disk)
    assert NEXT not in disk.files() and log.damages == [] and sequences(log) == list(range(1, done + 1))


def test_a_file_with_the_name_of_the_next_segment_is_removed_and_never_read(disk: FakeDisk) -> None:
    log = opened(disk)
    done = fill_up(log)
    disk.open(NEXT, create=True).pwrite(0, [disk.content(log.segments()[0][2])])
    disk.kill()
    log = opened(disk)
    assert NEXT not in disk.files() and log.damages == [] and sequences(log) == list(range(1, done + 1))


def test_without_room_no_next_segment_is_made_and_appends_use_the_room_that_is_left(disk: FakeDisk) -> None:
    log = opened(disk)
    sequence = 0
    while log.end < log.prepare_from:
        sequence += 1
        fill(log, 1, first=sequence)
    plan = log.preparation()
    assert plan is not None
    disk.capacity_bytes = disk.used_bytes + SEGMENT_BYTES // 2
    with pytest.raises(DiskFullError):
        plan.make()
    log.give_up_preparing()
    assert NEXT not in disk.files()
    fill(log, 1, first=sequence + 1)
    assert sequences(log)[-1] == sequence + 1
    disk.capacity_bytes = None
    prepare(log)


def test_an_append_makes_a_next_segment_that_was_taken_away(disk: FakeDisk) -> None:
    log = opened(disk)
    done = fill_up(log)
    prepare(log)
    disk.remove(NEXT)
    fill(log, 1, first=done + 1)
    assert sequences(log) == list(range(1, done + 2)) and len(log.segments()) == 2


def test_a_file_at_the_name_of_the_segment_is_never_replaced_by_it(disk: FakeDisk) -> None:
    log = opened(disk)
    done = fill_up(log)
    prepare(log)
    disk.open(f"{DIRECTORY}/{log.end:020d}.log", create=True)  # left empty by somebody
    fill(log, 1, first=done + 1)
    assert NEXT not in disk.files() and sequences(log) == list(range(1, done + 2))


def test_a_sync_that_fails_in_a_roll_leaves_neither_file(disk: FakeDisk) -> None:
    log = opened(disk)
    done = fill_up(log)
    prepare(log)
    disk.fail_next_sync(NEXT)
    with pytest.raises(SyncFailedError):
        log.append_durably([batch(done + 1)])
    assert len([name for name in disk.files(DIRECTORY) if name.endswith(".log")]) == 1, "it never got its name"
    with pytest.raises(SyncFailedError):
        log.append_durably([batch(done + 1)])
    disk.crash(Random(1))
    assert sequences(opened(disk)) == list(range(1, done + 1))


def test_the_room_of_a_next_segment_is_no_growth_of_the_disk_and_comes_back_unused(disk: FakeDisk) -> None:
    log = opened(disk)
    fill_up(log)
    assert log.growth_bytes(100) == SEGMENT_BYTES
    used = disk.used_bytes
    prepare(log)
    assert log.growth_bytes(100) == 0 and log.growth_bytes(SEGMENT_BYTES + 5) == 5
    assert disk.used_bytes == used + SEGMENT_BYTES
    log.drop_prepared()
    log.drop_prepared()
    assert disk.used_bytes == used and log.growth_bytes(100) == SEGMENT_BYTES


def test_records_that_wait_for_a_sync_in_two_segments_count_as_durable_only_after_it(disk: FakeDisk) -> None:
    log = opened(disk)
    fill(log, 2)
    synced, sequence = log.synced, 2
    while log.end < SEGMENT_BYTES:
        sequence += 1
        log.append([batch(sequence)])
    prepare(log)
    log.append([batch(sequence + 1)])
    assert len(log.segments()) == 2 and NEXT in disk.files()
    assert log.synced == synced, "the full segment is not synced"
    assert log.preparation() is None and log.retire(log.end) == [], "nothing that a start needs is removed"
    copies = log.sync()
    assert copies == log.end == log.synced and NEXT not in disk.files()
    assert log.segments()[-1][2] == f"{DIRECTORY}/{log.segments()[-1][0]:020d}.log"
    disk.crash(Random(2))
    assert sequences(opened(disk)) == list(range(1, sequence + 2))


def test_two_threads_that_sync_a_next_segment_first_name_it_once(disk: FakeDisk) -> None:
    log = opened(disk)
    last = fill_up(log)
    prepare(log)
    log.append([batch(last + 1)])
    _, segment = log.locate(log.end)
    plans = [segment, segment]
    for plan in plans:
        plan.sync()
    assert disk.counts["replace"] == 1 and segment.is_named


def test_where_the_page_cache_counts_as_durable_the_name_is_durable_all_the_same(disk: FakeDisk) -> None:
    log = opened(disk)
    last = fill_up(log)
    prepare(log)
    log.append_assumed([batch(last + 1)])
    disk.kill()
    assert sequences(opened(disk)) == list(range(1, last + 2))


def test_the_naming_of_a_next_segment_is_tried_again_after_a_full_disk(disk: FakeDisk) -> None:
    log = opened(disk)
    last = fill_up(log)
    prepare(log)
    log.append([batch(last + 1)])
    disk.refuse = lambda operation, _path: errno.ENOSPC if operation == "replace" else 0
    with pytest.raises(DiskFullError):
        log.sync()
    assert log.synced < log.end
    disk.refuse = None
    log.sync()
    disk.crash(Random(4))
    assert sequences(opened(disk)) == list(range(1, last + 2))


def test_a_group_that_is_longer_than_a_segment_wants_one_next_segment() -> None:
    log = opened(FakeDisk())
    fill(log, 1, body_bytes=4 * SEGMENT_BYTES)
    prepare(log)
    assert log.prepare_from > log.end and log.preparation() is None
    fill(log, 1, first=2)
    assert len(log.segments()) == 2
