"""The checkpoint on the disk, and the attempt horizon that moves with it. For worker threads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from threading import Lock

from delayserver.state.memory.attempt_horizon import AttemptHorizon
from store.disk.filesystem import FileSystem, keep_room
from store.errors import DiskFullError
from store.tables import checkpoint as file
from store.tables.checkpoint import Checkpoint
from store.tables.identity import SequenceReservation


class CheckpointFile:
    """Knows what is on the disk, and the latest time that a checkpoint of this life was to state."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        sequences: SequenceReservation,
        horizon: AttemptHorizon,
        saved: Checkpoint | None,
    ) -> None:
        """`saved`: the checkpoint that the start found, None where it found none."""
        self._fs = fs
        self._path = path
        self._sequences = sequences
        # Both are changed together with the file.
        self._saved = saved
        self._peak_us = horizon.peak_us
        self._lock = Lock()

    def write(self, checkpoint: Checkpoint, peak_us: int) -> None:
        """Write a checkpoint. Raises DiskFullError, SyncFailedError."""
        with self._lock:
            self._replace(checkpoint, peak_us)

    def move_horizon(self, peak_us: int) -> None:
        """Write the last checkpoint again with another time, over the room that was kept for it."""
        with self._lock:
            if self._saved is None:
                self._reserve_clock(peak_us)
            else:
                # This write may find no room either, for example on a file system that writes nothing in place. Then a
                # step back of the clock and a crash together hide an attempt.
                with suppress(DiskFullError):
                    self._replace(replace(self._saved, clean=False), peak_us)

    def _replace(self, checkpoint: Checkpoint, peak_us: int) -> None:
        """Writes a checkpoint. Of two at the same time, neither may take the horizon back."""
        self._peak_us = max(self._peak_us, peak_us)
        checkpoint = replace(checkpoint, written_us=self._peak_us)
        file.write(self._fs, self._path, checkpoint)
        self._saved = checkpoint
        self._reserve_clock(self._peak_us)
        if not checkpoint.clean:
            keep_room(self._fs, self._path, 2 * self._fs.size(self._path))

    def _reserve_clock(self, peak_us: int) -> None:
        """Before the horizon moves: the checkpoint may be lost later. A full disk here does not stop the checkpoint."""
        with suppress(DiskFullError):
            self._sequences.reserve_clock(peak_us)
