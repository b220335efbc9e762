"""The real door to the disk, and what the fake one must have in common with it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.filesystem import (
    BLOCK_BYTES,
    IOV_MAX,
    LOOKS_AT_PATH,
    FileSystem,
    RealFile,
    RealFileSystem,
    StillDisk,
    aligned_memory,
    directory_of,
    read_whole,
    write_atomically,
)
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import DiskError, DiskFullError, LockedError, StoreError, SyncFailedError, UnreadableError
from tests.fakes.disk import FakeDisk

Made = tuple[FileSystem, str]


@pytest.fixture(params=["real", "memory", "fake"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    if request.param == "real":
        return RealFileSystem(), str(tmp_path)
    fs: FileSystem = FakeDisk() if request.param == "fake" else MemoryFileSystem(1 << 30)
    fs.make_directory("/d")
    return fs, "/d"


def test_bytes_are_read_where_they_were_written(made: Made) -> None:
    fs, root = made
    file = fs.open(f"{root}/a", create=True)
    assert file.pwrite(3, [b"abc", memoryview(b"de"), bytearray(b"f")]) == 6
    assert file.pwrite(4, []) == 0
    assert (file.size(), fs.size(f"{root}/a")) == (9, 9)
    assert file.pread(0, 100) == b"\0\0\0abcdef" and file.pread(5, 2) == b"cd" and file.pread(9, 5) == b""
    file.truncate(5)
    file.truncate(8)
    assert file.pread(0, 100) == b"\0\0\0ab\0\0\0"
    file.allocate(6)
    assert file.size() == 8
    file.allocate(20)
    assert file.size() == 20 and file.pread(8, 100) == bytes(12)
    file.datasync()
    file.close()
    file.close()
    assert read_whole(fs, f"{root}/a")[:5] == b"\0\0\0ab"


def blocks_of(*pages: bytes) -> memoryview:
    memory = aligned_memory(len(pages) * BLOCK_BYTES)
    memory[:] = b"".join(page.ljust(BLOCK_BYTES, b"\0") for page in pages)
    return memory


def test_a_reader_sees_blocks_that_are_written_through(made: Made) -> None:
    fs, root = made
    file = fs.open(f"{root}/a", create=True)
    file.allocate(16 * BLOCK_BYTES)
    file.pwrite(0, [b"x" * 5 * BLOCK_BYTES])
    file.datasync()
    reader = fs.open(f"{root}/a", write=False)
    assert reader.pread(BLOCK_BYTES, 4) == b"xxxx"
    for number in range(10):
        page = b"number %d" % number
        if file.write_through(BLOCK_BYTES, blocks_of(page, b"next")):
            assert reader.pread(BLOCK_BYTES, len(page) + 1) == page + b"\0"
            assert reader.pread(2 * BLOCK_BYTES, 5) == b"next\0"
            file.pwrite(2 * BLOCK_BYTES, [b"through the cache %d" % number])
            assert reader.pread(2 * BLOCK_BYTES, 19) == b"through the cache %d" % number
        else:  # a file system that cannot do it has written nothing
            assert reader.pread(BLOCK_BYTES, 4) == b"xxxx"
    file.datasync()
    assert reader.pread(3 * BLOCK_BYTES, 2 * BLOCK_BYTES) == b"x" * 2 * BLOCK_BYTES
    assert file.size() == 16 * BLOCK_BYTES
    file.close()


def test_a_file_that_was_cut_off_has_one_descriptor_until_it_is_written_through_again(tmp_path: Path) -> None:
    file = RealFileSystem().open(f"{tmp_path}/a", create=True)

    def descriptors() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{name}") == file.path for name in os.listdir("/proc/self/fd"))

    file.allocate(2 * BLOCK_BYTES)
    if not file.write_through(0, blocks_of(b"a")):
        pytest.skip("this file system cannot write past its cache")
    assert descriptors() == 2
    file.truncate(BLOCK_BYTES)
    assert descriptors() == 1
    assert file.write_through(0, blocks_of(b"b"))
    assert file.pread(0, 1) == b"b"
    file.close()
    assert descriptors() == 0


def test_a_failed_write_through_is_final(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, root = made
    if isinstance(fs, MemoryFileSystem):
        pytest.skip("nothing is written through there, and no sync fails")
    file = fs.open(f"{root}/a", create=True)
    file.allocate(4 * BLOCK_BYTES)
    if isinstance(file, RealFile):
        # It is opened once more for writing past the cache: a descriptor that takes nothing.
        monkeypatch.setattr(os, "open", lambda path, _flags, open=os.open: open(path, os.O_RDONLY))
    else:
        assert isinstance(fs, FakeDisk)
        fs.fail_next_sync("/a")
    for attempt in (lambda: file.write_through(0, blocks_of(b"a")), file.datasync):
        with pytest.raises(SyncFailedError):
            attempt()


def test_more_buffers_than_the_kernel_takes_at_once_are_written(made: Made) -> None:
    fs, root = made
    file = fs.open(f"{root}/a", create=True)
    count = 2 * IOV_MAX + 3
    assert file.pwrite(0, [b"xy"] * count) == 2 * count
    assert file.pread(0, 3 * count) == b"xy" * count


def test_names_are_made_listed_renamed_and_removed(made: Made) -> None:
    fs, root = made
    fs.make_directory(f"{root}/one/two")
    fs.make_directory(f"{root}/one/two")
    write_atomically(fs, f"{root}/one/b", b"1")
    write_atomically(fs, f"{root}/one/b", b"22")
    fs.open(f"{root}/one/a", create=True).close()
    assert fs.listdir(f"{root}/one") == ["a", "b", "two"] and fs.listdir(f"{root}/none") == []
    assert read_whole(fs, f"{root}/one/b") == b"22"
    fs.replace(f"{root}/one/a", f"{root}/one/b")
    assert read_whole(fs, f"{root}/one/b") == b"" and not fs.exists(f"{root}/one/a")
    fs.remove_directory(f"{root}/one")
    assert fs.exists(f"{root}/one"), "not empty"
    fs.remove(f"{root}/one/b")
    fs.remove(f"{root}/one/b")
    fs.sync_directory(f"{root}/one")
    fs.remove_directory(f"{root}/one/two")
    fs.remove_directory(f"{root}/one")
    fs.remove_directory(f"{root}/one")
    assert fs.listdir(root) == []
    assert fs.free_bytes(root) > 0


def test_a_file_that_is_not_there_is_not_made_by_reading(made: Made) -> None:
    fs, root = made
    operations: list[Callable[[], object]] = [
        lambda: fs.open(f"{root}/none"),
        lambda: fs.open(f"{root}/none", write=False),
        lambda: fs.size(f"{root}/none"),
        lambda: read_whole(fs, f"{root}/none"),
    ]
    for operation in operations:
        with pytest.raises(FileNotFoundError):
            operation()
    with pytest.raises(DiskError, match="no/directory: cannot open: No such file or directory"):
        fs.open(f"{root}/no/directory", create=True)
    assert fs.listdir(root) == []


def test_a_lock_names_its_holder_and_ends_with_its_file(made: Made) -> None:
    fs, root = made
    held = fs.lock(f"{root}/lock", b"process 12345 of a long name")
    with pytest.raises(LockedError, match="process 12345"):
        fs.lock(f"{root}/lock", b"process 2")
    held.close()
    second = fs.lock(f"{root}/lock", b"process 2")
    assert read_whole(fs, f"{root}/lock") == b"process 2"
    second.close()


def fail_with(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_errors_of_the_system_get_the_names_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()
    file = fs.open(f"{tmp_path}/a", create=True)
    for code, expected in ((errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StoreError)):
        monkeypatch.setattr(os, "pwritev", fail_with(code))
        with pytest.raises(expected, match="cannot write"):
            file.pwrite(0, [b"x"])
        monkeypatch.setattr(os, "posix_fallocate", fail_with(code))
        with pytest.raises(expected, match="cannot allocate"):
            file.allocate(100)
    monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.EOPNOTSUPP))
    file.allocate(100)
    assert file.size() == 100


Refused = tuple[str, Callable[[RealFileSystem, RealFile, str], object]]
# What the door asks of the system, and the call of `os` that refuses it.
CALLS: dict[str, Refused] = {
    "open": ("open", lambda fs, _file, root: fs.open(f"{root}/a")),
    "create": ("open", lambda fs, _file, root: fs.open(f"{root}/b", create=True)),
    "exists": ("stat", lambda fs, _file, root: fs.exists(f"{root}/a")),
    "list": ("listdir", lambda fs, _file, root: fs.listdir(root)),
    "size by name": ("stat", lambda fs, _file, root: fs.size(f"{root}/a")),
    "make a directory": ("mkdir", lambda fs, _file, root: fs.make_directory(f"{root}/d")),
    "remove": ("unlink", lambda fs, _file, root: fs.remove(f"{root}/a")),
    "remove a directory": ("rmdir", lambda fs, _file, root: fs.remove_directory(root)),
    "rename": ("replace", lambda fs, _file, root: fs.replace(f"{root}/a", f"{root}/b")),
    "open a directory": ("open", lambda fs, _file, root: fs.sync_directory(root)),
    "sync a directory": ("fsync", lambda fs, _file, root: fs.sync_directory(root)),
    "free space": ("statvfs", lambda fs, _file, root: fs.free_bytes(root)),
    "read": ("pread", lambda _fs, file, _root: file.pread(0, 1)),
    "write": ("pwritev", lambda _fs, file, _root: file.pwrite(0, [b"x"])),
    "sync": ("fdatasync", lambda _fs, file, _root: file.datasync()),
    "truncate": ("ftruncate", lambda _fs, file, _root: file.truncate(0)),
    "allocate": ("posix_fallocate", lambda _fs, file, _root: file.allocate(1)),
    "size": ("fstat", lambda _fs, file, _root: file.size()),
}


@pytest.mark.parametrize("proc", [True, False])
def test_a_file_knows_that_its_name_is_gone(proc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()
    file = fs.open(f"{tmp_path}/a", create=True)
    if not proc:
        monkeypatch.setattr(os, "readlink", fail_with(errno.ENOENT))
    assert file.has_name()
    fs.remove(f"{tmp_path}/a")
    assert not file.has_name()


@pytest.mark.parametrize("looks", range(2 * LOOKS_AT_PATH))
def test_a_file_knows_within_some_calls_that_another_file_took_its_place(looks: int, tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(f"{tmp_path}/a", create=True)
    assert all(file.has_name() for _ in range(looks))
    fs.open(f"{tmp_path}/b", create=True).close()
    fs.replace(f"{tmp_path}/b", f"{tmp_path}/a")
    assert not all(file.has_name() for _ in range(LOOKS_AT_PATH))


def test_a_file_that_moved_still_has_a_name(tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(f"{tmp_path}/a", create=True)
    fs.replace(f"{tmp_path}/a", f"{tmp_path}/b")
    assert all(file.has_name() for _ in range(2 * LOOKS_AT_PATH))


def test_a_name_is_asked_for_without_the_times_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose times were asked for writes its inode with the next write, and a durable write takes a third longer."""
    file = RealFileSystem().open(f"{tmp_path}/a", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail_with(errno.EIO))
        named = file.has_name()
    assert named


CODES = (errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOMEM)


@pytest.mark.parametrize("code", [*CODES, errno.ELOOP, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_no_error_of_the_system_leaves_the_door_without_a_name(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, (system, operation) = RealFileSystem(), CALLS[call]
    file, expected = fs.open(f"{tmp_path}/a", create=True), code
    with monkeypatch.context() as patched:
        patched.setattr(os, system, fail_with(code))
        patched.setattr("store.disk.filesystem.DIRECTORY_PAUSE_S", 0)
        with pytest.raises(StoreError) as raised:
            operation(fs, file, str(tmp_path))
    error = raised.value
    if call == "open a directory" and code in (errno.EMFILE, errno.ENFILE):  # final, as a sync that failed
        assert isinstance(error, SyncFailedError)
        return
    full = code in (errno.ENOSPC, errno.EDQUOT) and system not in ("fsync", "fdatasync")
    assert str(tmp_path) in str(error) and ("no space left on the disk" if full else os.strerror(code)) in str(error)
    if system in ("fsync", "fdatasync"):
        assert isinstance(error, SyncFailedError)
    elif full:
        assert isinstance(error, DiskFullError)
    elif call == "read" and code == errno.EIO:
        assert isinstance(error, UnreadableError) and error.errno == expected
    else:
        assert isinstance(error, DiskError) and error.errno == expected
    file.close()


def test_closing_a_file_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(f"{tmp_path}/a", create=True)
    closed: list[int] = []

    def fail(descriptor: int) -> None:
        closed.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fail)
        file.close()
    (descriptor,) = closed
    os.close(descriptor)


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(f"{tmp_path}/a", create=True)
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: whole(fd, [b"".join(buffers)[:4]], offset))
    assert file.pwrite(2, [b"abc", b"defgh"]) == 8
    assert file.pread(0, 20) == b"\0\0abcdefgh"


def test_a_failed_sync_stays_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(f"{tmp_path}/a", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail_with(errno.EIO))
        with pytest.raises(SyncFailedError):
            file.datasync()
    with pytest.raises(SyncFailedError, match="earlier sync failed"):
        file.datasync()


def test_the_directory_of_a_path_is_found_also_without_one() -> None:
    assert [directory_of(path) for path in ("/a/b", "/b", "b", "a/b")] == ["/a", "/", ".", "a"]


def test_files_are_synced_together_and_the_failure_of_one_is_raised_after_all_are_done(tmp_path: Path) -> None:
    fs = RealFileSystem()
    synced: list[str] = []
    files = [_SlowFile(fs.open(str(tmp_path / f"{number}"), create=True), synced) for number in range(40)]
    fs.sync_together(files)  # type: ignore[arg-type]
    fs.sync_together([])
    assert sorted(synced) == sorted(file.path for file in files)
    synced.clear()
    files[3].failing = True
    with pytest.raises(SyncFailedError):
        fs.sync_together(files)  # type: ignore[arg-type]
    assert sorted(synced) == sorted(file.path for file in files if file is not files[3])


class _SlowFile:
    """A file whose sync takes long enough that a failure beside it comes first."""

    def __init__(self, file: RealFile, synced: list[str]) -> None:
        self.path = file.path
        self.failing = False
        self._file = file
        self._synced = synced

    def datasync(self) -> None:
        if self.failing:
            raise SyncFailedError(self.path)
        time.sleep(0.01)
        self._file.datasync()
        self._synced.append(self.path)


def test_bytes_that_the_disk_cannot_read_raise_an_error_that_is_not_corruption() -> None:
    with_hole = RealFileSystem().open("/proc/self/mem", write=False)  # nothing is mapped at its start: EIO
    try:
        with pytest.raises(UnreadableError, match=r"/proc/self/mem: unreadable at offset 0: 8 bytes cannot be read"):
            with_hole.pread(0, 8)
    finally:
        with_hole.close()


def test_nothing_is_written_through_a_symbolic_link(tmp_path: Path) -> None:
    """A file of somebody else stays as it is, whoever has put the link into the data directory."""
    fs, foreign = RealFileSystem(), tmp_path / "foreign"
    foreign.write_bytes(b"secret")
    (tmp_path / "data").mkdir()
    for name in ("tokens.tmp", "dangling"):
        (tmp_path / "data" / name).symlink_to(foreign if name == "tokens.tmp" else tmp_path / "not there")
    paths = [str(tmp_path / "data" / name) for name in ("tokens.tmp", "dangling")]
    for path in paths:
        with pytest.raises(DiskError, match="symbolic link"):
            fs.open(path, create=True)
        with pytest.raises(DiskError, match="symbolic link"):
            fs.open(path)
        with pytest.raises(DiskError, match="symbolic link"):
            fs.lock(path, b"x")
    with pytest.raises(DiskError, match="symbolic link"):
        write_atomically(fs, str(tmp_path / "data" / "tokens"), b"new")
    assert foreign.read_bytes() == b"secret" and not (tmp_path / "not there").exists()
    reader = fs.open(paths[0], write=False)
    assert reader.pread(0, 6) == b"secret", "reading follows links, such as those of certificates"
    reader.close()


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"secret")
    (tmp_path / "tokens").symlink_to(foreign)
    write_atomically(RealFileSystem(), str(tmp_path / "tokens"), b"new")
    assert foreign.read_bytes() == b"secret" and (tmp_path / "tokens").read_bytes() == b"new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
def test_what_root_makes_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    """Else the server cannot read the token that an operator made as root."""
    fs, data = RealFileSystem(), tmp_path / "data"
    data.mkdir()
    os.chown(data, 12_345, 23_456)
    write_atomically(fs, str(data / "tokens"), b"x")
    fs.make_directory(str(data / "quarantine" / "deep"))
    for path in ("tokens", "quarantine", "quarantine/deep"):
        found = (data / path).stat()
        assert (found.st_uid, found.st_gid) == (12_345, 23_456), path
    os.link(data / "tokens", tmp_path / "linked")
    os.chown(data / "tokens", 0, 0)
    fs.open(str(data / "tokens"), create=True).close()
    assert (data / "tokens").stat().st_uid == 0, "a file with two names may be that of somebody else"


def test_a_second_name_stays_when_the_first_one_means_another_file(made: Made) -> None:
    fs, root = made
    if not isinstance(fs, StillDisk):
        pytest.skip("a disk in memory has no second names")

    def written(name: str, data: bytes) -> None:
        file = fs.open(f"{root}/{name}", create=True)
        file.pwrite(file.size(), [data])
        file.close()

    written("file", b"old")
    fs.link(f"{root}/file", f"{root}/second")
    assert fs.stamp(f"{root}/file") == fs.stamp(f"{root}/second")
    assert fs.stamp(f"{root}/file")[::3] == (3, False) and fs.stamp(root).is_directory
    written("file", b", and more")
    assert read_whole(fs, f"{root}/second") == b"old, and more"
    written("new", b"new")
    fs.replace(f"{root}/new", f"{root}/file")
    assert fs.stamp(f"{root}/file").file_number != fs.stamp(f"{root}/second").file_number
    fs.remove(f"{root}/file")
    assert read_whole(fs, f"{root}/second") == b"old, and more"
    written("other", b"")
    with pytest.raises(DiskError, match="second name"):
        fs.link(f"{root}/other", f"{root}/second")
    for refused in (lambda: fs.link(f"{root}/none", f"{root}/third"), lambda: fs.stamp(f"{root}/none")):
        with pytest.raises(FileNotFoundError):
            refused()
    with fs.stand_still():
        fs.remove(f"{root}/second")
    assert fs.listdir(root) == ["other"]
    assert fs.absolute("/a/b") == "/a/b"
