"""The one door to the disk. Everything in this project that touches a file goes through a `FileSystem`.

So the whole server runs unchanged on a simulated disk that forgets unsynced bytes, tears writes, fills up and fails.
`refusal` classifies each OSError once. The only OSError that leaves this module is FileNotFoundError, for a file that must
be there and is not. No format, no log and no policy lives here. Paths are strings; relative paths are not resolved.

Files are read, not mapped: resident memory would grow with all that was read, and a cut file would be a signal
instead of an error.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakMethod

from store.disk.write_gate import WriteGate
from store.errors import (
    DiskError,
    DiskFullError,
    LockedError,
    StoreError,
    SyncFailedError,
    TooManyFilesError,
    UnreadableError,
)

Buffer = bytes | bytearray | memoryview

# The kernel takes at most 1024 buffers in one vectored write (IOV_MAX on Linux); longer lists are joined.
IOV_MAX = 1024
# A write past the page cache takes whole blocks of this size, at multiples of it, from memory aligned to it.
BLOCK_BYTES = 4096
# One call of `has_name` in so many looks at the open file, the others at its path.
LOOKS_AT_PATH = 16
# A process without descriptors ends files that nothing uses within this time.
DIRECTORY_TRIES = 100
DIRECTORY_PAUSE_S = 0.02
# Threads of `sync_together`.
SYNCS_AT_ONCE = 16
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_LOCK_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_OTHER_ADVICE = "look at the kernel's log (dmesg), then restart the server"
# Advice for the operator, by errno; RUNBOOK 8 says more.
_ADVICE = {
    errno.EIO: "the disk fails; look at the kernel's log (dmesg) and at the disk's health",
    errno.EROFS: "the file system is read-only; look at the kernel's log (dmesg) and mount it for writing",
    errno.EMFILE: "this process has too many open files; raise its limit (ulimit -n) or lower storage.open_files_max",
    errno.ENFILE: "this machine has too many open files; raise fs.file-max or end what holds them",
    errno.EACCES: "give the data directory and its files to the user that runs the server",
    errno.EPERM: "give the data directory and its files to the user that runs the server",
    errno.ESTALE: "the file server lost the file; mount the file system again and restart the server",
    errno.ENOMEM: "this machine has no memory left",
    errno.ELOOP: "this is a symbolic link, through which nothing is written; put the file itself there",
}


class File(Protocol):
    """An open file. Positions are explicit: there is no cursor to get wrong."""

    path: str

    def pread(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end of the file. Raises UnreadableError where the disk
        cannot read them, DiskError."""

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at `offset`, returns the bytes written. Raises DiskFullError, DiskError."""

    def datasync(self) -> None:
        """Make the bytes (and the size) durable. Raises SyncFailedError, after which the file is final."""

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        """Write whole blocks (`BLOCK_BYTES`) within the allocated length and make them durable: them, not the rest of the
        file. False, and nothing was written, where the file system cannot do that past the page cache. Raises
        DiskFullError, and SyncFailedError, after which the file is final."""

    def truncate(self, length: int) -> None:
        """Cut or extend to `length` bytes; what is beyond reads as zeros afterwards. Not durable before a sync. Raises
        DiskFullError, DiskError."""

    def allocate(self, length: int) -> None:
        """Reserve disk blocks up to `length` and extend the size to it. Raises DiskFullError, DiskError."""

    def size(self) -> int:
        """Length in bytes. Raises DiskError."""

    def has_name(self) -> bool:
        """Whether a directory still has this file: False after its deletion. Another file in its place may go unseen for
        15 calls. Some microseconds. Raises DiskError."""

    def follow_rename(self, path: str) -> None:
        """Takes `path` as the file's name from now on. The caller has renamed it."""

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        """The ranges (start, stop) from `offset` on that may hold anything but zeros, in order.

        Call it before the bytes are read: pages that were read ahead count as written.
        """

    def close(self) -> None:
        """Close; idempotent. Never raises: only a sync says whether bytes are durable."""


class FileSystem(Protocol):
    """The operations on names. Each raises DiskError where the system refuses for a reason that it does not name itself."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open for reading (and writing). `create` makes the file where it is not there; otherwise that raises
        FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a directory; empty if there is no such directory."""

    def size(self, path: str) -> int:
        """Length of a file in bytes. Raises FileNotFoundError."""

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        """Make a directory and its parents; each new entry is made durable in its parent, unless the caller does so."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone already."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; no error if it is gone or not empty."""

    def replace(self, source: str, target: str) -> None:
        """Atomically rename. Durable after `sync_directory` of the parent."""

    def sync_directory(self, path: str) -> None:
        """Make the entries of a directory durable. Raises SyncFailedError, FileNotFoundError."""

    def sync_together(self, files: Sequence[File]) -> None:
        """`datasync` of several files, side by side where that is quicker. Raises SyncFailedError, after all of them
        ended."""

    def free_bytes(self, path: str) -> int:
        """Free space for this user on the disk that holds `path`."""

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        """Call `relief`, a method, where the system has no descriptor left, in any thread. It closes files that nothing
        uses, and returns whether it closed one; then the call is tried again. Its object is not kept alive."""

    def lock(self, path: str, content: bytes) -> File:
        """Take an exclusive lock that the kernel drops with the process. Raises LockedError with the holder's text."""


class FileStamp(NamedTuple):
    """What tells a file from another one, and from what it was before. `file_number` stays with the file when it is
    renamed or linked. `changed_ns` grows with each change of the bytes, in steps of some milliseconds."""

    size: int
    file_number: int
    changed_ns: int
    is_directory: bool


@runtime_checkable
class StillDisk(Protocol):
    """A `FileSystem` that can stand still for a moment, and give a file a second name. A disk in memory cannot."""

    def stand_still(self) -> AbstractContextManager[None]:
        """Within it no other thread of this process changes a file by this object. The thread itself may."""

    def stamp(self, path: str) -> FileStamp:
        """The stamp of a file or directory. Raises FileNotFoundError, DiskError."""

    def absolute(self, path: str) -> str:
        """The path as another process finds it."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, on the same disk. Raises FileNotFoundError, DiskError (the disk has no such names, or
        `target` is there)."""


# In the place of a descriptor.
_NOT_TRIED, _IMPOSSIBLE = -1, -2
# How Linux ends the name of an open file that no directory has any more.
_DELETED = " (deleted)"


class RealFile:
    """A `File` on the operating system."""

    __slots__ = ("_direct_fd", "_fd", "_gate", "_link", "_looks", "_sync_failed", "_syncing", "path")

    def __init__(self, path: str, fd: int, gate: WriteGate) -> None:
        self.path = path
        self._fd = fd
        self._gate = gate
        # Names the open file, also after its path has come to mean another one.
        self._link = f"/proc/self/fd/{fd}"
        self._looks = 0
        self._direct_fd = _NOT_TRIED
        self._sync_failed = False
        # The kernel reports an error once: a sync in parallel with one that fails would succeed.
        self._syncing = Lock()

    def pread(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length:
                more = os.pread(self._fd, length - got, offset + got)
                if not more:
                    break
                parts.append(more)
                got += len(more)
        except OSError as error:
            raise read_refusal(error, self.path, offset, length) from error
        return b"".join(parts)

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        if len(buffers) > IOV_MAX:
            buffers = [b"".join(buffers)]
        self._gate.enter()
        try:
            written = os.pwritev(self._fd, buffers, offset)
            total = sum([len(buffer) for buffer in buffers])
            if written != total:
                rest = memoryview(b"".join(buffers))
                while written < total:
                    written += os.pwrite(self._fd, rest[written:], offset + written)
        except OSError as error:
            raise refusal(error, self.path, "write") from error
        finally:
            self._gate.leave()
        return written

    def datasync(self) -> None:
        with self._syncing:
            if self._sync_failed:
                raise SyncFailedError(f"{self.path}: an earlier sync failed; restart the server to recover")
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._sync_failed = True
                raise sync_refusal(error, self.path) from error

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        if self._direct_fd < 0 and not self._open_direct():
            return False
        self._gate.enter()
        try:
            written = os.pwrite(self._direct_fd, blocks, offset)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise refusal(error, self.path, "write") from error
            if error.errno == errno.EINVAL:  # blocks of another size, or none past the cache
                self._close_direct()
                self._direct_fd = _IMPOSSIBLE
                return False
            self._sync_failed = True
            raise sync_refusal(error, self.path) from error
        finally:
            self._gate.leave()
        if written != len(blocks):
            self._sync_failed = True
        if self._sync_failed:  # this one, or one that ran beside it
            raise SyncFailedError(f"{self.path}: a sync failed; restart the server to recover")
        return True

    def _open_direct(self) -> bool:
        if self._direct_fd == _NOT_TRIED:
            self._direct_fd = _IMPOSSIBLE
            if hasattr(os, "O_DIRECT"):
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | os.O_DIRECT
                with suppress(OSError):
                    self._direct_fd = os.open(self._link, flags)
        return self._direct_fd >= 0

    def _close_direct(self) -> None:
        if self._direct_fd >= 0:
            with suppress(OSError):
                os.close(self._direct_fd)
            self._direct_fd = _NOT_TRIED

    def truncate(self, length: int) -> None:
        # A log is cut where it is sealed, and then it needs one descriptor only; it is opened again if it is written to.
        self._close_direct()
        self._gate.enter()
        try:
            os.ftruncate(self._fd, length)
        except OSError as error:
            raise refusal(error, self.path, "truncate") from error
        finally:
            self._gate.leave()

    def allocate(self, length: int) -> None:
        self._gate.enter()
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                self.truncate(max(length, self.size()))  # a file system without allocation: the size alone
                return
            if error.errno in _NO_SPACE:
                missing = length - self._stat().st_blocks * 512
                text = f"{self.path}: cannot allocate {length:,} bytes: no space left on the disk"
                raise DiskFullError(text, max(missing, 0)) from error
            raise refusal(error, self.path, "allocate") from error
        finally:
            self._gate.leave()

    def size(self) -> int:
        return self._stat().st_size

    def has_name(self) -> bool:
        # A look at the path takes half as long as a look at the open file. It misses only another file in its place.
        self._looks += 1
        if self._looks % LOOKS_AT_PATH and os.access(self.path, os.F_OK):
            return True
        # Not by fstat: since Linux 6.13 a file whose times were asked for writes its inode with the next write, which
        # makes a durable write a third slower. The link shows the name alone.
        try:
            return not os.readlink(self._link).endswith(_DELETED)  # noqa: PTH115 - a hot call: no Path object
        except OSError:  # no /proc here
            return self._stat().st_nlink > 0

    def follow_rename(self, path: str) -> None:
        self.path = path

    def _stat(self) -> os.stat_result:
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise refusal(error, self.path, "look at the file") from error

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges = []
        size = self.size()
        while offset < size:
            try:
                start = os.lseek(self._fd, offset, os.SEEK_DATA)
                offset = os.lseek(self._fd, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a file system that does not know: all of it
                    ranges.append((offset, size))
                break
            ranges.append((start, offset))
        return ranges

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # the descriptor is free all the same
                os.close(self._fd)
            self._fd = -1
            self._link = ""  # the number may name another file from now on
        self._close_direct()
        self._direct_fd = _IMPOSSIBLE


class _LockFile(RealFile):
    """A file whose lock ends with its close, also where a forked process still has the descriptor."""

    __slots__ = ()

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        super().close()


F = TypeVar("F", bound=RealFile)


class RealFileSystem:
    """The `FileSystem` of the operating system."""

    # Made when it is needed: most tools only read, and a process that forks must not have its threads yet.
    _pool: ThreadPoolExecutor | None = None

    def __init__(self) -> None:
        self._reliefs: list[WeakMethod[Callable[[], bool]]] = []
        self._gate = WriteGate()

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        self._reliefs = [*[known for known in self._reliefs if known() is not None], WeakMethod(relief)]

    def _descriptor(self, path: str, flags: int) -> int:
        """A new descriptor. Raises OSError."""
        try:
            return os.open(path, flags, 0o640)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or not self._relieved():
                raise
            return os.open(path, flags, 0o640)

    def _relieved(self) -> bool:
        reliefs = [found for known in self._reliefs if (found := known()) is not None]
        return True in [relief() for relief in reliefs]  # each of them

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        return self._open(RealFile, path, create=create, write=write)

    def _open(self, kind: type[F], path: str, *, create: bool, write: bool) -> F:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        if write or create:
            # A link could lead the bytes, or those of a tool that root runs, into a file of somebody else.
            flags |= os.O_NOFOLLOW
        if create:
            self._gate.enter()
        try:
            fd = self._descriptor(path, flags)
            if create:
                _give_to_owner_of_directory(path, fd)
            return kind(path, fd, self._gate)
        except OSError as error:
            if error.errno == errno.ENOENT and not create:
                raise
            raise refusal(error, path, "open") from error
        finally:
            if create:
                self._gate.leave()

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)  # noqa: PTH116 - a hot call: no Path object per file
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise refusal(error, path, "look for the file") from error
        return True

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise refusal(error, path, "list the directory") from error

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size  # noqa: PTH116 - a hot call at start: no Path object per file
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refusal(error, path, "tell the size") from error

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        missing = []
        probe = Path(path)
        self._gate.enter()
        try:
            while not probe.exists():
                missing.append(probe)
                probe = probe.parent
            for directory in reversed(missing):
                directory.mkdir(mode=0o750, exist_ok=True)
                _give_to_owner_of_directory(str(directory), str(directory))
        except OSError as error:
            raise refusal(error, path, "make directory") from error
        finally:
            self._gate.leave()
        # Outside the gate: a sync takes long, and changes nothing.
        for directory in reversed(missing) if durable else ():
            self.sync_directory(str(directory.parent))

    def remove(self, path: str) -> None:
        self._gate.enter()
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise refusal(error, path, "remove") from error
        finally:
            self._gate.leave()

    def remove_directory(self, path: str) -> None:
        self._gate.enter()
        try:
            Path(path).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise refusal(error, path, "remove directory") from error
        finally:
            self._gate.leave()

    def replace(self, source: str, target: str) -> None:
        self._gate.enter()
        try:
            Path(source).replace(target)
        except OSError as error:
            raise refusal(error, target, "rename") from error
        finally:
            self._gate.leave()

    def sync_directory(self, path: str) -> None:
        fd = self._directory(path)
        try:
            os.fsync(fd)
        except OSError as error:
            raise sync_refusal(error, path) from error
        finally:
            with suppress(OSError):
                os.close(fd)

    def _directory(self, path: str) -> int:
        """A descriptor of a directory that is to be synced. The bytes of its files may be written already, so nothing is
        undone for lack of a descriptor: it waits a moment for one."""
        for tries_left in range(DIRECTORY_TRIES - 1, -1, -1):
            try:
                return self._descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise refusal(error, path, "open") from error
                if not tries_left:
                    raise sync_refusal(error, path) from error
            time.sleep(DIRECTORY_PAUSE_S)
        raise AssertionError("a try returns or raises")

    def sync_together(self, files: Sequence[File]) -> None:
        # A journal writes down what waits for it at the same time in one go.
        if len(files) == 1:
            files[0].datasync()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")
        waiting = [self._pool.submit(file.datasync) for file in files]
        wait(waiting)
        for done in waiting:
            done.result()

    def free_bytes(self, path: str) -> int:
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise refusal(error, path, "tell the free space") from error
        return found.f_bavail * found.f_frsize

    def stand_still(self) -> AbstractContextManager[None]:
        return self._gate.closed()

    def stamp(self, path: str) -> FileStamp:
        try:
            found = os.stat(path)  # noqa: PTH116 - a call for each file of a directory: no Path object
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refusal(error, path, "look at the file") from error
        return FileStamp(found.st_size, found.st_ino, found.st_mtime_ns, stat.S_ISDIR(found.st_mode))

    def absolute(self, path: str) -> str:
        return str(Path(path).absolute())

    def link(self, source: str, target: str) -> None:
        self._gate.enter()
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refusal(error, target, f"give {source} a second name") from error
        finally:
            self._gate.leave()

    def lock(self, path: str, content: bytes) -> RealFile:
        handle = self._open(_LockFile, path, create=True, write=True)
        try:
            fcntl.flock(handle._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCK_TAKEN:
                handle.close()
                raise refusal(error, path, "lock") from error
            holder = handle.pread(0, 200).decode("utf-8", "replace").strip() or "an unknown process"
            handle.close()
            raise LockedError(
                f"{path}: this data directory is in use by {holder}; stop that process or choose another directory"
            ) from error
        try:
            # Over what stands there: that needs no room on a full disk.
            handle.pwrite(0, [content])
            handle.truncate(len(content))
        except StoreError:
            handle.close()
            raise
        return handle


def _give_to_owner_of_directory(path: str, made: int | str) -> None:
    """What root has made belongs to the owner of its directory, so that the server reads what a tool of root has written.

    `made` is the descriptor of a file, or the path of a directory."""
    if os.geteuid():
        return
    # No name is followed that another user may have put in place meanwhile. A descriptor has none to follow.
    follow = isinstance(made, int)
    with suppress(OSError):  # such as in a container that may not give files away
        found = os.stat(made, follow_symlinks=follow)  # noqa: PTH116 - of a descriptor too
        owner = Path(directory_of(path)).stat()
        if not found.st_uid and owner.st_uid and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
            os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=follow)


def refusal(error: OSError, path: str, operation: str) -> StoreError:
    """The error of the store for an OSError: DiskFullError, TooManyFilesError or DiskError. `operation` is a verb."""
    if error.errno in _NO_SPACE:
        return DiskFullError(f"{path}: cannot {operation}: no space left on the disk")
    code = error.errno or 0
    kind = TooManyFilesError if code in _NO_DESCRIPTOR else DiskError
    return kind(path, operation, code, f"{os.strerror(code)}; {_ADVICE.get(code, _OTHER_ADVICE)}")


def refusal_of(code: int, path: str, operation: str) -> StoreError:
    """The error of the store for an errno, as `refusal` makes it."""
    return refusal(OSError(code, os.strerror(code), path), path, operation)


def not_there(path: str) -> FileNotFoundError:
    """The error of a file or directory that must be there and is not."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def read_refusal(error: OSError, path: str, offset: int, length: int) -> StoreError:
    """As `refusal` for a read of bytes: UnreadableError where the disk cannot read them, else DiskError."""
    if error.errno == errno.EIO:
        detail = f"{length} bytes cannot be read: {os.strerror(errno.EIO)}; {_ADVICE[errno.EIO]}"
        return UnreadableError(path, offset, detail, errno.EIO)
    return refusal(error, path, "read")


def sync_refusal(error: OSError, path: str) -> SyncFailedError:
    """As `refusal` for a sync."""
    return SyncFailedError(f"{path}: sync failed: {os.strerror(error.errno or 0)}; restart the server to recover")


def aligned_memory(length: int) -> memoryview:
    """Zeros at the start of a page, which memory of Python's own is not: what `File.write_through` takes."""
    return memoryview(mmap.mmap(-1, length))


def directory_of(path: str) -> str:
    """The directory that holds `path`."""
    parent, slash, _ = path.rpartition("/")
    return parent or slash or "."


def write_atomically(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new content, whole. Raises DiskFullError (the old one
    stands, the space is given back), StoreError, SyncFailedError."""
    temporary = path + ".tmp"
    handle = fs.open(temporary, create=True)
    try:
        handle.pwrite(0, [data])
        if handle.size() > len(data):  # room that was kept, or what a crash left
            handle.truncate(len(data))
        handle.datasync()
    except StoreError:
        fs.remove(temporary)
        raise
    finally:
        handle.close()
    fs.replace(temporary, path)
    fs.sync_directory(directory_of(path))


def keep_room(fs: FileSystem, path: str, length: int) -> None:
    """Allocate up to `length` bytes for the next `write_atomically` of `path`, which then needs none of a disk that has
    become full. Where that cannot be done now, nothing is kept."""
    temporary = path + ".tmp"
    with suppress(StoreError):
        handle = fs.open(temporary, create=True)
        try:
            handle.allocate(length)
        except StoreError:
            fs.remove(temporary)
        finally:
            handle.close()


def read_whole(fs: FileSystem, path: str) -> bytes:
    """The content of a small file. Raises FileNotFoundError, UnreadableError, DiskError."""
    handle = fs.open(path, write=False)
    try:
        return read_twice(handle, 0, handle.size())
    finally:
        handle.close()


def read_twice(file: File, offset: int, length: int) -> bytes:
    """`File.pread` of bytes that decide what becomes of a whole file. A controller that starts again, or a path that
    fails over, answers EIO once: such bytes are asked for a second time. Raises UnreadableError, DiskError."""
    try:
        return file.pread(offset, length)
    except UnreadableError:
        return file.pread(offset, length)
