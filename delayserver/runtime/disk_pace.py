"""Decides whether the disk is fast enough for the event loop to wait for a small sync itself. Pure."""

from __future__ import annotations

# If syncs take this long on average, they run in a thread and do not block the event loop. The bound is not lower: on
# busy or virtual processors, waking the thread and then the event loop costs as much as a slow sync. Groups that
# alternate between both ways reach two thirds of the throughput of either.
INLINE_SYNC_US_MAX = 1_000
# The weight of the moving mean, in syncs.
_SYNCS = 8


class DiskPace:
    """The moving mean duration of small syncs. One sync raises it by at most a quarter of the bound."""

    __slots__ = ("_mean_us",)

    def __init__(self) -> None:
        self._mean_us = 0

    @property
    def quick(self) -> bool:
        """True if the event loop may wait for the next sync."""
        return self._mean_us < INLINE_SYNC_US_MAX

    def add_sync(self, duration_us: int) -> None:
        """Adds the duration of a small sync to the mean, bounded: a pause of the machine does not look like a slow
        disk, and a few quick syncs make up for a slow minute."""
        self._mean_us += (min(duration_us, 2 * INLINE_SYNC_US_MAX) - self._mean_us) // _SYNCS
