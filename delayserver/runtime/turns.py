"""Large steps of work take turns: one in a pass of the event loop, and none just before a small batch is due.

A step of a thousand rows holds the event loop for a millisecond. A pass that runs one of each kind (a delivery, its
outcomes, a pull, its acks, a round of replay) holds it for several, and whoever is due in between is late by as much. So
each of them waits for its turn first; small steps do not. A small batch that is ready and waits for its moment reserves
it: the turn that would run into that moment comes after it. So a hot second of one group makes another one late by small
steps only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from delayserver.runtime.clock import Clock

# Rows from which a step counts as large.
LARGE_ROWS = 256
# What a large step takes, about: a moment nearer than this is waited for, once a step. So large steps get half of the
# time even where small batches are due all the time.
STEP_US = 1_000


class Turns:
    """A queue of turns. They go in the order in which they are asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = trio.Lock()
        self._moments: list[int] = []
        self._passed = trio.Event()

    @contextmanager
    def reserve(self, wall_us: int) -> Iterator[None]:
        """Within the block the caller waits for this moment, to do a small step then."""
        self._moments.append(wall_us)
        try:
            yield
        finally:
            self._moments.remove(wall_us)
            self._passed.set()

    async def take(self) -> None:
        """Return when it is the caller's turn: what it does before its next pause is the large step of this pass."""
        # The one that waits next is woken by the release, and so runs in the next pass.
        async with self._lock:
            wait_us = min(self._moments, default=1 << 62) - self._clock.now_us()
            if wait_us < STEP_US:
                self._passed = trio.Event()
                # Bounded, for the wall clock may step back and the moment with it.
                with trio.move_on_after(2 * STEP_US / 1_000_000):
                    await self._passed.wait()
