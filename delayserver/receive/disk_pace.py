"""Whether the disk is so quick that the event loop may wait for a small sync itself. Pure: durations in, an answer out."""

from __future__ import annotations

# A sync that takes this long on average goes to a thread, so that it holds up nobody else. Not sooner: a thread has to be
# woken, and its answer has to wake the event loop. Where all processors are busy, or virtual, that costs as much as a slow
# sync, and groups that now take the one way and now the other come to two thirds of what either gives.
INLINE_SYNC_US_MAX = 1_000
# So many of the last syncs have a say.
_SYNCS = 8


class DiskPace:
    """The mean duration of the last small syncs, in which a single one counts for a quarter of the bound at most."""

    __slots__ = ("_mean_us",)

    def __init__(self) -> None:
        self._mean_us = 0

    @property
    def quick(self) -> bool:
        """Whether the event loop may wait for the next one."""
        return self._mean_us < INLINE_SYNC_US_MAX

    def took(self, duration_us: int) -> None:
        """A small sync took this long. Bounded, so that a pause of the machine does not look like a slow disk, and that a
        slow minute is forgotten after some quick ones."""
        self._mean_us += (min(duration_us, 2 * INLINE_SYNC_US_MAX) - self._mean_us) // _SYNCS
