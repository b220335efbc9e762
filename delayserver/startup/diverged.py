"""The file `diverged` in the directory of a member: it has decided something else than its primary, and must never lead.

It outlives the process that found it. Another one might find nobody to compare itself with, and claim.
"""

from __future__ import annotations

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import DivergedError

FILE_NAME = "diverged"


def keep_diverged(fs: FileSystem, data_dir: str, error: DivergedError) -> None:
    """Let no later process follow or lead with this directory. Raises DiskFullError, SyncFailedError."""
    write_atomically(fs, f"{data_dir}/{FILE_NAME}", f"{error.position} {error.same} {error.detail}\n".encode())


def refuse_diverged(fs: FileSystem, data_dir: str) -> None:
    """Raises DivergedError where an earlier process found that it had diverged."""
    path = f"{data_dir}/{FILE_NAME}"
    if fs.exists(path):
        position, same, detail = read_whole(fs, path).decode(errors="replace").rstrip("\n").split(" ", 2)
        raise DivergedError(int(position), int(same), detail)
