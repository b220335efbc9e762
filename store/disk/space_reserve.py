"""Disk space that a preallocated file keeps back until the disk is full. Nothing is ever read from it."""

from __future__ import annotations

from store.disk.filesystem import FileSystem
from store.errors import DiskFullError

# About 200 thousand outcomes of single messages, or some million in batches: time to notice and to stop accepting.
RESERVE_BYTES = 8 << 20


class SpaceReserve:
    """The file exists with its full size, or not at all."""

    def __init__(self, fs: FileSystem, path: str, reserve_bytes: int) -> None:
        self._fs = fs
        self._path = path
        self._folder = path.rpartition("/")[0]
        self.reserve_bytes = reserve_bytes

    @property
    def held(self) -> bool:
        """Whether the space is kept back now."""
        return self._fs.exists(self._path) and self._fs.size(self._path) >= self.reserve_bytes > 0

    def restore(self) -> bool:
        """Take the space; True if it is held now, False where the disk has no room (nothing is left behind then)."""
        if self.reserve_bytes <= 0 or self.held:
            return self.reserve_bytes > 0
        try:
            self._fs.make_directory(self._folder)
            file = self._fs.open(self._path, create=True)
            try:
                file.allocate(self.reserve_bytes)
                file.datasync()
            finally:
                file.close()
            self._fs.sync_directory(self._folder)
        except DiskFullError:
            self._fs.remove(self._path)
            return False
        return True

    def release(self) -> bool:
        """Give the space up; False if there was none. The removal is synced, because some file systems free the blocks
        only then."""
        if not self._fs.exists(self._path):
            return False
        self._fs.remove(self._path)
        self._fs.sync_directory(self._folder)
        return True
