"""A file system of its own that loses power: a loop device that is shut down without a flush.

`FS_IOC_SHUTDOWN` with NOLOGFLUSH ends a mounted file system at this moment: what was not synced is not written any more,
and every later call fails with EIO. Unmounted and mounted again, it is what a disk holds after a loss of power: the
journal is replayed, unsynced bytes and names are gone. Needs root, loop devices and mkfs; `why_not` says what is missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

FILE_SYSTEMS: Final = ("ext4", "xfs")
# _IOR('X', 125, __u32): the same number for all file systems of Linux that can do it.
FS_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
IMAGE_BYTES: Final = 2 << 30
COMMAND_TIMEOUT_S: Final = 60.0
UNMOUNT_TRIES: Final = 100


class PowerFailed(Exception):
    """A command of the file system failed: the run proves nothing. Holds what the command said."""


class PowerDisk:
    """One file system in a sparse image below `folder`, mounted at `mount`."""

    def __init__(self, folder: str, kind: str) -> None:
        self._image = f"{folder}/{kind}.img"
        self._kind = kind
        self.mount = f"{folder}/{kind}"
        self._mounted = False

    def make(self) -> None:
        """Make the file system and mount it. Raises PowerFailed."""
        with open(self._image, "wb") as image:
            image.truncate(IMAGE_BYTES)
        force = "-F" if self._kind == "ext4" else "-f"
        _run([f"mkfs.{self._kind}", "-q", force, self._image])
        Path(self.mount).mkdir(parents=True, exist_ok=True)
        self._mount()

    def cut(self) -> None:
        """The power fails now. Every call on the file system fails from here on."""
        descriptor = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """The power is back. No process may have a file open. Raises PowerFailed."""
        self._unmount()
        self._mount()

    def clean_up(self) -> None:
        """Unmount, and remove the image."""
        if self._mounted:
            self._unmount()
        Path(self._image).unlink(missing_ok=True)

    def _mount(self) -> None:
        _run(["mount", "-o", "loop", "-t", self._kind, self._image, self.mount])
        self._mounted = True

    def _unmount(self) -> None:
        # The kernel gives the files of a killed process back a moment after its end.
        for tries in range(1, UNMOUNT_TRIES + 1):
            try:
                _run(["umount", self.mount])
            except PowerFailed:
                if tries == UNMOUNT_TRIES:
                    raise
                time.sleep(0.02)
            else:
                self._mounted = False
                return


def why_not(kind: str) -> str:
    """What this machine lacks for a `PowerDisk` of this kind; empty where it lacks nothing. Tries it out."""
    if os.geteuid() != 0:
        return "only root may mount"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    with tempfile.TemporaryDirectory(prefix="delayserver-power-") as folder:
        disk = PowerDisk(folder, kind)
        try:
            disk.make()
            disk.cut()
            disk.restore()
        except (PowerFailed, OSError) as error:
            return f"no loop device of {kind} that can be shut down: {error}"
        finally:
            disk.clean_up()
    return ""


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode:
        raise PowerFailed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
