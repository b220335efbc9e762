"""Large steps of work take turns: one in an event-loop iteration, and none just before a small batch is due.

A step of a thousand rows holds the event loop for a millisecond. An iteration with one step of each kind (a delivery,
its outcomes, a pull, its acks, a round of replay) holds it for several, and messages due meanwhile are late by as much.
So each large step waits for its turn; small steps do not wait. A small batch that is ready reserves the moment when it
is due. A turn that would run into that moment comes after it. So a hot second of one group delays another group by
small steps only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from delayserver.runtime.clock import Clock

# Rows from which a step counts as large.
LARGE_ROWS = 256
# About the time of a large step. If a reserved moment is nearer, a large step waits for it, once. So large steps get
# half of the time even if small batches are due all the time.
STEP_US = 1_000


class Turns:
    """A queue of turns, first come, first served."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = trio.Lock()
        self._moments: list[int] = []
        self._passed = trio.Event()
        self.taken = 0
        """How many turns were taken since the start. While it grows, large steps are at work."""

    @contextmanager
    def reserve(self, wall_us: int) -> Iterator[None]:
        """Reserve the moment `wall_us`. Within the block the caller waits for it, then does a small step."""
        self._moments.append(wall_us)
        try:
            yield
        finally:
            self._moments.remove(wall_us)
            self._passed.set()

    async def take(self) -> None:
        """Return when it is the caller's turn. Its work up to its next await is the large step of this iteration."""
        self.taken += 1
        # The release wakes the next caller, which so runs in the next iteration.
        async with self._lock:
            wait_us = min(self._moments, default=1 << 62) - self._clock.now_us()
            if wait_us < STEP_US:
                self._passed = trio.Event()
                # Bounded, because a step back of the wall clock moves the moment to later.
                with trio.move_on_after(2 * STEP_US / 1_000_000):
                    await self._passed.wait()
