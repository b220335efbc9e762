"""How often the disk could not read some place. A disk that fails for a moment gets further tries before what it holds is
passed over.

Readers hold back the rows of a file that the disk refuses, and ask again after a second. A failed write or sync of
the truth ends the server.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Place = TypeVar("Place")

READ_TRIES = 3
"""So often a place is read before it is passed over, where nothing else is said."""
PATIENCE_MS = 60_000
"""A place is read for so long before it is passed over, where no later read comes back to it: a controller may start again,
or a path fail over."""


class FailedReads(Generic[Place]):
    """Failed reads by place, such as a file or an offset. Beyond `places_max` the place that failed longest ago is
    forgotten."""

    __slots__ = ("_failed", "_places_max")

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._failed: dict[Place, int] = {}

    def of(self, place: Place) -> int:
        """How often reads of this place failed."""
        return self._failed.get(place, 0)

    def count(self, place: Place) -> int:
        """Counts a failed read; returns how many there are now."""
        failed = self._failed.pop(place, 0) + 1
        self._failed[place] = failed
        if len(self._failed) > self._places_max:
            del self._failed[next(iter(self._failed))]
        return failed

    def forget(self, place: Place) -> None:
        """Forgets the failed reads of a place that was read."""
        self._failed.pop(place, None)
