"""Small groups that go past the page cache: as durable as others, wherever a crash or a failure comes."""

from __future__ import annotations

from random import Random

import pytest

from store.errors import DiskFullError, SyncFailedError
from store.logs.message_log import MessageLog
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash
from tests.store.message_logs import batch, lose_power, opened, sequences


def warmed(fs: FakeDisk, segment_bytes: int = 64 * PAGE) -> MessageLog:
    """With some blocks ahead that may be written over past the page cache."""
    log = opened(fs, segment_bytes=segment_bytes)
    step = log.warm_ahead(1 << 20)
    assert step is not None
    log.sync_warm(step)
    log.use_warm(step)
    return log


def test_small_groups_in_warm_space_need_no_sync_of_the_file(disk: FakeDisk) -> None:
    log = warmed(disk)
    before = disk.counts["datasync"], disk.counts["pwrite"]
    for sequence in range(1, 60):
        entries = log.append_durably([batch(sequence, 100)])
        assert (log.synced, entries[-1].end) == (log.end, log.end)
    assert (disk.counts["datasync"], disk.counts["pwrite"]) == before
    assert disk.counts["write_through"] == 59
    disk.crash(Random(1))
    log = opened(disk)
    assert log.damages == [] and sequences(log) == list(range(1, 60))


@pytest.mark.parametrize("first", [True, False])
def test_groups_past_the_cache_and_through_it_follow_each_other(first: bool) -> None:
    plain, fs = FakeDisk(), FakeDisk()
    log, other = warmed(fs), warmed(plain)
    for sequence in range(1, 80):
        part = batch(sequence, sequence * 61 % 5000)
        other.append([part])
        other.sync()
        if (sequence % 3 == 0) == first:
            log.append([part])
            log.sync()
        else:
            log.append_durably([part])
    path = log.segments()[0][2]
    assert fs.counts["write_through"] > 25
    assert fs.content(path) == plain.content(path)


def test_a_log_that_rolls_writes_through_in_each_of_its_segments(disk: FakeDisk) -> None:
    log = opened(disk, segment_bytes=8 * PAGE)
    done = 0
    while len(log.segments()) < 4:
        step = log.warm_ahead(1 << 20)
        if step is not None:
            log.sync_warm(step)
            log.use_warm(step)
        done += 1
        log.append_durably([batch(done, 300)])
    assert disk.counts["write_through"] > done * 0.9
    disk.crash(Random(2))
    log = opened(disk, segment_bytes=8 * PAGE)
    assert log.damages == [] and sequences(log) == list(range(1, done + 1))


def test_a_group_that_is_large_or_behind_the_warm_space_is_synced_with_the_file(disk: FakeDisk) -> None:
    log = warmed(disk, segment_bytes=40 * PAGE)
    log.append_durably([batch(1, 20 * PAGE)])
    assert disk.counts["write_through"] == 0
    log.append_durably([batch(2, 10 * PAGE)])
    assert disk.counts["write_through"] == 1
    log.append_durably([batch(3, 12 * PAGE)])
    assert disk.counts["write_through"] == 1
    assert log.synced == log.end
    disk.crash(Random(1))
    assert sequences(opened(disk)) == [1, 2, 3]


def test_a_file_system_that_cannot_write_through_syncs_the_file(disk: FakeDisk) -> None:
    disk.caches_everything = True
    log = warmed(disk)
    log.append_durably([batch(1)])
    log.append_durably([batch(2)])
    assert log.synced == log.end
    disk.crash(Random(1))
    assert sequences(opened(disk)) == [1, 2]


def test_warm_space_that_a_failed_write_cut_off_is_not_used(disk: FakeDisk) -> None:
    log = warmed(disk)
    log.append_durably([batch(1)])
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFullError):
        log.append([batch(2, 100 * PAGE)])
    disk.capacity_bytes = None
    log.append_durably([batch(2)])
    assert disk.counts["write_through"] == 1
    assert log.synced == log.end
    disk.crash(Random(1))
    assert sequences(opened(disk)) == [1, 2]


def test_a_failed_write_past_the_cache_is_final(disk: FakeDisk) -> None:
    log = warmed(disk)
    log.append_durably([batch(1)])
    disk.fail_next_sync("message_log")
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            log.append_durably([batch(2)])
    with pytest.raises(SyncFailedError):
        log.append([batch(2)])
    assert log.synced == log.end
    disk.crash(Random(3))
    assert sequences(opened(disk)) in ([1], [1, 2])


def test_zeros_whose_sync_fails_end_the_log(disk: FakeDisk) -> None:
    log = opened(disk, segment_bytes=64 * PAGE)
    step = log.warm_ahead(1 << 20)
    assert step is not None
    disk.fail_next_sync("message_log")
    with pytest.raises(SyncFailedError):
        log.sync_warm(step)
    with pytest.raises(SyncFailedError):
        log.append_durably([batch(1)])


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_in_a_write_past_the_cache_takes_nothing_that_was_acknowledged(seed: int, disk: FakeDisk) -> None:
    log = warmed(disk)
    done = 0
    disk.crash_after(seed % 9 + 1)
    try:
        while True:
            log.append_durably([batch(done + 1, 900)])
            done += 1
    except SimulatedCrash:
        pass
    lose_power(disk, seed, done)
