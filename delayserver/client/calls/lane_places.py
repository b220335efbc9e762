"""Places of messages that wait for the shards of a cluster, a lane for each shard. No I/O."""

from __future__ import annotations

from collections.abc import Callable


class LanePlaces:
    """The sum of all lanes is bounded by ``places_max``. One lane alone may take all places. If ``several`` says that there
    are more, a lane gets a place while it has fewer than are free. So a shard that is away leaves room for the others:
    beside n lanes that are full, 1/(n+1) of all is free.
    """

    def __init__(self, places_max: int, several: Callable[[], bool]) -> None:
        self._places_max = places_max
        self._several = several
        self._of: dict[int, int] = {}
        self.taken = 0

    def full(self, lane: int) -> bool:
        """Whether the lane gets no place now."""
        free = self._places_max - self.taken
        return free <= 0 or (self._several() and self._of.get(lane, 0) >= free)

    def take(self, lane: int) -> None:
        """One more message waits."""
        self._of[lane] = self._of.get(lane, 0) + 1
        self.taken += 1

    def free(self, lane: int, count: int) -> None:
        """So many messages of a lane wait no longer."""
        self._of[lane] -= count
        self.taken -= count

    def check_invariants(self) -> None:
        """The sum is that of the lanes, within its bound."""
        assert self.taken == sum(self._of.values())
        assert all(count >= 0 for count in self._of.values())
