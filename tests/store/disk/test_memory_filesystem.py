"""The disk in memory: its room, its holes, its locks, and what many threads may do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.disk.filesystem import BLOCK_BYTES, File, FileSystem, RealFileSystem, keep_room, read_whole, write_atomically
from store.disk.memory_filesystem import PIECE_BYTES, MemoryFileSystem
from store.errors import DiskError, DiskFullError, LockedError, StoreError

MIB = 1 << 20


def test_a_file_that_is_only_allocated_takes_room_and_no_memory() -> None:
    fs = MemoryFileSystem(1024 * MIB)
    file = fs.open("/log", create=True)
    file.allocate(256 * MIB)
    assert (file.size(), fs.used_bytes, fs.held_bytes) == (256 * MIB, 256 * MIB, 0)
    assert file.pread(200 * MIB, 3) == bytes(3) and file.written_ranges(0) == []
    file.pwrite(0, [bytes(8 * MIB)])
    assert fs.held_bytes == 0, "zeros over zeros"
    file.pwrite(100 * MIB - 1, [b"ab"])
    assert fs.held_bytes <= 2 * PIECE_BYTES
    (start, stop), *more = file.written_ranges(0)
    assert start <= 100 * MIB - 1 and stop == 100 * MIB + 1 and not more


def test_allocated_room_is_there_when_the_disk_is_full() -> None:
    fs = MemoryFileSystem(MIB)
    kept = fs.open("/kept", create=True)
    kept.allocate(MIB // 2)
    other = fs.open("/other", create=True)
    with pytest.raises(DiskFullError, match="/other: cannot write: no space left on the disk"):
        other.pwrite(0, [b"x" * MIB])
    assert other.size() == MIB // 2, "what there was room for is written, as on a disk"
    assert fs.free_bytes("/") == 0
    kept.pwrite(0, [b"y" * (MIB // 2)])
    with pytest.raises(DiskFullError, match="cannot allocate"):
        kept.allocate(MIB // 2 + 1)
    other.truncate(1)
    assert fs.free_bytes("/") == MIB // 2 - BLOCK_BYTES
    kept.allocate(MIB // 2 + BLOCK_BYTES)


def test_an_allocation_that_is_refused_takes_no_room() -> None:
    fs = MemoryFileSystem(MIB)
    file = fs.open("/a", create=True)
    with pytest.raises(DiskFullError):
        file.allocate(2 * MIB)
    assert (fs.used_bytes, file.size()) == (0, 0)


def test_the_room_of_a_removed_file_comes_back_with_its_last_handle() -> None:
    fs = MemoryFileSystem(MIB)
    file = fs.open("/a", create=True)
    reader = fs.open("/a", write=False)
    file.pwrite(0, [b"x" * BLOCK_BYTES])
    fs.remove("/a")
    assert not file.has_name() and reader.pread(0, 1) == b"x"
    file.close()
    file.close()
    assert fs.used_bytes == BLOCK_BYTES
    reader.close()
    assert fs.used_bytes == 0


def test_the_room_of_a_replaced_file_comes_back() -> None:
    fs = MemoryFileSystem(MIB)
    for number in range(1000):
        write_atomically(fs, "/checkpoint", b"%d" % number * 5000)
        keep_room(fs, "/checkpoint", 10_000)
    assert fs.used_bytes <= 2 * 5 * BLOCK_BYTES
    assert fs.listdir("/") == ["checkpoint", "checkpoint.tmp"]


def test_an_atomic_write_without_room_leaves_the_old_content() -> None:
    fs = MemoryFileSystem(4 * BLOCK_BYTES)
    write_atomically(fs, "/a", b"old")
    with pytest.raises(DiskFullError):
        write_atomically(fs, "/a", b"n" * 5 * BLOCK_BYTES)
    assert read_whole(fs, "/a") == b"old" and fs.listdir("/") == ["a"] and fs.used_bytes == BLOCK_BYTES


def test_one_name_is_one_file_however_its_path_is_written() -> None:
    fs = MemoryFileSystem(MIB)
    fs.make_directory("./data/log")
    fs.open("./data/log/a", create=True).pwrite(0, [b"x"])
    assert read_whole(fs, "data//log/../log/a") == b"x" and fs.listdir("data") == ["log"]


def refused(fs: FileSystem, root: str) -> dict[str, int]:
    """The errno of each call that no disk allows."""
    closed, reading = fs.open(f"{root}/a", create=True), fs.open(f"{root}/a", write=False)
    closed.close()
    fs.make_directory(f"{root}/d")
    calls: dict[str, Callable[[], object]] = {
        "read closed": lambda: closed.pread(0, 1),
        "write closed": lambda: closed.pwrite(0, [b"x"]),
        "size closed": closed.size,
        "truncate closed": lambda: closed.truncate(0),
        "allocate closed": lambda: closed.allocate(1),
        "write read-only": lambda: reading.pwrite(0, [b"x"]),
        "allocate read-only": lambda: reading.allocate(1),
        "open a directory": lambda: fs.open(f"{root}/d"),
        "remove a directory": lambda: fs.remove(f"{root}/d"),
        "rename nothing": lambda: fs.replace(f"{root}/none", f"{root}/b"),
        "rename over a directory": lambda: fs.replace(f"{root}/a", f"{root}/d"),
        "directory in a file": lambda: fs.make_directory(f"{root}/a/b"),
        "file without its directory": lambda: fs.open(f"{root}/none/b", create=True),
    }
    found = {}
    for name, call in calls.items():
        with pytest.raises(StoreError) as raised:
            call()
        assert isinstance(raised.value, DiskError), name
        found[name] = raised.value.errno
    return found


def test_impossible_calls_raise_the_same_errors_in_memory_as_on_a_real_disk(tmp_path: Path) -> None:
    fs = MemoryFileSystem(MIB)
    fs.make_directory("/d")
    assert refused(fs, "/d") == refused(RealFileSystem(), str(tmp_path))
    with pytest.raises(FileNotFoundError):
        fs.sync_directory("/none")


def test_a_lock_is_one_of_the_disk_and_another_disk_has_its_own() -> None:
    fs, other = MemoryFileSystem(MIB), MemoryFileSystem(MIB)
    held = fs.lock("/lock", b"server one")
    with pytest.raises(LockedError, match="in use by server one"):
        fs.lock("//lock/../lock", b"server two")
    other.lock("/lock", b"server two")
    held.close()
    fs.lock("/lock", b"server three").close()


@pytest.mark.parametrize("seed", range(8))
def test_after_any_calls_a_file_system_in_memory_holds_the_files_of_a_real_one(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    disks: list[tuple[FileSystem, str]] = [(MemoryFileSystem(64 * MIB), "/"), (RealFileSystem(), f"{tmp_path}/")]
    files: list[dict[str, File]] = [{}, {}]
    for _ in range(400):
        name, action, at = chance.choice("abc"), chance.random(), chance.randrange(5 * PIECE_BYTES)
        data = chance.randbytes(1) * chance.choice([1, 100, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 7])
        data = data if chance.random() < 0.8 else bytes(len(data))
        seen = []
        for (fs, root), opened in zip(disks, files, strict=True):
            if name not in opened:
                opened[name] = fs.open(root + name, create=True)
            file = opened[name]
            if action < 0.5:
                file.pwrite(at, [data[:1], data[1:]])
            elif action < 0.6:
                file.truncate(at)
            elif action < 0.7:
                file.allocate(at)
            elif action < 0.75 and fs.exists(root + name):
                fs.replace(root + name, root + "d")
                opened.pop(name).close()
            elif action < 0.8:
                fs.remove(root + name)
            seen.append((file.pread(at, len(data)) if name in opened else b"", fs.exists(root + name)))
        assert seen[0] == seen[1]
    for name in files[0]:
        memory, real = files[0][name], files[1][name]
        assert memory.size() == real.size() and memory.pread(0, memory.size() + 1) == real.pread(0, real.size() + 1)
        end = 0
        for start, stop in memory.written_ranges(0):
            assert not any(memory.pread(end, start - end)), "outside of the ranges there are zeros"
            end = stop
        assert not any(memory.pread(end, memory.size()))


def test_threads_that_write_read_and_remove_never_break_the_count_of_its_room() -> None:
    fs = MemoryFileSystem(8 * MIB)
    failures: list[BaseException] = []
    shared = fs.open("/shared", create=True)
    shared.pwrite(0, [bytes([1]) * 4 * PIECE_BYTES])

    def work(number: int) -> None:
        chance = Random(number)
        try:
            for turn in range(200):
                path = f"/{number}-{turn % 3}"
                file = fs.open(path, create=True)
                try:
                    file.pwrite(chance.randrange(MIB), [b"z" * chance.randrange(MIB)])
                except DiskFullError:
                    file.truncate(0)
                block = bytes([number + 1]) * 100
                shared.pwrite(PIECE_BYTES - 50, [block])
                assert len(set(shared.pread(PIECE_BYTES - 50, 100))) == 1, "a write is seen whole"
                if turn % 2:
                    fs.remove(path)
                file.close()
                fs.listdir("/")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    shared.close()
    for name in fs.listdir("/"):
        fs.remove(f"/{name}")
    assert fs.used_bytes == 0 and fs.held_bytes == 0
