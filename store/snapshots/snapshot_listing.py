"""The listing of a snapshot: which files a data directory had at one moment, and how long they were."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.snapshots.sealed_text import seal, unseal

FILE_NAME: Final = "listing"
MESSAGE_LOG: Final = "message_log"
_KIND, _VERSION = "DELAYLST", 1


class ListedFile(Struct, frozen=True, array_like=True):
    """A file: its path below the data directory, and its length at the moment. `file_number` and `changed_ns` are of its
    `FileStamp` then: with the same length they prove that it has not changed since."""

    path: str
    size: int
    file_number: int
    changed_ns: int


class Listing(Struct, frozen=True):
    """A data directory at one moment. `taken_us` is that moment by the server's clock, microseconds since 1970. `log_end` is
    the logical end of message_log. The files are in the order of their paths."""

    server_id: int
    role: str
    taken_us: int
    log_end: int
    files: tuple[ListedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum([file.size for file in self.files])


def write_listing(fs: FileSystem, folder: str, listing: Listing) -> None:
    """Write the listing of a snapshot's folder. A snapshot that has one is complete. Raises DiskFullError, StoreError."""
    write_atomically(fs, f"{folder}/{FILE_NAME}", seal(_KIND, _VERSION, listing))


def read_listing(fs: FileSystem, folder: str) -> Listing:
    """The listing of a snapshot's folder. Raises FileNotFoundError, CorruptionError, FormatError."""
    path = f"{folder}/{FILE_NAME}"
    return unseal(read_whole(fs, path), path, _KIND, _VERSION, Listing)


def log_end_of(files: list[ListedFile]) -> int:
    """The logical end of message_log: the end of its last segment. 0 without one."""
    segments = [file for file in files if is_segment(file.path)]
    if not segments:
        return 0
    last = max(segments, key=lambda file: file.path)
    return base_of(last.path) + last.size


def is_segment(path: str) -> bool:
    """Whether this is a segment of message_log."""
    folder, _, name = path.rpartition("/")
    return folder == MESSAGE_LOG and name.endswith(".log") and name[:-4].isdecimal()


def base_of(path: str) -> int:
    """The logical offset of the first byte of a segment, which is its name."""
    return int(path.rpartition("/")[2][:-4])
