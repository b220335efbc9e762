"""Where a backup lies: named objects that are written once. A folder is one such place, an object storage another."""

from __future__ import annotations

from typing import Protocol

from store.disk.filesystem import File, FileSystem, directory_of, write_atomically
from store.errors import CorruptionError, StoreError

_UNFINISHED = ".tmp"
_LOCK = "lock"


class ObjectWriter(Protocol):
    """Writes one object. It counts from `finish` on."""

    def write(self, data: bytes) -> None:
        """Add bytes at the end. Raises StoreError."""

    def finish(self) -> None:
        """Make the object whole, durable and visible, in one step. Raises StoreError."""

    def give_up(self) -> None:
        """Remove what was written. Never raises StoreError."""


class Objects(Protocol):
    """A place with two folders of objects. All methods raise StoreError where the place refuses."""

    name: str

    def hold(self) -> bool:
        """Keep other backups out until `close`. False: the place cannot. Raises LockedError."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The objects of a folder, by name, with their bytes. Objects that are not finished are not among them."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object, fewer only at its end; without `length` all of them. Raises CorruptionError where it is
        missing or cannot be read."""

    def writer(self, path: str) -> ObjectWriter:
        """A new object. One of the same name is replaced."""

    def put(self, path: str, data: bytes) -> None:
        """Write a small object, whole or not at all, durably."""

    def remove(self, path: str) -> None:
        """Remove an object; no error if it is gone."""

    def close(self) -> None:
        """Let other backups in."""


class FolderWriter:
    """An object of a folder: a file that gets its name when it is whole."""

    def __init__(self, fs: FileSystem, root: str, path: str) -> None:
        self._fs = fs
        self._path = f"{root}/{path}"
        self._folder = self._path.rpartition("/")[0]
        fs.make_directory(self._folder)
        fs.remove(self._path + _UNFINISHED)
        self._file: File = fs.open(self._path + _UNFINISHED, create=True)
        self._end = 0

    def write(self, data: bytes) -> None:
        self._end += self._file.pwrite(self._end, [data])

    def finish(self) -> None:
        self._file.datasync()
        self._file.close()
        self._fs.replace(self._path + _UNFINISHED, self._path)
        self._fs.sync_directory(self._folder)

    def give_up(self) -> None:
        self._file.close()
        try:
            self._fs.remove(self._path + _UNFINISHED)
        except StoreError:
            return  # the next backup removes it


class Folder:
    """`Objects` in a folder of a disk."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self.name = root.rstrip("/") or "/"
        self._fs = fs
        self._lock: File | None = None

    def hold(self) -> bool:
        self._fs.make_directory(self.name)
        self._lock = self._fs.lock(f"{self.name}/{_LOCK}", b"another backup")
        for folder in self._fs.listdir(self.name):
            for name in self._fs.listdir(f"{self.name}/{folder}"):
                if name.endswith(_UNFINISHED):  # a backup was interrupted
                    self._fs.remove(f"{self.name}/{folder}/{name}")
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        names = self._fs.listdir(f"{self.name}/{folder}")
        return {name: self._fs.size(f"{self.name}/{folder}/{name}") for name in names if not name.endswith(_UNFINISHED)}

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        path = f"{self.name}/{path}"
        try:
            file = self._fs.open(path, write=False)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the file is missing") from None
        try:
            return file.pread(offset, file.size() - offset if length is None else length)
        finally:
            file.close()

    def writer(self, path: str) -> FolderWriter:
        return FolderWriter(self._fs, self.name, path)

    def put(self, path: str, data: bytes) -> None:
        path = f"{self.name}/{path}"
        self._fs.make_directory(directory_of(path))
        write_atomically(self._fs, path, data)

    def remove(self, path: str) -> None:
        self._fs.remove(f"{self.name}/{path}")

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
