"""The files behind the windows: open ones are bounded, syncs and marks are true, removal is durable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

from store.disk.filesystem import RealFileSystem
from store.errors import DiskFullError, StoreError, SyncFailedError
from store.logs.due_windows import DAY_MS
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.logs.window_files import FileUse
from store.records.batches import MessageBatch
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash
from tests.fakes.rows import messages
from tests.fakes.schedule_files import DAY, KEY, MINUTE, ROOT, assert_same, filled, opened, whole


def test_the_bound_on_open_files_holds_and_files_closed_to_make_room_are_synced_later(disk: FakeDisk) -> None:
    log = opened(disk, 3)
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(10)]
    for key in keys:
        log.append(key, messages(1, 2))
        assert log.open_file_count() <= 3
        log.check_invariants()
    assert log.dirty_keys() == keys
    log.append(keys[0], messages(5, 1))
    log.sync()
    assert log.dirty_keys() == [] and log.open_file_count() <= 3
    disk.crash(Random(3))
    again = opened(disk)
    again.recover_all({})
    assert again.keys() == keys
    assert [again.rows(key) for key in keys] == [3] + [2] * 9


def test_a_file_closed_to_make_room_is_not_durable_before_its_sync(disk: FakeDisk) -> None:
    log = opened(disk, 1)
    log.append(KEY, messages(1, 2))
    before = log.mark(KEY)
    log.append(ScheduleKey(MINUTE + 60_000, ScheduleSource.DIRECT), messages(1, 1))
    assert log.mark(KEY) == before and before.rows == 0
    log.sync([KEY])
    assert log.mark(KEY).rows == 2


def test_a_reader_keeps_its_file_open_while_others_are_evicted(disk: FakeDisk) -> None:
    log, rows = filled(disk, [3, 3, 3])
    log = ScheduleLog(disk, ROOT, 7, 60_000, FileUse(1))
    log.recover_all({})
    reading = log.batches(KEY)
    parts = [next(reading)[1]]
    for minute in range(1, 4):
        log.append(ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT), messages(1, 1))
    parts += [batch for _, batch in reading]
    assert_same(MessageBatch.concatenate(parts), rows)
    log.append(ScheduleKey(MINUTE + 60_000 * 9, ScheduleSource.DIRECT), messages(1, 1))
    assert log.open_file_count() == 1


def test_a_failed_sync_is_final_for_the_file(disk: FakeDisk) -> None:
    log, _ = filled(disk, [3])
    log.append(KEY, messages(10, 1))
    mark = log.mark(KEY)
    disk.fail_next_sync("0915")
    with pytest.raises(SyncFailedError):
        log.sync()
    with pytest.raises(SyncFailedError):
        log.sync()
    with pytest.raises(StoreError, match="restart"):
        log.append(KEY, messages(20, 1))
    assert log.mark(KEY) == mark and log.dirty_keys() == [KEY]


def test_a_mark_is_of_the_last_sync_and_not_of_the_last_append() -> None:
    log, _ = filled(FakeDisk(), [3])
    before = log.mark(KEY)
    log.append(KEY, messages(10, 4))
    assert log.mark(KEY) == before and log.rows(KEY) == 7
    log.sync()
    assert log.mark(KEY) == (log.end(KEY), 13, 7, ())


def test_removing_the_last_file_of_a_day_removes_its_folder_durably(disk: FakeDisk) -> None:
    log, _ = filled(disk, [3])
    log.append(DAY, messages(1, 1))
    log.sync()
    log.remove(KEY)
    assert KEY not in log and disk.exists(f"{ROOT}/2026-11-21")
    log.remove(DAY)
    assert not disk.exists(f"{ROOT}/2026-11-21")
    disk.crash(Random(1))
    assert disk.files(ROOT) == []


def test_a_tool_that_must_not_write_leaves_a_torn_tail_alone(disk: FakeDisk) -> None:
    log, rows = filled(disk, [4])
    place = log.append(KEY, messages(10, 3))
    disk.open(log.path(KEY)).truncate(place.end - 16)
    tool = ScheduleLog(disk, ROOT, 7, 60_000, FileUse(write=False))
    tool.recover_all({})
    assert_same(whole(tool), rows)
    assert disk.size(log.path(KEY)) == place.end - 16


def test_the_real_disk_behaves_like_the_fake(tmp_path: object) -> None:
    log = ScheduleLog(RealFileSystem(), f"{tmp_path}/schedule_log", 7, 60_000, FileUse(2))
    parts = [messages(1 + 10 * part, 10, due_ms=MINUTE) for part in range(3)]
    for part in parts:
        log.append(KEY, part)
        log.append(DAY, part)
        log.append(ScheduleKey(MINUTE, ScheduleSource.FROM_DAY), part)
    log.sync()
    marks = log.marks()
    log.close()
    again = ScheduleLog(RealFileSystem(), f"{tmp_path}/schedule_log", 7, 60_000, FileUse(2))
    again.recover_all(marks)
    assert_same(whole(again), MessageBatch.concatenate(parts))
    for key in list(again):
        again.remove(key)
    again.close()


class DiskWithWorkDuringSync(FakeDisk):
    """Runs a piece of work while a sync is under way, as another thread would."""

    work: Callable[[], object] | None = None

    def sync_fails(self, path: str) -> bool:
        work, self.work = self.work, None
        if work is not None:
            work()
        return super().sync_fails(path)


def test_rows_appended_while_a_sync_runs_stay_dirty() -> None:
    disk = DiskWithWorkDuringSync()
    log, _ = filled(disk, [3])
    place = log.append(KEY, messages(10, 1))
    disk.work = lambda: log.append(KEY, messages(20, 2))
    log.sync()
    assert log.dirty_keys() == [KEY]
    assert (log.mark(KEY).end, log.mark(KEY).rows, log.mark(KEY).last_sequence) == (place.end, 4, 10)
    log.sync()
    assert log.dirty_keys() == [] and log.mark(KEY).rows == 6
    log.check_invariants()


def test_records_that_a_restart_reads_back_are_made_durable_before_they_count() -> None:
    """The process died and the machine did not: records that were never synced are read back whole."""
    for seed in range(10):
        disk = FakeDisk()
        log, rows = filled(disk, [3])
        log.append(KEY, messages(10, 400))
        disk.kill()
        log = opened(disk)
        log.recover_all({})
        assert log.mark(KEY).rows == 403
        disk.crash(Random(seed))
        log = opened(disk)
        log.recover_all({})
        assert (log.rows(KEY), log.damages) == (403, [])
        assert_same(whole(log).slice(0, len(rows)), rows)


def test_a_removed_file_does_not_come_back_after_a_crash() -> None:
    for seed in range(10):
        disk = FakeDisk()
        log, _ = filled(disk, [3])
        log.append(DAY, messages(1, 1))
        log.sync()
        log.remove(KEY)
        disk.crash(Random(seed))
        assert disk.files(ROOT) == [f"{ROOT}/2026-11-21/day.log"]


def test_ranges_within_ranges_are_gathered(disk: FakeDisk) -> None:
    log, _ = filled(disk, [400])
    content = disk.content(log.path(KEY))
    got = log.gather(KEY, np.array([300, 100, 120]), np.array([5, 1000, 10], np.uint32))
    assert bytes(got) == content[300:305] + content[100:1100] + content[120:130]


def test_tiny_and_large_records_decode_alike() -> None:
    """The rows of one file as single records, in records of three, and in one: three ways to decode, one result."""
    rows = messages(1, 999, due_ms=MINUTE)
    names = [name for name, _ in MessageBatch.schema.fields]
    for step in (1, 3, 999):
        log = opened(FakeDisk())
        for start in range(0, 999, step):
            log.append(KEY, rows.slice(start, start + step))
        for name, column in log.read_columns(KEY, names).items():
            np.testing.assert_array_equal(column, getattr(rows, name), name)
            assert column.dtype == np.dtype(dict(MessageBatch.schema.fields)[name])


def test_a_sync_in_another_thread_beside_appends_loses_nothing(tmp_path: object) -> None:
    log = ScheduleLog(RealFileSystem(), f"{tmp_path}/schedule_log", 7, 60_000, FileUse(2))
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(4)]
    done = threading.Event()

    def sync_until_done() -> None:
        while not done.is_set():
            log.sync()
            for key in log:
                durable = log.mark(key)
                assert len(log.index(key, stop=durable.end)) == durable.rows

    with ThreadPoolExecutor(1) as pool:
        syncing = pool.submit(sync_until_done)
        for sequence in range(1, 200):
            log.append(keys[sequence % 4], messages(sequence, 1))
        done.set()
        syncing.result()
    log.sync()
    log.check_invariants()
    assert sum(len(log.index(key)) for key in log) == 199
    log.close()


def test_files_of_a_round_are_made_together_and_only_those_that_are_missing(disk: FakeDisk) -> None:
    log = opened(disk, 40)
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(100)]
    log.append(keys[7], messages(1, 2))
    most = 0
    opened_before = disk.counts["open"]
    log.prepare(keys)
    assert disk.counts["open"] - opened_before == 99
    assert log.keys() == keys and log.open_file_count() <= 40
    log.check_invariants()
    assert (log.rows(keys[7]), log.rows(keys[8]), log.dirty_keys()) == (2, 0, [keys[7]])
    log.prepare(keys)
    assert disk.counts["open"] - opened_before == 99
    for key in keys:
        log.append(key, messages(10, 1))
        most = max(most, log.open_file_count())
    log.sync()
    assert most <= 40
    disk.crash(Random(3))
    again = opened(disk)
    again.recover_all({})
    assert [again.rows(key) for key in keys] == [1] * 7 + [3] + [1] * 92
    assert not again.damages


@pytest.mark.parametrize("point", range(1, 14))
def test_a_crash_while_files_are_made_together_leaves_no_damage(point: int) -> None:
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(3)]
    for seed in range(5):
        disk = FakeDisk()
        log = opened(disk)
        disk.crash_after(point)
        with contextlib.suppress(SimulatedCrash):
            log.prepare(keys)
            for key in keys:
                log.append(key, messages(10, 1))
        disk.crash(Random(seed))
        again = opened(disk)
        again.recover_all({})
        assert not again.damages
        again.prepare(keys)
        assert again.keys() == keys


def test_where_one_of_many_files_finds_no_room_none_is_made(disk: FakeDisk) -> None:
    log = opened(disk)
    log.append(KEY, messages(1, 1))
    disk.capacity_bytes = disk.used_bytes + 2 * PAGE
    keys = [ScheduleKey(MINUTE + 60_000 * minute, ScheduleSource.DIRECT) for minute in range(1, 9)]
    with pytest.raises(DiskFullError):
        log.prepare(keys)
    assert log.keys() == [KEY] and len(disk.files(ROOT)) == 1
    disk.capacity_bytes = None
    log.prepare(keys)
    assert log.keys() == [KEY, *keys]


class SyncedBeside(RealFileSystem):
    """The event loop goes on while a thread has synced files and syncs their names."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: Callable[[], None] | None = None

    def sync_directory(self, path: str) -> None:
        beside, self.beside = self.beside, None
        if beside is not None:
            beside()
        super().sync_directory(path)


@pytest.mark.parametrize("again", [False, True], ids=["removed", "made-again"])
def test_a_file_that_goes_while_others_are_synced_takes_no_other_files_mark_along(again: bool, tmp_path: Path) -> None:
    fs = SyncedBeside()
    log = ScheduleLog(fs, f"{tmp_path}/log", 1, 60_000, FileUse(64))
    gone, other = KEY, ScheduleKey(KEY.start_ms + 10 * DAY_MS, ScheduleSource.DIRECT)
    log.append(gone, messages(1, 1))
    log.append(other, messages(2, 1))

    def retention() -> None:
        log.remove(gone)
        if again:
            log.append(gone, messages(3, 1))

    fs.beside = retention
    log.sync()
    assert log.dirty_keys() == [gone] * again
    log.check_invariants()
