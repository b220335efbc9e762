"""The waits of a round whose rows cannot be placed now."""

from __future__ import annotations

import numpy as np

from delayserver.runtime.clock import Clock
from delayserver.runtime.room_wait import RoomWait
from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Round
from store.disk.filesystem import BLOCK_BYTES
from store.errors import DiskFullError
from store.logs.due_windows import window_starts

# Before the replay reads again what the disk could not read.
READ_AGAIN_MS = 1_000


class PlacingWaits:
    """Waits for room, and for a disk that cannot read."""

    def __init__(self, room: RoomWait, positions: Positions, window_ms: int, clock: Clock) -> None:
        self._room = room
        self._positions = positions
        self._window_ms = window_ms
        self._clock = clock

    async def for_room(self, done: Round, error: DiskFullError) -> None:
        """A pause, after which the round may be placed again."""
        self._room.full(self._needed_bytes(done), error)
        await self._clock.sleep_ms(self._room.pause_ms)

    async def for_disk(self) -> None:
        """A pause, after which the disk may be asked again."""
        await self._clock.sleep_ms(READ_AGAIN_MS)

    def end(self) -> None:
        """The round is placed."""
        self._room.resume()

    def _needed_bytes(self, done: Round) -> int:
        """About what all that waits for its replay takes on the disk: its bytes, and a block for each file of the round."""
        windows = 0 if done.messages is None else np.unique(window_starts(done.messages.due_ms, self._window_ms))
        return max(self._positions.lag_bytes, done.size_bytes) + np.size(windows) * BLOCK_BYTES
