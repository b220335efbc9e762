"""The believable time, which decides about removals: the wall clock, once it has held its setting for `hold_ms`.

A wall clock may be wrong for a while: before the machine's time service has started, with a bad time source, or after a
mistake of an operator. Deliveries follow the clock at once. A removal cannot be undone, so it waits until the clock has
held its setting for `hold_ms`. Until then time goes on from the setting that is already believed.

The believable time is the monotonic clock plus the smallest difference of both clocks within the last `hold_ms`. So a
step forward counts after `hold_ms`, a step back counts at once, and small steps never stop removals. A start has no
history. It goes on from the believable time in the checkpoint.
"""

from __future__ import annotations

from collections import deque

from delayserver.runtime.clock import Clock, read_both

# The history keeps the bounds of this many parts of `hold_ms`, however many readings there are.
PARTS = 16


class BelievableClock:
    """Reads both clocks at each call, so it needs no task of its own. Synchronous, for the event loop."""

    def __init__(self, clock: Clock, hold_ms: int, known_us: int) -> None:
        """`known_us`: the believable time that the last process stored. 0 if it stored none; then no time is believed
        until `hold_ms` have passed."""
        self._clock = clock
        self._hold_us = hold_ms * 1000
        self._part_us = max(self._hold_us // PARTS, 1)
        # For each part of the monotonic time, ascending: its number, the smallest and the largest difference in it.
        self._bounds: deque[tuple[int, int, int]] = deque()
        self._last_us = known_us - clock.monotonic_us()
        self._read()

    def now_us(self) -> int:
        """Microseconds since 1970: a time that has surely come. Never later than the wall clock shows."""
        return max(self._read() + min([smallest_us for _, smallest_us, _ in self._bounds]), 0)

    def now_ms(self) -> int:
        """`now_us` in milliseconds, rounded down."""
        return self.now_us() // 1000

    def latest_us(self) -> int:
        """Microseconds since 1970: a time that has surely not been passed. Never earlier than the wall clock shows."""
        return self._read() + max([largest_us for _, _, largest_us in self._bounds])

    def _read(self) -> int:
        """Add a reading of both clocks to the history; returns the monotonic one."""
        both = read_both(self._clock)
        monotonic_us, difference_us = both.monotonic_us, both.apart_us
        # The wall clock may have been set at any time between two readings: the older difference counts up to now.
        self._note(monotonic_us, self._last_us)
        self._note(monotonic_us, difference_us)
        self._last_us = difference_us
        while (self._bounds[0][0] + 1) * self._part_us <= monotonic_us - self._hold_us:
            self._bounds.popleft()
        return monotonic_us

    def _note(self, monotonic_us: int, difference_us: int) -> None:
        part, smallest_us, largest_us = monotonic_us // self._part_us, difference_us, difference_us
        if self._bounds and self._bounds[-1][0] == part:
            _, before_min_us, before_max_us = self._bounds.pop()
            smallest_us, largest_us = min(smallest_us, before_min_us), max(largest_us, before_max_us)
        self._bounds.append((part, smallest_us, largest_us))

    def check_invariants(self) -> None:
        """For tests: the history is in order and bounded."""
        parts = [part for part, _, _ in self._bounds]
        assert parts == sorted(set(parts)), "parts ascend"
        assert 0 < len(parts) <= PARTS + 4, f"{len(parts)} parts"
        assert all(smallest_us <= largest_us for _, smallest_us, largest_us in self._bounds)
