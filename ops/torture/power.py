"""A separate file system that loses power: a loop device that is shut down without a flush.

`FS_IOC_SHUTDOWN` with NOLOGFLUSH ends a mounted file system at once. Unsynced bytes are not written any more, and every
later call fails with EIO. After unmounting and mounting, the file system is as after a loss of power: the journal is
replayed, and unsynced bytes and names are gone. Needs root, loop devices and mkfs; `why_not` returns what is missing.
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
# _IOR('X', 125, __u32), the same for all file systems of Linux that support it.
FS_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
IMAGE_BYTES: Final = 2 << 30
COMMAND_TIMEOUT_S: Final = 60.0
UNMOUNT_TRIES: Final = 100


class PowerFailed(Exception):
    """A command of the file system failed, so the run proves nothing. Has the output of the command."""


class PowerDisk:
    """One file system in a sparse image below `folder`, mounted at `mount`."""

    def __init__(self, folder: str, kind: str) -> None:
        self._image = f"{folder}/{kind}.img"
        self._kind = kind
        self.mount = f"{folder}/{kind}"
        self._mounted = False

    def make(self) -> None:
        """Makes the file system and mounts it. Raises PowerFailed."""
        with open(self._image, "wb") as image:
            image.truncate(IMAGE_BYTES)
        force = "-F" if self._kind == "ext4" else "-f"
        _run([f"mkfs.{self._kind}", "-q", force, self._image])
        Path(self.mount).mkdir(parents=True, exist_ok=True)
        self._mount()

    def cut(self) -> None:
        """Cuts the power. Every later call on the file system fails."""
        descriptor = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Mounts the file system again. No process may have a file open. Raises PowerFailed."""
        self._unmount()
        self._mount()

    def clean_up(self) -> None:
        """Unmounts the file system and removes the image."""
        if self._mounted:
            self._unmount()
        Path(self._image).unlink(missing_ok=True)

    def _mount(self) -> None:
        _run(["mount", "-o", "loop", "-t", self._kind, self._image, self.mount])
        self._mounted = True

    def _unmount(self) -> None:
        # The kernel closes the files of a killed process a moment after its end.
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
    """The reason why this machine cannot use a `PowerDisk` of this kind, found by a trial; empty if it can."""
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
