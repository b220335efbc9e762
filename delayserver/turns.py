"""Large steps of work take turns: one in a pass of the event loop.

A step of a thousand rows holds the event loop for a millisecond. A pass that runs one of each kind (a delivery, its
outcomes, a pull, its acks) holds it for several, and whoever is due in between is late by as much. So each of them waits
for its turn first; small steps do not, and are late by one large step at most.
"""

from __future__ import annotations

import trio

# Rows from which a step counts as large.
LARGE_ROWS = 256


class Turns:
    """A queue of turns. They go in the order in which they are asked for."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def take(self) -> None:
        """Return when it is the caller's turn: what it does before its next pause is the large step of this pass."""
        # The one that waits next is woken by the release, and so runs in the next pass.
        async with self._lock:
            pass
