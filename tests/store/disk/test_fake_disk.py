"""The fake disk is as unkind as a real one, and not more forgiving than its description."""

from __future__ import annotations

from random import Random

import pytest

from store.disk.filesystem import write_atomically
from store.errors import DiskFullError, LockedError, StoreError, SyncFailedError
from tests.fakes.disk import PAGE, FakeDisk, SimulatedCrash, new_disk


def durable_file(fs: FakeDisk, path: str, content: bytes) -> None:
    file = fs.open(path, create=True)
    file.pwrite(0, [content])
    file.datasync()
    fs.sync_directory("/d")
    file.close()


def test_synced_bytes_survive_every_crash() -> None:
    for seed in range(50):
        fs = new_disk()
        durable_file(fs, "/d/a", b"x" * 10_000)
        fs.crash(Random(seed))
        assert fs.content("/d/a") == b"x" * 10_000


def test_unsynced_pages_survive_each_for_itself_and_in_any_order() -> None:
    seen = set()
    for seed in range(200):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 3 * PAGE)
        file = fs.open("/d/a")
        for page in range(3):
            file.pwrite(page * PAGE, [b"n" * PAGE])
        file.pwrite(0, [b"n"])  # so that the torn last write is this one
        fs.crash(Random(seed))
        content = fs.content("/d/a")
        seen.add(bytes(content[page * PAGE + PAGE - 1] for page in range(3)))
    assert len(seen) == 8


def test_the_last_write_is_torn_at_any_byte() -> None:
    lengths = set()
    for seed in range(300):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 8)
        fs.open("/d/a").pwrite(0, [b"n" * 8])
        fs.crash(Random(seed))
        content = fs.content("/d/a")
        lengths.add(content.count(b"n"))
        assert content == (b"n" * content.count(b"n")).ljust(8, b"o")
    assert lengths == set(range(9))


def test_an_unsynced_growth_is_lost_or_kept_and_never_shows_foreign_bytes() -> None:
    sizes = set()
    for seed in range(50):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 100)
        fs.open("/d/a").pwrite(100, [b"n" * 100])
        fs.crash(Random(seed))
        content = fs.content("/d/a")
        sizes.add(len(content))
        assert content[:100] == b"o" * 100 and set(content[100:]) <= {0, ord("n")}
    assert sizes == {100, 200}


def test_directory_entries_that_were_not_synced_are_lost_or_kept() -> None:
    seen = set()
    for seed in range(100):
        fs = new_disk()
        durable_file(fs, "/d/old", b"1")
        durable_file(fs, "/d/renamed", b"2")
        fs.open("/d/new", create=True)
        fs.remove("/d/old")
        fs.replace("/d/renamed", "/d/target")
        fs.crash(Random(seed))
        assert ("/d/renamed" in fs.files()) != ("/d/target" in fs.files()), "a rename happens wholly or not"
        assert fs.listdir("/d") == [path[3:] for path in fs.files("/d/")]
        seen.add(tuple(fs.listdir("/d")))
    assert len(seen) == 8


def test_synced_directory_entries_survive() -> None:
    fs = new_disk()
    durable_file(fs, "/d/a", b"1")
    fs.replace("/d/a", "/d/b")
    fs.sync_directory("/d")
    fs.crash(Random(1))
    assert fs.files() == ["/d/b"]


def test_a_truncation_that_was_not_synced_may_come_back() -> None:
    seen = set()
    for seed in range(50):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 100)
        fs.open("/d/a").truncate(10)
        fs.crash(Random(seed))
        seen.add(fs.content("/d/a"))
    assert {b"o" * 10, b"o" * 100} <= seen


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    fs = new_disk()
    file = fs.open("/d/a", create=True)
    file.pwrite(0, [b"abc"])
    fs.kill()
    assert fs.content("/d/a") == b"abc"
    with pytest.raises(SimulatedCrash):
        file.pread(0, 3)


def test_a_failed_sync_is_final_and_later_syncs_make_nothing_of_it_durable() -> None:
    lost = 0
    for seed in range(40):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 10)
        file = fs.open("/d/a")
        file.pwrite(0, [b"n" * 10])
        fs.fail_next_sync("/a")
        for _ in range(2):
            with pytest.raises(SyncFailedError):
                file.datasync()
        fs.kill()
        fs.open("/d/a").datasync()  # the restarted process sees the new bytes, and its sync succeeds
        assert fs.content("/d/a") == b"n" * 10
        fs.crash(Random(seed))
        lost += fs.content("/d/a") == b"o" * 10
    assert 0 < lost < 40


def test_writing_pages_of_a_failed_sync_again_makes_them_durable() -> None:
    for seed in range(20):
        fs = new_disk()
        durable_file(fs, "/d/a", b"o" * 10)
        file = fs.open("/d/a")
        file.pwrite(0, [b"n" * 10])
        fs.fail_next_sync("/a")
        with pytest.raises(SyncFailedError):
            file.datasync()
        fs.kill()
        file = fs.open("/d/a")
        file.pwrite(0, [file.pread(0, 10)])
        file.datasync()
        fs.crash(Random(seed))
        assert fs.content("/d/a") == b"n" * 10


def test_a_full_disk_takes_a_part_of_a_write_and_says_so() -> None:
    fs = new_disk(capacity_bytes=2 * PAGE)
    file = fs.open("/d/a", create=True)
    with pytest.raises(DiskFullError):
        file.pwrite(0, [b"x" * 3 * PAGE])
    assert file.size() == 2 * PAGE and fs.free_bytes("/d") == 0
    with pytest.raises(DiskFullError):
        fs.open("/d/b", create=True).allocate(1)
    file.truncate(PAGE)
    assert fs.free_bytes("/d") == PAGE
    fs.open("/d/b").pwrite(0, [b"y"])
    fs.remove("/d/a")
    assert fs.free_bytes("/d") == PAGE


def test_allocated_space_is_there_when_the_disk_is_full() -> None:
    fs = new_disk(capacity_bytes=2 * PAGE)
    file = fs.open("/d/a", create=True)
    file.allocate(PAGE)
    fs.open("/d/b", create=True).pwrite(0, [b"x" * PAGE])
    file.pwrite(10, [b"y" * (PAGE - 10)])
    assert file.pread(0, 11) == bytes(10) + b"y"


def test_a_crash_comes_at_the_operation_asked_for_and_nothing_runs_after_it() -> None:
    fs = new_disk()
    file = fs.open("/d/a", create=True)
    fs.crash_after(2)
    file.pwrite(0, [b"1"])
    with pytest.raises(SimulatedCrash):
        file.datasync()
    for use in (lambda: file.pread(0, 1), lambda: fs.exists("/d"), lambda: fs.open("/d/b", create=True)):
        with pytest.raises(SimulatedCrash):
            use()
    fs.crash(Random(0))
    assert fs.exists("/d")


def test_locks_go_with_the_process_and_with_the_file() -> None:
    fs = new_disk()
    held = fs.lock("/d/lock", b"process 1")
    with pytest.raises(LockedError, match="process 1"):
        fs.lock("/d/lock", b"process 2")
    held.close()
    fs.lock("/d/lock", b"process 2")
    fs.crash(Random(0))
    fs.lock("/d/lock", b"process 3")


def test_a_flipped_bit_stays_flipped() -> None:
    fs = new_disk()
    durable_file(fs, "/d/a", b"\0" * 10)
    fs.flip_bit("/d/a", 3, 2)
    fs.crash(Random(0))
    assert fs.content("/d/a")[3] == 4


def test_a_file_opened_for_reading_is_not_written() -> None:
    fs = new_disk()
    durable_file(fs, "/d/a", b"1")
    with pytest.raises(StoreError):
        fs.open("/d/a", write=False).pwrite(0, [b"2"])


def test_an_atomic_write_leaves_the_old_or_the_new_content_at_every_crash_point() -> None:
    seen = set()
    for point in range(1, 8):
        for seed in range(20):
            fs = new_disk()
            write_atomically(fs, "/d/a", b"old" * 3000)
            fs.crash_after(point)
            try:
                write_atomically(fs, "/d/a", b"new" * 4000)
            except SimulatedCrash:
                pass
            fs.crash(Random(seed))
            assert fs.content("/d/a") in (b"old" * 3000, b"new" * 4000)
            seen.add(fs.content("/d/a")[:3])
    assert seen == {b"old", b"new"}


def test_an_atomic_write_that_finds_the_disk_full_gives_the_space_back() -> None:
    fs = new_disk(capacity_bytes=3 * PAGE)
    write_atomically(fs, "/d/a", b"o" * PAGE)
    with pytest.raises(DiskFullError):
        write_atomically(fs, "/d/a", b"n" * 3 * PAGE)
    assert fs.files() == ["/d/a"] and fs.content("/d/a") == b"o" * PAGE
    assert fs.free_bytes("/d") == 2 * PAGE


def test_a_loss_of_power_leaves_at_least_the_synced_bytes(disk: FakeDisk) -> None:
    disk.make_directory("/d")
    file = disk.open("/d/a", create=True)
    file.pwrite(0, [b"a" * 3 * PAGE])
    file.datasync()
    file.pwrite(PAGE, [b"b" * PAGE])
    file.pwrite(3 * PAGE, [b"c"])
    assert disk.durable("/d/a") == b"a" * 3 * PAGE
    file.datasync()
    assert disk.durable("/d/a") == disk.content("/d/a")
    file.truncate(PAGE)
    assert disk.durable("/d/a") == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE + b"c"
    disk.fail_next_sync("/d/a")
    with pytest.raises(SyncFailedError):
        file.datasync()
    assert disk.durable("/d/a") == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE + b"c"
