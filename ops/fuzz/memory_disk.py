"""An in-memory `store.disk.filesystem`, whose files a parser reads, cuts and writes while it is fuzzed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from store.disk.filesystem import Buffer, File
from store.errors import StoreError

# A parser that makes a file larger than this lacks a bound.
FILE_BYTES_MAX = 64 << 20


class MemoryFile:
    """A `File`: a bytearray with a path."""

    def __init__(self, path: str, data: bytearray, *, write: bool) -> None:
        self.path = path
        self._data = data
        self._write = write

    def pread(self, offset: int, length: int) -> bytes:
        assert offset >= 0 and length >= 0, f"a read of {length} bytes at {offset}"
        return bytes(self._data[offset : offset + length])

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> int:
        content = b"".join(buffers)
        self._resize(max(len(self._data), offset + len(content)))
        self._data[offset : offset + len(content)] = content
        return len(content)

    def datasync(self) -> None:
        pass

    def write_through(self, offset: int, blocks: memoryview) -> bool:
        self.pwrite(offset, [blocks])
        return True

    def truncate(self, length: int) -> None:
        self._resize(length)

    def allocate(self, length: int) -> None:
        self._resize(max(length, len(self._data)))

    def size(self) -> int:
        return len(self._data)

    def has_name(self) -> bool:
        return True

    def follow_rename(self, path: str) -> None:
        self.path = path

    def written_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, len(self._data))] if offset < len(self._data) else []

    def close(self) -> None:
        pass

    def _resize(self, length: int) -> None:
        if not self._write:
            raise StoreError(f"{self.path}: opened for reading only")
        assert 0 <= length <= FILE_BYTES_MAX, f"{self.path} was made {length} bytes long"
        if length < len(self._data):
            del self._data[length:]
        else:
            self._data += bytes(length - len(self._data))


class MemoryDisk:
    """A `FileSystem` of files by path. A directory exists if a path begins with it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = {path: bytearray(data) for path, data in files.items()}

    def content(self, path: str) -> bytes:
        """The bytes of a file."""
        return bytes(self._files[path])

    def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
        if create:
            self._files.setdefault(path, bytearray())
        if path not in self._files:
            raise FileNotFoundError(path)
        return MemoryFile(path, self._files[path], write=write)

    def exists(self, path: str) -> bool:
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files)

    def listdir(self, path: str) -> list[str]:
        inside = [name[len(path) + 1 :] for name in self._files if name.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in inside})

    def size(self, path: str) -> int:
        return self.open(path, write=False).size()

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        pass

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        pass

    def replace(self, source: str, target: str) -> None:
        self._files[target] = self._files.pop(source)

    def sync_directory(self, path: str) -> None:
        pass

    def relieve_with(self, relief: Callable[[], bool]) -> None:
        del relief  # it has as many descriptors as are wanted

    def sync_together(self, files: Sequence[File]) -> None:
        pass

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def lock(self, path: str, content: bytes) -> MemoryFile:
        return self.open(path, create=True)
