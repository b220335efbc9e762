"""The one door to time. Every part that needs the time or waits for a time gets a `Clock`, and uses no other.

The wall clock decides which messages are due (rule 2). Trio's clock only decides when to look again. A wait never
sleeps longer than `LOOK_AGAIN_MS`, so a step of the wall clock or a resume from suspend is noticed within that time.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

import trio

from delayserver.runtime.fine_timer import FineTimer

# The bound on how late a clock step or a resume is noticed.
LOOK_AGAIN_MS = 500
# The end of a wait, for which the kernel's timer replaces the event loop's, which counts whole milliseconds.
FINE_WAIT_S = 0.004


class Clock(Protocol):
    """Wall-clock time in integers, and waiting."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC by the server's clock. It can step in both directions."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, rounded down: a message due at X is due when now_ms() >= X."""

    def monotonic_us(self) -> int:
        """Microseconds that never step; for durations."""

    def boot_us(self) -> int:
        """Microseconds that never step, and go on while the machine is suspended; for leases."""

    def wait_s(self, wall_us: int) -> float:
        """Seconds to wait for a wall time, at most LOOK_AGAIN_MS: a step of the clock is noticed within that time."""

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait by monotonic time."""

    async def sleep_until_us(self, wall_us: int) -> None:
        """Wait until the wall clock shows `wall_us`, to the microsecond if the system can, but at most LOOK_AGAIN_MS.
        The caller looks at the clock again."""


# Readings of both clocks that belong together take some hundred nanoseconds. Where they took longer, the process stood
# still between them, and it reads again; a machine that never reads them together gives the closest readings.
TOGETHER_US = 1_000
READINGS_MAX = 8


@dataclass(frozen=True, slots=True)
class Both:
    """Both clocks at one moment, in microseconds."""

    wall_us: int
    monotonic_us: int

    @property
    def apart_us(self) -> int:
        """The wall clock minus the monotonic one: it changes only when the wall clock is set."""
        return self.wall_us - self.monotonic_us


def read_both(clock: Clock) -> Both:
    """Both clocks at one moment. The monotonic clock is read on both sides of the wall clock: the process may stand still
    between two readings, and that time is no step of a clock."""
    closest_us, both = 1 << 62, Both(0, 0)
    for _ in range(READINGS_MAX):
        before_us = clock.monotonic_us()
        wall_us = clock.now_us()
        took_us = clock.monotonic_us() - before_us
        if took_us < closest_us:
            closest_us, both = took_us, Both(wall_us, before_us + took_us // 2)
        if took_us <= TOGETHER_US:
            break
    return both


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        # Unused timers. Their number grows to the number of waits at the same time.
        self._timers: list[FineTimer] = []
        with contextlib.suppress(OSError):
            self._timers.append(FineTimer())
        self._fine = bool(self._timers)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def boot_us(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    async def sleep_ms(self, duration_ms: float) -> None:
        await trio.sleep(duration_ms / 1000)

    def wait_s(self, wall_us: int) -> float:
        return min(max(wall_us - self.now_us(), 0), LOOK_AGAIN_MS * 1000) / 1_000_000

    async def sleep_until_us(self, wall_us: int) -> None:
        wait_s = self.wait_s(wall_us)
        if not self._fine:
            await trio.sleep(wait_s)
            return
        if wait_s > FINE_WAIT_S:
            # The event loop's waits end up to a millisecond late, so this one ends early.
            await trio.sleep(wait_s - FINE_WAIT_S)
            wait_s = self.wait_s(wall_us)
        if 0 < wait_s <= 2 * FINE_WAIT_S:
            try:
                timer = self._timers.pop() if self._timers else FineTimer()
            except OSError:  # no descriptor is free: this wait ends up to a millisecond late
                await trio.sleep(wait_s)
                return
            try:
                await timer.sleep_us(int(wait_s * 1_000_000))
            finally:
                self._timers.append(timer)
