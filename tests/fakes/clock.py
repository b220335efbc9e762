"""A wall clock on trio's own clock: with `trio.testing.MockClock` no test waits for real time. It can be stepped."""

from __future__ import annotations

import trio

from delayserver.runtime.clock import LOOK_AGAIN_MS

# 2026-03-01 12:00 UTC: the middle of a day, so that a test which wants the end of one has to say so.
BASE_US = 1_772_366_400_000_000


class SimulatedClock:
    """A `Clock`: it shows `base_us` when it is made (inside `trio.run`), then trio's time passes, and `step` adds."""

    def __init__(self, base_us: int = BASE_US) -> None:
        self._offset_us = base_us - self.monotonic_us()
        self._suspended_us = 0

    def now_us(self) -> int:
        return self._offset_us + self.monotonic_us()

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def monotonic_us(self) -> int:
        return round(trio.current_time() * 1_000_000)

    def boot_us(self) -> int:
        return self.monotonic_us() + self._suspended_us

    def wait_s(self, wall_us: int) -> float:
        return min(max(wall_us - self.now_us(), 0), LOOK_AGAIN_MS * 1000) / 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        await trio.sleep(duration_ms / 1000)

    async def sleep_until_us(self, wall_us: int) -> None:
        await trio.sleep(self.wait_s(wall_us))

    def step(self, delta_ms: int) -> None:
        """Somebody sets the wall clock, or a suspend ends: timers do not notice."""
        self._offset_us += delta_ms * 1000

    def suspend(self, duration_ms: int) -> None:
        """The machine slept for so long, and goes on: timers did not notice."""
        self._suspended_us += duration_ms * 1000
        self.step(duration_ms)
