"""A bound on lateness: once the world is well, a message is handed to its broker soon after it is due and accepted.

The world is well for a subject while the server is up and its disk has room; for a subject with nodes of its own also
while all of them are up, can be reached and answer. Whatever changes in the world begins a new time to count from: a
start, a step of a clock, a leap, a fault and its end. What was dispatched before is not judged any more.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.clocks import WallClock

# Windows and rows that left memory are looked for once a second, a step of the clock is noticed within half a one, timers
# may be 100 ms coarse, and a piece of work in a thread takes up to 20 ms, of which a crowded seed needs many in a row: after
# hours of suspension every window in between is loaded (seed 22 took 2.2 s).
LATE_US_MAX = 3_000_000


class Timeliness:
    """When the world became what it is, and how late a dispatch may be."""

    def __init__(self, clock: WallClock, pause_ms: int, well: Callable[[str], bool]) -> None:
        """`pause_ms`: the longest that a group waits after a fault of its nodes. `well` says it of a subject, now."""
        self._clock = clock
        self.pause_us = pause_ms * 1000
        self._well = well
        self._since_us = 0
        self._paused_to_us = 0
        self.judged = 0
        self.worst_us = 0

    def changed(self) -> None:
        """Something happened that explains lateness up to now."""
        self._since_us = self._clock.peak_us

    def fault(self) -> None:
        """A fault began or ended after which groups pause before they try again."""
        self.changed()
        self._paused_to_us = max(self._paused_to_us, self._clock.peak_us + self.pause_us)

    def lateness_us(self, subject: str, due_ms: int, accepted_us: int, dispatched_us: int) -> int | None:
        """How late a first delivery was dispatched, counted from when it could have been; None if that is not known."""
        if not self._well(subject) or dispatched_us < max(self._since_us, self._paused_to_us):
            return None
        late_us = dispatched_us - max(due_ms * 1000, accepted_us, self._since_us, self._paused_to_us)
        self.judged += 1
        self.worst_us = max(self.worst_us, late_us)
        return late_us

    def well_for_us(self, subject: str) -> int:
        """How long all has been well for this subject; 0 if it is not."""
        if not self._well(subject):
            return 0
        return max(self._clock.now_us() - max(self._since_us, self._paused_to_us), 0)
