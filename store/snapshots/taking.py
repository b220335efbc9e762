"""Takes a snapshot of a data directory beside its running server: second names for all files, and a list of lengths.

The files of one moment are what a process leaves that is killed at that moment. So a directory that is made of them starts
as after a crash, and no part of the server has to know of snapshots. Files only grow or are replaced, so what they held
at the moment stays there under the second name.

The names are made before the moment. At the moment itself nobody writes, for about five microseconds a file. A file that was
replaced since it got its name makes another moment necessary: a name may wait for the journal of the disk, and the event
loop with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from store.disk.filesystem import FileStamp, FileSystem, StillDisk, directory_of
from store.errors import StoreError
from store.snapshots.directory_walk import SNAPSHOTS, walk
from store.snapshots.snapshot_listing import ListedFile, Listing, log_end_of, write_listing
from store.tables.identity import read_identity, read_role

FILES: Final = "files"
"""The folder of a snapshot that has its files, by the names that they have in the data directory."""

TRIES: Final = 4
"""So many moments are looked for in which all files have their names. At the last one, names that are missing are made."""


class SnapshotTaking:
    """Takes and drops the snapshots of one data directory. For one thread at a time."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._folder = f"{root}/{SNAPSHOTS}"

    def path_of(self, name: str) -> str:
        """The folder of a snapshot."""
        return f"{self._folder}/{name}"

    def take(self, name: str, lengths: Callable[[], Mapping[str, int]], now_us: Callable[[], int]) -> Listing:
        """Take a snapshot and return its listing, which is on the disk as well.

        `lengths` gives, at the moment, how many bytes of the files that are allocated ahead are in use, by path. `now_us` is
        the wall clock. Raises StoreError: the disk is full, cannot stand still or has no second names.
        """
        disk = self._fs
        if not isinstance(disk, StillDisk):
            raise StoreError(f"{self._root}: this directory is in memory, and there is nothing to copy")
        server_id, role = read_identity(disk, self._root), read_role(disk, self._root)
        linked: dict[str, int] = {}
        late = [path for path, _ in walk(disk, disk, self._root)]
        tries = TRIES
        while True:
            for path in late:
                with suppress(FileNotFoundError):  # removed meanwhile
                    self._link(disk, name, path, linked)
            tries -= 1
            with disk.stand_still():
                in_use, taken_us = lengths(), now_us()
                found = dict(walk(disk, disk, self._root))
                late = [path for path, stamp in found.items() if linked.get(path) != stamp.file_number]
                if not tries:
                    for path in late:
                        self._link(disk, name, path, linked)
            if not late or not tries:
                break
        in_use = {path.removeprefix(f"{self._root}/"): length for path, length in in_use.items()}
        listing = _listing(server_id, role, taken_us, found, in_use)
        write_listing(disk, self.path_of(name), listing)
        return listing

    def _link(self, disk: StillDisk, name: str, path: str, linked: dict[str, int]) -> None:
        target = f"{self.path_of(name)}/{FILES}/{path}"
        if path in linked:  # another file has taken its name
            self._fs.remove(target)
        else:
            self._fs.make_directory(directory_of(target), durable=False)
        disk.link(f"{self._root}/{path}", target)
        linked[path] = disk.stamp(target).file_number  # of what the name meant by then

    def drop_all(self) -> None:
        """Drop all snapshots, also those that a crash left half made. Raises StoreError."""
        self._drop(self._folder)

    def _drop(self, folder: str) -> None:
        for name in self._fs.listdir(folder):
            path = f"{folder}/{name}"
            if isinstance(self._fs, StillDisk) and self._fs.stamp(path).is_directory:
                self._drop(path)
            else:
                self._fs.remove(path)
        self._fs.remove_directory(folder)


def list_still(fs: FileSystem, root: str, now_us: int) -> Listing:
    """The listing of a directory that no server works on: the caller has its lock. Raises StoreError."""
    if not isinstance(fs, StillDisk):
        raise StoreError(f"{root}: this directory is in memory, and there is nothing to copy")
    return _listing(read_identity(fs, root), read_role(fs, root), now_us, dict(walk(fs, fs, root)), {})


def _listing(
    server_id: int, role: str, taken_us: int, found: Mapping[str, FileStamp], in_use: Mapping[str, int]
) -> Listing:
    files = [
        ListedFile(path, min(in_use.get(path, stamp.size), stamp.size), stamp.file_number, stamp.changed_ns)
        for path, stamp in sorted(found.items())
    ]
    return Listing(server_id, role, taken_us, log_end_of(files), tuple(files))
