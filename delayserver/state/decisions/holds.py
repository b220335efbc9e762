"""Messages whose cancel is under way: no part may load or deliver them until the cancel is recorded, or has failed.

A cancel holds what it takes out of memory. A start holds what is cancelled in a part of message_log not yet replayed.
"""

from __future__ import annotations

import numpy as np
import trio
from numpy.typing import NDArray

from store.records.batches import I64
from store.records.membership import is_member


class Holds:
    """Sequences of held messages. For the event loop. Writers: cancels and check-backs hold, they and the replay
    release; the start."""

    __slots__ = ("_at_start", "_held", "_released")

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._at_start: I64 = np.zeros(0, np.int64)
        self._released = trio.Event()

    def hold(self, sequences: I64) -> None:
        """These are being cancelled, until `release`."""
        self._held.update(sequences.tolist())

    def release(self, sequences: I64) -> None:
        """The cancel is recorded, or it failed."""
        self._held.difference_update(sequences.tolist())
        self._released.set()
        self._released = trio.Event()

    def hold_at_start(self, sequences: I64) -> None:
        """These (i64, ascending) are cancelled in a part of message_log that is not replayed yet, until `release_start`."""
        self._at_start = sequences

    def release_start(self) -> None:
        """All of message_log is replayed, and its cancels are recorded."""
        self._at_start = np.zeros(0, np.int64)

    def any_held(self, sequences: I64) -> bool:
        """Whether one of these is held."""
        # Each cancel asks, while thousands of messages of others are held: to make an array of those takes longer.
        if self._held and not self._held.isdisjoint(sequences.tolist()):
            return True
        return bool(len(self._at_start)) and bool(is_member(sequences, self._at_start).any())

    def not_held(self, sequences: I64) -> NDArray[np.bool_]:
        """True where a message is not held, bool[n]."""
        free = np.ones(len(sequences), dtype=bool)
        if self._held:
            free &= ~is_member(sequences, np.fromiter(self._held, np.int64, len(self._held)))
        if len(self._at_start):
            free &= ~is_member(sequences, self._at_start)
        return free

    async def wait_released(self) -> None:
        """Return when some cancel was recorded or failed."""
        await self._released.wait()

    def check_invariants(self) -> None:
        """The holds of a start are sorted and distinct."""
        assert (np.diff(self._at_start) > 0).all()
        assert not self._released.is_set()
