"""The files of a data directory that belong into a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store.disk.filesystem import FileStamp, StillDisk
from store.disk.filesystem import FileSystem as Disk
from store.logs.dispatch_log import RESERVE_FILE
from store.tables.identity import LOCK

SNAPSHOTS: Final = "snapshot"
"""The folder of a data directory in which a server keeps the snapshot that is being copied."""
# A lock is a process's, the reserve is room, and the last two hold nothing of the directory's own.
_LEFT_OUT: Final = frozenset({LOCK, f"dispatch_log/{RESERVE_FILE}", SNAPSHOTS, "lost+found"})
_UNFINISHED: Final = ".tmp"


def walk(disk: Disk, still: StillDisk, root: str) -> Iterator[tuple[str, FileStamp]]:
    """Path below `root` and stamp of each file, in the order of paths within a folder. A file that goes meanwhile is left
    out. `disk` and `still` are one object."""
    folders = [""]
    while folders:
        folder = folders.pop()
        for name in disk.listdir(f"{root}/{folder}" if folder else root):
            path = f"{folder}/{name}" if folder else name
            if path in _LEFT_OUT or name.endswith(_UNFINISHED):
                continue
            try:
                stamp = still.stamp(f"{root}/{path}")
            except FileNotFoundError:
                continue
            if stamp.is_directory:
                folders.append(path)
            else:
                yield path, stamp
