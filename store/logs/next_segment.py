"""The file of a log's next segment, made ahead of time: a commit that finds the last one full only gives it its name.

Making a file, allocating its blocks and syncing both takes a disk milliseconds. The name of a segment is its base, which
is known only when its predecessor is full. So the file waits as `next.tmp`: a start removes one, and no tool reads it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from store.disk.filesystem import BLOCK_BYTES, FileSystem
from store.errors import StoreError

NEXT_NAME = "next.tmp"


@dataclass(frozen=True, slots=True)
class NextSegment:
    """A file to be made, or made. Of its bytes the first `zero_bytes` are written as zeros, the rest is only allocated."""

    fs: FileSystem
    path: str
    length: int
    zero_bytes: int

    def make(self) -> None:
        """Make the file, durable but for its name. Blocks, in any thread. Raises DiskFullError, StoreError; then there is
        none."""
        file = self.fs.open(self.path, create=True)
        try:
            file.truncate(0)
            file.allocate(self.length)
            if self.zero_bytes:
                file.pwrite(0, [bytes(self.zero_bytes)])
            file.datasync()
        except StoreError:
            self.drop()
            raise
        finally:
            file.close()

    def drop(self) -> None:
        """Give its room back. A file that cannot be removed waits for the next start."""
        with suppress(StoreError):
            self.fs.remove(self.path)


def next_segment(fs: FileSystem, directory: str, length: int, zero_bytes: int) -> NextSegment:
    """The file that waits in the directory of a log, with whole blocks of zeros."""
    return NextSegment(fs, f"{directory}/{NEXT_NAME}", length, min(zero_bytes, length) // BLOCK_BYTES * BLOCK_BYTES)
