"""A disk in memory: the `FileSystem` of a server whose data may end with its process.

It does all that the real one does, so the server above is the same code. Nothing survives the process: a sync costs
nothing and promises nothing. Room is counted in blocks as on a disk, also allocated room, so that an allocated file can
be written when the disk is full. But memory is taken only where bytes other than an allocation's zeros were written.

Any thread may call any method. One lock guards the names and the count of blocks. Each file has a lock of its own for its
bytes. A thread that holds the lock of a file may take that of the names, never the other way around.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from posixpath import normpath
from threading import Lock

from store.disk.filesystem import BLOCK_BYTES, Buffer, File, directory_of, not_there, read_refusal, refusal_of
from store.errors import DiskFullError, LockedError

# A hole is as long as a piece that was never written. A larger piece makes fewer slices of a large write; the last piece
# of a file is only as long as what was written.
PIECE_BYTES = 64 * 1024
_ZEROS = bytes(PIECE_BYTES)


def _name(path: str) -> str:
    """One name for all paths of a file."""
    name = normpath(path)
    return name[1:] if name.startswith("//") else name


class _Node:
    """The content of one file. A piece that is missing, or shorter than `PIECE_BYTES`, goes on with zeros."""

    __slots__ = ("blocks", "handles", "linked", "lock", "pieces", "size")

    def __init__(self) -> None:
        self.lock = Lock()
        self.pieces: dict[int, bytearray] = {}
        self.size = 0
        # These three belong to the file system and its lock. `blocks`: bytes of the disk's room that the file has.
        self.blocks = 0
        self.handles = 0
        self.linked = True

    # -- for the file system, which holds its own lock

    def take_blocks(self, end: int, free_bytes: int, *, partly: bool) -> int:
        """Take the blocks that are missing up to `end`, or if `free_bytes` are too few all of these (`partly`) or none.
        Returns the bytes taken."""
        if end <= self.blocks:
            return 0
        missing = _whole_blocks(end) - self.blocks
        if missing > free_bytes:
            missing = free_bytes // BLOCK_BYTES * BLOCK_BYTES if partly else 0
        self.blocks += missing
        return missing

    def give_blocks_back(self, length: int) -> int:
        """Give the blocks behind `length` back. Returns the bytes given."""
        kept = min(self.blocks, _whole_blocks(length))
        given, self.blocks = self.blocks - kept, kept
        return given

    def open(self, disk: MemoryFileSystem, path: str, *, write: bool) -> MemoryFile:
        """Opens one more handle."""
        self.handles += 1
        return MemoryFile(disk, path, self, write=write)

    def drop_handle(self) -> int:
        """Closes one handle. Returns the freed bytes: a file without a name is freed with its last handle."""
        self.handles -= 1
        return self.give_blocks_back(0) if not self.linked and not self.handles else 0

    def lose_name(self) -> int:
        """Its name is gone. Returns the bytes that it gives back."""
        self.linked = False
        return 0 if self.handles else self.give_blocks_back(0)

    # -- bytes

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`."""
        with self.lock:
            stop = min(offset + length, self.size)
            if stop <= offset:
                return b""
            number, start = divmod(offset, PIECE_BYTES)
            if start + stop - offset <= PIECE_BYTES:
                return self._part(number, start, start + stop - offset)
            parts = []
            while offset < stop:
                number, start = divmod(offset, PIECE_BYTES)
                end = min(PIECE_BYTES, start + stop - offset)
                parts.append(self._part(number, start, end))
                offset += end - start
            return b"".join(parts)

    def _part(self, number: int, start: int, stop: int) -> bytes:
        part = bytes(self.pieces.get(number, b"")[start:stop])
        return part if len(part) == stop - start else part.ljust(stop - start, b"\0")

    def write(self, offset: int, content: memoryview) -> None:
        """Overwrite or extend. Zeros in a hole leave the hole."""
        with self.lock:
            done = 0
            while done < len(content):
                number, start = divmod(offset + done, PIECE_BYTES)
                part = content[done : done + PIECE_BYTES - start]
                self._write_part(number, start, part)
                done += len(part)
            self.size = max(self.size, offset + done)

    def _write_part(self, number: int, start: int, part: memoryview) -> None:
        piece = self.pieces.get(number)
        if piece is None:
            if bytes(part) == _ZEROS[: len(part)]:
                return
            piece = self.pieces[number] = bytearray()
        if start > len(piece):
            piece.extend(bytes(start - len(piece)))
        piece[start : start + len(part)] = part

    def resize(self, length: int) -> None:
        """Cut off, or extend by zeros."""
        with self.lock:
            if length < self.size:
                last, rest = divmod(length, PIECE_BYTES)
                for number in [number for number in self.pieces if number > last or (number == last and not rest)]:
                    del self.pieces[number]
                if last in self.pieces:
                    del self.pieces[last][rest:]
            self.size = length

    def extend(self, length: int) -> None:
        """Extend by zeros to at least `length`."""
        with self.lock:
            self.size = max(self.size, length)

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Ranges that may hold anything but zeros, from `offset` on."""
        with self.lock:
            found: list[tuple[int, int]] = []
            for number in sorted(self.pieces):
                start = max(number * PIECE_BYTES, offset)
                stop = min(number * PIECE_BYTES + len(self.pieces[number]), self.size)
                if start >= stop:
                    continue
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
            return found


class MemoryFile:
    """A `File` of a `MemoryFileSystem`."""

    __slots__ = ("_disk", "_node", "_write", "path")

    def __init__(self, disk: MemoryFileSystem, path: str, node: _Node, *, write: bool) -> None:
        self.path = path
        self._disk = disk
        self._node: _Node | None = node
        self._write = write

    def _opened(self, operation: str, *, write: bool = False) -> _Node:
        if self._node is None or (write and not self._write):
            raise refusal_of(errno.EBADF, self.path, operation)
        return self._node

    def pread(self, offset: int, length: int) -> bytes:
        if self._node is None:
            raise read_refusal(OSError(errno.EBADF, "closed"), self.path, offset, length)
        return self._node.read(offset, length)

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        node = self._opened("write", write=True)
        content = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers)).cast("B")
        length = len(content)
        if not length:
            return 0
        room = self._disk.take_room(node, offset + length, partly=True)
        node.write(offset, content[: max(room - offset, 0)])
        if room < offset + length:
            raise refusal_of(errno.ENOSPC, self.path, "write")
        return length

    def datasync(self) -> None:
        self._opened("sync")

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        self._opened("write", write=True)
        return False  # there is no cache to go past

    def truncate(self, length: int) -> None:
        node = self._opened("truncate", write=True)
        node.resize(length)
        self._disk.give_room_back(node, length)

    def allocate(self, length: int) -> None:
        node = self._opened("allocate", write=True)
        if self._disk.take_room(node, length, partly=False) < length:
            raise DiskFullError(f"{self.path}: cannot allocate {length:,} bytes: no space left on the disk", length)
        node.extend(length)

    def size(self) -> int:
        return self._opened("look at the file").size

    def has_name(self) -> bool:
        return self._opened("look at the file").linked

    def follow_rename(self, path: str) -> None:
        self.path = path

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        return self._opened("look at the file").written_ranges(offset)

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            self._disk.drop_handle(self, node)


class MemoryFileSystem:
    """The `FileSystem`. It holds at most `bytes_max` of blocks; beyond them writes raise DiskFullError."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = Lock()
        self._used_bytes = 0
        self._files: dict[str, _Node] = {}
        # The names in each directory.
        self._directories: dict[str, set[str]] = {"/": set(), ".": set()}
        self._locked: dict[str, MemoryFile] = {}

    @property
    def used_bytes(self) -> int:
        """Blocks of all files, those included that are only allocated."""
        return self._used_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the files with a name take."""
        with self._lock:
            nodes = list(self._files.values())
        total = 0
        for node in nodes:
            with node.lock:
                total += sum(map(len, node.pieces.values()))
        return total

    # -- room

    def take_room(self, node: _Node, end: int, *, partly: bool) -> int:
        """Give a file blocks up to `end`. Returns the offset up to which it has room: less than `end` if the disk is
        full. Then, unless `partly`, it has got none."""
        with self._lock:
            self._used_bytes += node.take_blocks(end, max(self.bytes_max - self._used_bytes, 0), partly=partly)
            return min(end, node.blocks)

    def give_room_back(self, node: _Node, length: int) -> None:
        """Take the blocks behind `length` from a file."""
        with self._lock:
            self._used_bytes -= node.give_blocks_back(length)

    def drop_handle(self, file: MemoryFile, node: _Node) -> None:
        """Closes a handle: frees its lock, and the bytes of a file without a name after its last handle."""
        with self._lock:
            name = _name(file.path)
            if self._locked.get(name) is file:
                del self._locked[name]
            self._used_bytes -= node.drop_handle()

    # -- names

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        with self._lock:
            return self._open(path, create=create, write=write)

    def _open(self, path: str, *, create: bool, write: bool) -> MemoryFile:
        name = _name(path)
        node = self._files.get(name)
        if node is None:
            if name in self._directories:
                raise refusal_of(errno.EISDIR, path, "open")
            if not create:
                raise not_there(path)
            if directory_of(name) not in self._directories:
                raise refusal_of(errno.ENOENT, path, "open")
            node = self._files[name] = _Node()
            self._directories[directory_of(name)].add(name)
        return node.open(self, path, write=write)

    def exists(self, path: str) -> bool:
        name = _name(path)
        with self._lock:
            return name in self._files or name in self._directories

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            return sorted(name.rpartition("/")[2] for name in self._directories.get(_name(path), ()))

    def size(self, path: str) -> int:
        with self._lock:
            node = self._files.get(_name(path))
        if node is None:
            raise not_there(path)
        return node.size

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        with self._lock:
            name = _name(path)
            missing: list[str] = []
            while name not in self._directories:
                if name in self._files:
                    raise refusal_of(errno.EEXIST if not missing else errno.ENOTDIR, path, "make directory")
                missing.append(name)
                name = directory_of(name)
            for made in reversed(missing):
                self._directories[made] = set()
                self._directories[directory_of(made)].add(made)

    def remove(self, path: str) -> None:
        with self._lock:
            name = _name(path)
            if name in self._directories:
                raise refusal_of(errno.EISDIR, path, "remove")
            node = self._files.pop(name, None)
            if node is not None:
                self._directories[directory_of(name)].discard(name)
                self._used_bytes -= node.lose_name()

    def remove_directory(self, path: str) -> None:
        with self._lock:
            name = _name(path)
            if self._directories.get(name, {name}):
                return  # not there, or not empty
            del self._directories[name]
            self._directories[directory_of(name)].discard(name)

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            old_name, new_name = _name(source), _name(target)
            if old_name not in self._files or directory_of(new_name) not in self._directories:
                raise refusal_of(errno.ENOENT, target, "rename")
            if new_name in self._directories:
                raise refusal_of(errno.EISDIR, target, "rename")
            node, replaced = self._files.pop(old_name), self._files.get(new_name)
            self._directories[directory_of(old_name)].discard(old_name)
            self._files[new_name] = node
            self._directories[directory_of(new_name)].add(new_name)
            if replaced is not None and replaced is not node:
                self._used_bytes -= replaced.lose_name()

    def sync_directory(self, path: str) -> None:
        with self._lock:
            if _name(path) not in self._directories:
                raise not_there(path)

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        del relief  # it has as many descriptors as are wanted

    def sync_together(self, files: Sequence[File]) -> None:
        for file in files:
            file.datasync()

    def free_bytes(self, path: str) -> int:
        return max(self.bytes_max - self._used_bytes, 0)

    def lock(self, path: str, content: bytes) -> MemoryFile:
        name = _name(path)
        with self._lock:
            held = self._locked.get(name)
            if held is None:
                handle = self._locked[name] = self._open(path, create=True, write=True)
        if held is not None:
            holder = held.pread(0, 200).decode("utf-8", "replace").strip() or "an unknown server"
            raise LockedError(f"{path}: this data directory in memory is in use by {holder}; stop that server first")
        try:
            handle.pwrite(0, [content])
            handle.truncate(len(content))
        except DiskFullError:
            handle.close()
            raise
        return handle


def _whole_blocks(length: int) -> int:
    return (length + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
