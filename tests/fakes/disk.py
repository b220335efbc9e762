"""A disk in memory that forgets what was not synced, tears writes, loses directory entries, fills up and fails syncs.

`FakeDisk` implements `FileSystem`. What the running process sees is the volatile content; beside it stands what the
disk would hold after a loss of power: for each page written since the last sync, the page as it was then. So a write
costs one copy of each page it touches first, a sync costs nothing, and only a crash does real work. The model:

- an unsynced page (4 KiB) survives or not, each by its own throw of the dice; of the last write any number of bytes may
  have arrived; the size of a file may be the old or the new one;
- an entry of a directory that was not synced (a file made, renamed, removed) survives or not, independently;
- after a failed sync the kernel takes the pages for clean: later syncs do not make them durable, only a new write does.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import Random

from store.disk.filesystem import Buffer, File, FileStamp, directory_of, read_refusal, refusal, sync_refusal
from store.errors import DiskFullError, LockedError, StoreError, SyncFailedError
from tests.fakes.disk_node import PAGE, Node, whole_pages

Refuse = Callable[[str, str], int]

__all__ = ["PAGE", "FakeDisk", "FakeFile", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process is dead; it passes every `except Exception`. Nothing of it may touch the disk before `FakeDisk.crash`
    or `kill`."""


class FakeFile:
    """A `File` of a `FakeDisk`. After a crash every use raises SimulatedCrash: it belongs to a dead process."""

    __slots__ = ("_disk", "_life", "_node", "_write", "path")

    def __init__(self, disk: FakeDisk, path: str, node: Node, *, write: bool) -> None:
        self.path = path
        self._disk = disk
        self._node: Node | None = node
        self._life = disk.life
        self._write = write

    def _open(self) -> Node:
        if self._life != self._disk.life or self._disk.dead:
            raise SimulatedCrash(f"{self.path}: used by a process that is dead")
        if self._node is None:
            raise OSError(errno.EBADF, "closed", self.path)
        return self._node

    def pread(self, offset: int, length: int) -> bytes:
        node = self._open()
        self._disk.ask("pread", self.path)
        self._disk.counts["pread"] += 1
        for start, stop in self._disk.unreadable.get(self.path, ()):
            if offset < stop and start < offset + length:
                raise read_refusal(OSError(errno.EIO, "simulated"), self.path, offset, length)
        data = bytes(node.data[offset : offset + length])
        missing = min(length, node.size - offset) - len(data)
        return data + bytes(missing) if missing > 0 else data

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        node = self._writable()
        self._disk.ask("pwrite", self.path)
        crashing = self._disk.step("pwrite")
        content = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        room = self._disk.room_for(node, offset + len(content))
        written = max(0, min(len(content), room - offset))
        node.write(offset, content[:written])
        self._disk.last_write = (node, offset, written)
        self._disk.die_if(crashing)
        if written < len(content):
            raise DiskFullError(f"{self.path}: cannot write: no space left on the disk")
        return written

    def _ask_sync(self, node: Node, operation: str) -> None:
        try:
            self._disk.ask(operation, self.path)
        except SyncFailedError:
            node.fail_sync()
            raise

    def _writable(self) -> Node:
        node = self._open()
        if not self._write:
            raise StoreError(f"{self.path}: cannot write: opened for reading only")
        return node

    def datasync(self) -> None:
        node = self._open()
        self._disk.die_if(self._disk.step("datasync"))
        self._ask_sync(node, "datasync")
        if self._disk.sync_fails(self.path):
            node.fail_sync()
        if node.sync_failed:
            raise SyncFailedError(f"{self.path}: sync failed: simulated; restart to recover")
        node.saved.clear()
        node.durable_size = node.size

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        node = self._writable()
        assert offset % PAGE == 0, "not at the start of a block"
        assert len(blocks) % PAGE == 0, "not whole blocks"
        assert offset + len(blocks) <= node.size, "not within the allocated length"
        if self._disk.caches_everything:
            return False
        self._ask_sync(node, "write_through")
        crashing = self._disk.step("write_through")
        content = bytes(blocks)
        if self._disk.room_for(node, offset + len(content)) < offset + len(content):
            raise DiskFullError(f"{self.path}: cannot write: no space left on the disk")
        node.write(offset, content)
        self._disk.last_write = (node, offset, len(content))
        self._disk.die_if(crashing)
        if self._disk.sync_fails(self.path):
            node.fail_sync()
        if node.sync_failed:
            raise SyncFailedError(f"{self.path}: sync failed: simulated; restart to recover")
        node.settle_pages(offset, offset + len(content))
        return True

    def truncate(self, length: int) -> None:
        node = self._writable()
        self._disk.ask("truncate", self.path)
        crashing = self._disk.step("truncate")
        node.resize(length)
        self._disk.release(node, length)
        self._disk.die_if(crashing)

    def allocate(self, length: int) -> None:
        node = self._writable()
        self._disk.ask("allocate", self.path)
        crashing = self._disk.step("allocate")
        if self._disk.room_for(node, length) < length:
            raise DiskFullError(f"{self.path}: cannot allocate: no space left on the disk", length - node.blocks)
        node.size = max(node.size, length)
        self._disk.die_if(crashing)

    def size(self) -> int:
        self._disk.ask("file_size", self.path)
        return self._open().size

    def has_name(self) -> bool:
        self._disk.ask("has_name", self.path)
        return self._open().linked

    def follow_rename(self, path: str) -> None:
        self.path = path

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, self.size())] if offset < self.size() else []

    def close(self) -> None:
        if self._node is not None and self._life == self._disk.life:
            self._disk.unlock(self)
        self._node = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A change of a directory that is not durable yet: these names now mean these files (None: nothing)."""

    names: tuple[tuple[str, Node | None], ...]


class FakeDisk:
    """The `FileSystem`. All faults come from the `Random` given to `crash`, or are asked for by name."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self.capacity_changes = 0
        self.used_bytes = 0
        self.life = 0
        self.dead = False
        self.counts: Counter[str] = Counter()
        self.unreadable: dict[str, list[tuple[int, int]]] = {}
        """Ranges (start, stop) of files that cannot be read any more."""
        self.caches_everything = False
        """Whether it is a file system that cannot write past its cache."""
        self.operations = 0
        self.last_write: tuple[Node, int, int] | None = None
        self._files: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._pending: dict[str, list[_Entry]] = {}
        self._directories: dict[str, set[str]] = {"/": set(), ".": set()}
        self._locks: dict[str, FakeFile] = {}
        self._crash_at: int | None = None
        self._failing_syncs: list[str] = []
        self.refuse: Refuse | None = None
        """Asked with the name and the path of every call that a real system may refuse; an errno refuses it."""

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes that it holds; None: as many as one likes."""
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._capacity_bytes = capacity_bytes
        self.capacity_changes += 1

    # Faults

    def crash(self, random: Random) -> None:
        """The power fails: what was not synced is lost or kept, page by page. All open files and locks are gone."""
        for entries in self._pending.values():
            for entry in entries:
                if random.random() < 0.5:
                    _apply(self._durable, entry)
        self._files = dict(self._durable)
        torn = self._tear(random)
        for node in {id(node): node for node in self._files.values()}.values():
            if node.saved or node.lost or node.size != node.durable_size or node.sync_failed:
                node.forget(random, torn if self.last_write and node is self.last_write[0] else {})
        self._directories = {path: set() for path in self._directories}
        for path in (*self._directories, *self._files):
            if path not in ("/", "."):
                self._directories[directory_of(path)].add(path)
        self._count_blocks()
        self.kill()
        self._pending.clear()

    def _tear(self, random: Random) -> dict[int, bytes]:
        """The pages of the last write with some of its bytes arrived, if that write was not synced."""
        if self.last_write is None:
            return {}
        node, offset, length = self.last_write
        arrived = random.randrange(length + 1)
        if arrived == length:
            return {}
        torn = {}
        cut = offset + arrived
        page = cut // PAGE
        if page in node.saved and page * PAGE < cut:
            old = node.saved[page].ljust(PAGE, b"\0")
            torn[page] = bytes(node.data[page * PAGE : cut]) + old[cut - page * PAGE :]
        return torn

    def kill(self) -> None:
        """The process dies, the machine goes on: nothing written is lost. All open files and locks are gone."""
        self.life += 1
        self.dead = False
        self.last_write = None
        self._locks.clear()
        self._crash_at = None
        for node in self._files.values():
            node.sync_failed = False

    def crash_after(self, operations: int) -> None:
        """Raise SimulatedCrash at the n-th changing operation from now: after a write or a rename, before a sync."""
        self._crash_at = self.operations + operations

    def fail_next_sync(self, path_substring: str) -> None:
        """The next sync of a file or directory whose path holds this fails; of a file every later one fails too."""
        self._failing_syncs.append(path_substring)

    def no_more_faults(self) -> None:
        """Forget the crash and the failing syncs that were asked for and have not come."""
        self._crash_at = None
        self._failing_syncs.clear()

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Damage at rest: one bit of a byte, in what is read and in what is on the disk."""
        node = self._files[path]
        if offset >= len(node.data):
            assert offset < node.size
            node.data.extend(bytes(offset + 1 - len(node.data)))
        node.data[offset] ^= 1 << bit
        page, place = divmod(offset, PAGE)
        for kept in (node.saved, node.lost):
            if page in kept and place < len(kept[page]):
                content = bytearray(kept[page])
                content[place] ^= 1 << bit
                kept[page] = bytes(content)

    def overwrite(self, path: str, offset: int, content: bytes) -> None:
        """Damage at rest: these bytes stand there now, durably."""
        node = self._files[path]
        node.write(offset, content)
        node.settle()

    def files(self, under: str = "") -> list[str]:
        """Paths of all files that begin with `under`, sorted."""
        return sorted(path for path in self._files if path.startswith(under))

    def content(self, path: str) -> bytes:
        """What a reader sees."""
        node = self._files[path]
        return bytes(node.data[: node.size]).ljust(node.size, b"\0")

    def durable(self, path: str) -> bytes:
        """What a loss of power would leave of a file at the least."""
        return self._files[path].durable()

    # What files ask of their disk

    def step(self, name: str) -> bool:
        """Count a changing operation; whether the crash that was asked for comes with it."""
        if self.dead:
            raise SimulatedCrash("the process is dead")
        self.counts[name] += 1
        self.operations += 1
        return self._crash_at is not None and self.operations >= self._crash_at

    def die_if(self, crashing: bool) -> None:
        """Raise SimulatedCrash, and from now on for everything, if `crashing`."""
        if crashing:
            self.dead = True
            raise SimulatedCrash(f"at operation {self.operations}")

    def sync_fails(self, path: str) -> bool:
        """Whether a failure was asked for; it is used up."""
        for index, part in enumerate(self._failing_syncs):
            if part in path:
                del self._failing_syncs[index]
                return True
        return False

    def ask(self, operation: str, path: str) -> None:
        """Raise what the real door raises where this call is to be refused."""
        if self.refuse is not None and (code := self.refuse(operation, path)):
            error = OSError(code, os.strerror(code), path)
            if operation == "pread":
                raise read_refusal(error, path, 0, 0) from error
            if operation in ("datasync", "write_through", "sync_directory"):
                raise sync_refusal(error, path) from error
            raise refusal(error, path, operation.replace("_", " ")) from error

    def room_for(self, node: Node, end: int) -> int:
        """Take blocks up to `end`, or as many as there are; returns the offset that they reach to."""
        if end <= node.blocks:
            return end
        want = whole_pages(end) - node.blocks
        if self.capacity_bytes is not None:
            free = max(0, self.capacity_bytes - self.used_bytes) // PAGE * PAGE
            if want > free:
                if free:
                    self.used_bytes += free
                    node.blocks += free
                return node.blocks
        self.used_bytes += want
        node.blocks += want
        return end

    def release(self, node: Node, length: int) -> None:
        """Give the blocks behind `length` back."""
        kept = whole_pages(length)
        if kept < node.blocks:
            self.used_bytes -= node.blocks - kept
            node.blocks = kept

    def unlock(self, file: FakeFile) -> None:
        """A closed file gives its lock back."""
        if self._locks.get(file.path) is file:
            del self._locks[file.path]

    def _count_blocks(self) -> None:
        nodes = {id(node): node for node in self._files.values()}.values()
        names = Counter(map(id, self._files.values()))
        for node in nodes:
            node.second_names = names[id(node)] - 1
            node.blocks = max(min(node.blocks, whole_pages(node.size)), whole_pages(len(node.data)))
            node.linked = True  # a removal that was not synced is undone
        self.used_bytes = sum(node.blocks for node in nodes)

    # FileSystem

    def open(self, path: str, *, create: bool = False, write: bool = True) -> FakeFile:
        self._alive()
        self.ask("open", path)
        node = self._files.get(path)
        crashing = False
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if directory_of(path) not in self._directories:
                missing = FileNotFoundError(errno.ENOENT, "no such directory", path)
                raise refusal(missing, path, "open") from missing
            crashing = self.step("create")
            node = Node()
            self._change(directory_of(path), (path, node))
        self.die_if(crashing)
        self.counts["open"] += 1
        return FakeFile(self, path, node, write=write)

    def _alive(self) -> None:
        if self.dead:
            raise SimulatedCrash("the process is dead")

    def _change(self, directory: str, *names: tuple[str, Node | None]) -> None:
        """Change entries for the running process now, and for the disk at the next sync of the directory."""
        entry = _Entry(names)
        _apply(self._files, entry)
        for path, node in names:
            children = self._directories[directory]
            if node is None:
                children.discard(path)
            else:
                children.add(path)
        self._pending.setdefault(directory, []).append(entry)

    def exists(self, path: str) -> bool:
        self._alive()
        self.ask("exists", path)
        return path in self._files or path in self._directories

    def listdir(self, path: str) -> list[str]:
        self._alive()
        self.ask("listdir", path)
        return sorted(child.rpartition("/")[2] for child in self._directories.get(path, ()))

    def size(self, path: str) -> int:
        self._alive()
        self.ask("size", path)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path].size

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        self._alive()
        self.ask("make_directory", path)
        if path in self._directories:
            return
        parent = directory_of(path)
        self.make_directory(parent)
        crashing = self.step("make_directory")
        self._directories[path] = set()
        self._directories[parent].add(path)
        self.die_if(crashing)

    def remove(self, path: str) -> None:
        self._alive()
        self.ask("remove", path)
        node = self._files.get(path)
        if node is None:
            return
        crashing = self.step("remove")
        self._change(directory_of(path), (path, None))
        self._unlink(node)
        self.die_if(crashing)

    def _unlink(self, node: Node) -> None:
        """The blocks are free at once: simpler than waiting for the last handle, and no worse for the program."""
        if node.second_names:
            node.second_names -= 1
            return
        self.used_bytes -= node.blocks
        node.blocks = 0
        node.linked = False

    def remove_directory(self, path: str) -> None:
        self._alive()
        self.ask("remove_directory", path)
        if self._directories.get(path, {path}):
            return  # not there, or not empty
        crashing = self.step("remove_directory")
        self.sync_entries(path)
        del self._directories[path]
        self._directories[directory_of(path)].discard(path)
        self.die_if(crashing)

    def replace(self, source: str, target: str) -> None:
        self._alive()
        self.ask("replace", target)
        node = self._files.get(source)
        if node is None:
            missing = FileNotFoundError(errno.ENOENT, "no such file", source)
            raise refusal(missing, target, "rename") from missing
        assert directory_of(source) == directory_of(target), "a rename across directories is not atomic here"
        crashing = self.step("replace")
        old = self._files.get(target)
        self._change(directory_of(target), (source, None), (target, node))
        if old is not None and old is not node:
            self._unlink(old)
        self.die_if(crashing)

    def sync_directory(self, path: str) -> None:
        self._alive()
        self.die_if(self.step("sync_directory"))
        self.ask("sync_directory", path)
        if self.sync_fails(path):
            raise SyncFailedError(f"{path}: directory sync failed: simulated")
        self.sync_entries(path)

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        del relief  # it has as many descriptors as are wanted

    def sync_together(self, files: Sequence[File]) -> None:
        for file in files:
            file.datasync()

    def sync_entries(self, path: str) -> None:
        """Make the entries of a directory durable."""
        for entry in self._pending.pop(path, ()):
            _apply(self._durable, entry)

    def stand_still(self) -> AbstractContextManager[None]:
        self._alive()
        return nullcontext()  # a simulated process does one thing at a time

    def stamp(self, path: str) -> FileStamp:
        self._alive()
        self.ask("stamp", path)
        if path in self._directories:
            return FileStamp(0, 0, 0, is_directory=True)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        node = self._files[path]
        return FileStamp(node.size, node.number, node.changes, is_directory=False)

    def absolute(self, path: str) -> str:
        return path

    def link(self, source: str, target: str) -> None:
        self._alive()
        self.ask("link", target)
        node = self._files.get(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if target in self._files:
            there = FileExistsError(errno.EEXIST, "there is a file", target)
            raise refusal(there, target, "give a second name") from there
        crashing = self.step("link")
        node.second_names += 1
        self._change(directory_of(target), (target, node))
        self.die_if(crashing)

    def free_bytes(self, path: str) -> int:
        self._alive()
        self.ask("free_bytes", path)
        return 1 << 60 if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str, content: bytes) -> FakeFile:
        self._alive()
        if path in self._locks:
            holder = self.content(path)[:200].decode("utf-8", "replace").strip() or "an unknown process"
            raise LockedError(f"{path}: this data directory is in use by {holder}")
        handle = self.open(path, create=True)
        handle.pwrite(0, [content])
        handle.truncate(len(content))
        self._locks[path] = handle
        return handle


def _apply(names: dict[str, Node], entry: _Entry) -> None:
    for path, node in entry.names:
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def new_disk(capacity_bytes: int | None = None) -> FakeDisk:
    """A disk with the directory /d in it."""
    disk = FakeDisk(capacity_bytes)
    disk.make_directory("/d")
    return disk
