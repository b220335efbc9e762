"""Repositories in memory, and small directories to back up."""

from __future__ import annotations

from collections.abc import Mapping

from delayserver.backup.copying import BackedUp, back_up
from delayserver.backup.objects import Folder
from delayserver.backup.repository import Repository
from store.disk.filesystem import FileSystem, read_whole
from store.disk.memory_filesystem import MemoryFileSystem
from store.snapshots.manifest import Manifest
from store.snapshots.taking import list_still
from tests.fakes.disk import FakeDisk

ROOM = 1 << 40
PLACE = "/backups"
ROOT = "/d"
SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US


def silent(_done: int, _total: int) -> None:
    """Tells nobody."""


def repository(disk: FileSystem | None = None) -> Repository:
    """The backups in a folder of this disk, or of one in memory."""
    return Repository(Folder(MemoryFileSystem(ROOM) if disk is None else disk, PLACE))


def backed_up(place: Repository, disk: FakeDisk, now_us: int = NOW_US) -> BackedUp:
    """Back a directory up on which no server works."""
    place.hold()
    try:
        return back_up(place, disk, ROOT, list_still(disk, ROOT, now_us), "test", silent)
    finally:
        place.close()


def stored(place: Repository, manifest: Manifest) -> dict[str, bytes]:
    """The content of all files of a backup."""
    return {
        file.path: b"".join([place.read(piece) for piece in file.pieces]).ljust(file.size, b"\0")
        for file in manifest.files
    }


def contents(disk: FakeDisk, root: str = ROOT) -> dict[str, bytes]:
    """The content of all files of a directory."""
    return {path.removeprefix(f"{root}/"): read_whole(disk, path) for path in disk.files(f"{root}/")}


def write(disk: FakeDisk, files: Mapping[str, bytes], offset: int = 0) -> None:
    """Write bytes into files of the directory, from an offset on."""
    for path, data in files.items():
        disk.make_directory(f"{ROOT}/{path}".rpartition("/")[0])
        file = disk.open(f"{ROOT}/{path}", create=True)
        file.pwrite(offset, [data])
        file.datasync()
        file.close()
