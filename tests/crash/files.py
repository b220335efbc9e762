"""A `FileSystem` over the real one that reports each operation by kind of file and verb, and may kill its process there.

Verbs: `make` (open a new file), `create` (the header at offset 0), `append`, `write` (a small file), `cut`, `allocate`,
`sync`, `replace`, `remove`, `sync_directory`. The path says the kind; `room_of` has them all.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from store.disk.filesystem import Buffer, File, RealFile, RealFileSystem
from store.errors import SyncFailedError
from tests.crash.points import AFTER, BEFORE, TORN, Operation, Point

SMALL_FILES = ("checkpoint", "days", "sequences", "identity")
NAMED = {
    "names.log": "names",
    "ledger.log": "ledger",
    "broker/progress.log": "broker.progress",
    "broker/checkpoint": "broker.checkpoint",
    "dispatch_log/reserve": "dispatch_reserve",
}
WRITTEN_WHOLE = (*SMALL_FILES, "broker.checkpoint")


def room_of(root: str, path: str) -> str:
    """The kind of file."""
    name = path.removeprefix(root).strip("/").removesuffix(".tmp")
    if name in SMALL_FILES:
        return name
    if name in NAMED:
        return NAMED[name]
    folder, _, rest = name.partition("/")
    if folder == "broker":
        return f"broker.{rest.partition('/')[0]}"
    if folder == "schedule_log":
        if rest.endswith("/day.log"):
            return "schedule_day"
        return "schedule_drained" if rest.endswith(".day.log") else "schedule"
    if folder == "dispatch_log":
        return "dispatch_day" if rest.endswith("/day.log") else "dispatch"
    return folder


Hook = Callable[[str, str, str], bool]
"""Called with room, verb and moment; at the moment `torn` it says whether to write only a half."""


class Killer:
    """Kills this process at a point, once it is armed; notes its last words first."""

    def __init__(self, point: Point, armed: Callable[[], bool], last_words: Callable[[str], None]) -> None:
        self._point = point
        self._armed = armed
        self._last_words = last_words
        self._hits = 0
        self._lock = threading.Lock()

    def __call__(self, room: str, verb: str, moment: str) -> bool:
        """Dies here, or answers whether this is the write to tear (then it is called again to die)."""
        point = self._point
        if point.operation != Operation(room, verb) or not self._armed():
            return False
        with self._lock:
            # Hits are counted at the beginning of the operation, whatever the moment.
            self._hits += moment == BEFORE
            if moment != point.moment or self._hits < point.hit:
                return False
            if moment == TORN:
                return True
            self.die()
        return False

    def die(self) -> None:
        """As by a power cut of the process alone: nothing is run, nothing is flushed."""
        self._last_words(self._point.name)
        os.kill(os.getpid(), signal.SIGKILL)


class Observer:
    """Notes which operations there are."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, room: str, verb: str, _moment: str) -> bool:
        """Nothing happens."""
        self.seen.add((room, verb))
        return False


class FailSyncOnce:
    """The n-th sync of a kind of file fails, as a disk says it: once."""

    def __init__(self, room: str, hit: int) -> None:
        self._room = room
        self._left = hit

    def __call__(self, room: str, verb: str, moment: str) -> bool:
        """Raises SyncFailedError at its moment."""
        if (room, verb, moment) == (self._room, "sync", BEFORE):
            self._left -= 1
            if self._left == 0:
                raise SyncFailedError(f"{room}: sync failed: Input/output error; restart to recover")
        return False


class HookedFile:
    """A `File` whose operations are reported."""

    def __init__(self, file: RealFile, room: str, hook: Hook) -> None:
        self._file = file
        self._room = room
        self._hook = hook
        self.path = file.path

    def pread(self, offset: int, length: int) -> bytes:
        return self._file.pread(offset, length)

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        verb = "append" if offset else "write" if self._room in WRITTEN_WHOLE else "create"
        self._hook(self._room, verb, BEFORE)
        if self._hook(self._room, verb, TORN):
            whole = b"".join(buffers)
            self._file.pwrite(offset, [whole[: len(whole) // 2]])
            assert isinstance(self._hook, Killer)
            self._hook.die()
        written = self._file.pwrite(offset, buffers)
        self._hook(self._room, verb, AFTER)
        return written

    def datasync(self) -> None:
        self._hook(self._room, "sync", BEFORE)
        self._file.datasync()
        self._hook(self._room, "sync", AFTER)

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        """An append and its sync at once: it dies where those would, as far as there is such a place."""
        self._hook(self._room, "append", BEFORE)
        if self._hook(self._room, "append", TORN):
            # Through the middle of what is new: half of the blocks may hold all of a small record.
            self._file.pwrite(offset, [blocks[: _middle(self._file.pread(offset, len(blocks)), bytes(blocks))]])
            assert isinstance(self._hook, Killer)
            self._hook.die()
        self._hook(self._room, "sync", BEFORE)
        if not self._file.write_through(offset, blocks):
            self._file.pwrite(offset, [blocks])
            self._file.datasync()
        self._hook(self._room, "append", AFTER)
        self._hook(self._room, "sync", AFTER)
        return True

    def truncate(self, length: int) -> None:
        if length:
            self._hook(self._room, "cut", BEFORE)
        self._file.truncate(length)
        if length:
            self._hook(self._room, "cut", AFTER)

    def allocate(self, length: int) -> None:
        self._hook(self._room, "allocate", BEFORE)
        self._file.allocate(length)
        self._hook(self._room, "allocate", AFTER)

    def size(self) -> int:
        return self._file.size()

    def has_name(self) -> bool:
        return self._file.has_name()

    def follow_rename(self, path: str) -> None:
        self.path = path

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        return self._file.written_ranges(offset)

    def close(self) -> None:
        self._file.close()


def _middle(before: bytes, after: bytes) -> int:
    """The middle of the bytes that differ."""
    before = before.ljust(len(after), b"\0")
    changed = [place for place in range(len(after)) if before[place] != after[place]]
    return (changed[0] + changed[-1]) // 2


class HookedFileSystem(RealFileSystem):
    """The real file system, whose operations are reported."""

    def __init__(self, root: str, hook: Hook) -> None:
        super().__init__()
        self._root = root.rstrip("/")
        self._hook = hook

    def _told(self, path: str, verb: str, work: Callable[[], None]) -> None:
        room = room_of(self._root, path)
        self._hook(room, verb, BEFORE)
        work()
        self._hook(room, verb, AFTER)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:  # type: ignore[override]
        room = room_of(self._root, path)
        new = create and not Path(path).exists()
        if new:
            self._hook(room, "make", BEFORE)
        file = RealFileSystem.open(self, path, create=create, write=write)
        if new:
            self._hook(room, "make", AFTER)
        return HookedFile(file, room, self._hook)

    def lock(self, path: str, content: bytes) -> RealFile:
        return _Unhooked().lock(path, content)

    def remove(self, path: str) -> None:
        if Path(path).exists():
            self._told(path, "remove", lambda: RealFileSystem.remove(self, path))

    def replace(self, source: str, target: str) -> None:
        self._told(target, "replace", lambda: RealFileSystem.replace(self, source, target))

    def sync_directory(self, path: str) -> None:
        self._told(path, "sync_directory", lambda: RealFileSystem.sync_directory(self, path))


class _Unhooked(RealFileSystem):
    """For the lock, which needs the descriptor itself."""
