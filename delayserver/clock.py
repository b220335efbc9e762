"""The one door to time. `Clock` is handed to everything that asks what time it is or waits; nobody else may.

Wall time decides what is due (rule 2), trio's time only decides when to look again. A wait never sleeps longer than
`LOOK_AGAIN_MS`, so a step of the wall clock or a resume from suspend is noticed within that time.
"""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

import trio

from delayserver.fine_timer import FineTimer

# The bound on how late a clock step or a resume is noticed.
LOOK_AGAIN_MS = 500
# The last stretch of a wait, which the kernel's timer takes over from the event loop's milliseconds.
FINE_WAIT_S = 0.0012


class Clock(Protocol):
    """Wall-clock time in integers, and waiting."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC by the server's clock. It can step in both directions."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, rounded down: a message due at X is due when now_ms() >= X."""

    def monotonic_us(self) -> int:
        """Microseconds that never step; for durations."""

    def wait_s(self, wall_us: int) -> float:
        """Seconds to wait for a wall time, at most LOOK_AGAIN_MS: a step of the clock is noticed within that."""

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait by monotonic time."""

    async def wait_until(self, wall_us: int, event: trio.Event) -> None:
        """Wait until the wall clock shows `wall_us`, the event is set (in the last millisecond that goes unnoticed), or
        LOOK_AGAIN_MS passed: callers look again. For one task at a time."""


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._timer: FineTimer | None = None
        with contextlib.suppress(OSError):
            self._timer = FineTimer()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    async def sleep_ms(self, duration_ms: float) -> None:
        await trio.sleep(duration_ms / 1000)

    def wait_s(self, wall_us: int) -> float:
        return min(max(wall_us - self.now_us(), 0), LOOK_AGAIN_MS * 1000) / 1_000_000

    async def wait_until(self, wall_us: int, event: trio.Event) -> None:
        wait_s = self.wait_s(wall_us)
        if self._timer is None or wait_s > FINE_WAIT_S:
            # The event loop's waits end up to a millisecond late, so this one ends before the last stretch.
            with trio.move_on_after(wait_s if self._timer is None else wait_s - FINE_WAIT_S):
                await event.wait()
        if self._timer is not None and not event.is_set():
            left_us = wall_us - self.now_us()
            if 0 < left_us <= 2_000_000 * FINE_WAIT_S:
                await self._timer.sleep_us(left_us)
