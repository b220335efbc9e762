"""The longest stalls of the event loop: how long a step kept all tasks from running.

An instrument of trio. It takes the time between two waits for I/O, in which all tasks that are ready run once. A stall of
the process itself, or of the machine, in that time counts as well. The usual cost is two readings of the clock for each
event-loop iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from delayserver.logs.events import EventLogger
from delayserver.runtime.clock import Clock

events = EventLogger()

# Shorter steps are no stalls, and are not looked at.
STALL_US_MIN = 1_000
# The last minute is kept in parts, and each part is forgotten as a whole.
_MINUTE_US = 60_000_000
_PART_US = 5_000_000
# At most one log line in this time.
LOG_AGAIN_US = 10_000_000


class Watchdog(trio.abc.Instrument):
    """Measures the event loop in which it is installed. Times are milliseconds, rounded down."""

    def __init__(self, clock: Clock, log_ms: int) -> None:
        """A stall of at least `log_ms` is logged; 0: none is."""
        self._clock = clock
        self._log_us = log_ms * 1000
        self._began_us = clock.monotonic_us()
        self._longest_us = 0
        # (number of the part, longest stall in it), oldest first.
        self._parts: deque[tuple[int, int]] = deque()
        self._logged_us = -LOG_AGAIN_US
        self._not_logged = 0
        # Stalls so far that were long enough for the log.
        self.long_stalls = 0

    @property
    def longest_ms(self) -> int:
        """The longest stall since the start."""
        return self._longest_us // 1000

    @property
    def longest_of_minute_ms(self) -> int:
        """The longest stall of about the last minute."""
        self._forget(self._clock.monotonic_us())
        return max([stall_us for _, stall_us in self._parts], default=0) // 1000

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the running event loop within the block."""
        self._began_us = self._clock.monotonic_us()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`: an event-loop iteration begins."""
        self._began_us = self._clock.monotonic_us()

    def before_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`: an event-loop iteration ends."""
        now_us = self._clock.monotonic_us()
        if now_us - self._began_us >= STALL_US_MIN:
            self._note(now_us, now_us - self._began_us)

    def _note(self, now_us: int, stall_us: int) -> None:
        self._longest_us = max(self._longest_us, stall_us)
        self._forget(now_us)
        part = now_us // _PART_US
        if self._parts and self._parts[-1][0] == part:
            stalled_us = self._parts.pop()[1]
            self._parts.append((part, max(stalled_us, stall_us)))
        else:
            self._parts.append((part, stall_us))
        if self._log_us and stall_us >= self._log_us:
            self.long_stalls += 1
            self._log(now_us, stall_us)

    def _forget(self, now_us: int) -> None:
        while self._parts and (self._parts[0][0] + 1) * _PART_US <= now_us - _MINUTE_US:
            self._parts.popleft()

    def _log(self, now_us: int, stall_us: int) -> None:
        if now_us - self._logged_us < LOG_AGAIN_US:
            self._not_logged += 1
            return
        events.warning(
            "event_loop_stalled",
            "the event loop stood still for {stall_ms} ms: all clients waited"
            + (" ({not_logged} more since the last line)" if self._not_logged else ""),
            stall_ms=stall_us // 1000,
            not_logged=self._not_logged,
        )
        self._logged_us, self._not_logged = now_us, 0
