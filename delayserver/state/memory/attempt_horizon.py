"""Up to which due time attempts may have been made, durable before the first of them is made.

After a crash the attempts of the last moments are unknown, and the clock does not say it: it may have been set
back since, by any amount. So nothing is attempted that is due later than the horizon, and the horizon goes ahead of the
clock with the checkpoint that says so.
"""

from __future__ import annotations

from typing import Protocol

from delayserver.runtime.marks import Bell

# How far a checkpoint looks ahead. After a crash, messages due in that time cannot be cancelled any more: few.
AHEAD_MS = 30_000
# A checkpoint is due when less than this is left: more than one takes that meets a busy disk.
LEFT_MS = 15_000


class Horizon(Protocol):
    """Up to which due time attempts may begin now. `earlier` is rung when something may be due earlier than the dispatcher
    knows: the horizon moved, or rows were added."""

    earlier: Bell

    @property
    def due_ms(self) -> int:
        """Rows that are due later may not be attempted yet."""


class AttemptHorizon:
    """The horizon of this process; it never goes back."""

    __slots__ = ("earlier", "peak_us")

    def __init__(self, peak_us: int) -> None:
        # The latest time that the clock has shown to a checkpoint, over all lives.
        self.peak_us = peak_us
        self.earlier = Bell()

    @property
    def due_ms(self) -> int:
        """See `Horizon`."""
        return self.peak_us // 1000 + AHEAD_MS

    def is_near(self, now_ms: int) -> bool:
        """Whether a checkpoint is due for the sake of the horizon."""
        return now_ms > self.due_ms - LEFT_MS

    def move(self, peak_us: int) -> None:
        """A checkpoint of `peak_us` is durable."""
        if peak_us > self.peak_us:
            self.peak_us = peak_us
            self.earlier.ring()
