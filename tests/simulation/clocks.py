"""Simulated time: trio's clock, which jumps to the next deadline when nothing can run, and the wall clocks of hosts.

Days pass in three ways, all of which happen to real servers: the next timer fires (fine time), the whole process stands
still and all its timers are late (`leap`: a stopped virtual machine whose clocks go on), and the wall clock moves while
timers do not (`WallClock.step`: suspend, or somebody sets the clock). Fine time alone would cost 20 polls a simulated
second, and a seed would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import trio
import trio.abc

from delayserver.runtime.clock import LOOK_AGAIN_MS

# 2026-03-01 00:00 UTC: any time will do; the first hours of a day and of a month catch most mistakes with names.
# More often than this in a row trio has nothing of its own to do: the simulation hangs.
WITHOUT_DEADLINE_MAX = 1000
BASE_US = 1_772_323_200_000_000


class Timer:
    """An action at a time."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action


class SimulatedTime(trio.abc.Clock):
    """trio's clock. Time stands while a task can run, and jumps to the next deadline when none can.

    It has timers of its own beside trio's deadlines, which are scopes that are cancelled: polls are a third of what a
    seed does, and a timer that wakes a task costs less than half of a scope.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        # The same, for those who ask what time it is: a dozen times for each time that it changes.
        self.now_us = 0
        # Of this time, what passed in leaps: nothing ran then.
        self._leapt_s = 0.0
        self._without_deadline = 0
        # With the time of each, and its number: two for one time keep the order in which they were made.
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_made = 0

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        return self.now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """trio asks this when nothing can run: so go there at once, and sleep not at all."""
        timers = self._timers
        while timers and timers[0][2].action is None:
            heappop(timers)
        if timers and timers[0][0] <= deadline:
            self._without_deadline = 0
            self._go(timers[0][0])
            self._fire()
            return 0.0
        if math.isinf(deadline):
            # trio's own tasks are woken through a real pipe, so it comes here now and then without a deadline.
            self._without_deadline += 1
            if self._without_deadline > WITHOUT_DEADLINE_MAX:
                raise RuntimeError("every task of the simulation waits for an event that no task will set")
            return 0.0
        self._without_deadline = 0
        self._go(deadline)
        return 0.0

    def leap(self, duration_s: float) -> None:
        """All timers due within `duration_s` fire late, once, together."""
        self._leapt_s += max(duration_s, 0.0)
        self._go(self.now_s + duration_s)
        self._fire()

    @property
    def worked_s(self) -> float:
        """The time in which tasks could run and timers came in time."""
        return self.now_s - self._leapt_s

    def _go(self, now_s: float) -> None:
        if now_s > self.now_s:
            self.now_s, self.now_us = now_s, round(now_s * 1_000_000)

    def at(self, when_s: float, action: Callable[[], None]) -> Timer:
        """Do it when this time has come; never at once. Whoever sets the timer's `action` to None takes it back."""
        self._timers_made += 1
        timer = Timer(action)
        heappush(self._timers, (when_s, self._timers_made, timer))
        return timer

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now_s:
            action = heappop(timers)[2].action
            if action is not None:
                action()

    async def sleep_until(self, when_s: float) -> None:
        """As `trio.sleep_until`."""
        if when_s <= self.now_s:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        timer = self.at(when_s, lambda: trio.lowlevel.reschedule(task))

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            timer.action = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def sleep_through(self, duration_s: float) -> None:
        """As `trio.sleep` in a shielded scope."""
        if duration_s <= 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        self.at(self.now_s + duration_s, lambda: trio.lowlevel.reschedule(task))
        await trio.lowlevel.wait_task_rescheduled(lambda _raise_cancel: trio.lowlevel.Abort.FAILED)

    async def sleep(self, duration_s: float) -> None:
        """As `trio.sleep`."""
        await self.sleep_until(self.now_s + duration_s)


class WallClock:
    """The `Clock` of one host. Remembers what it has shown, since only that can say what was early."""

    def __init__(self, time: SimulatedTime, offset_us: int = 0) -> None:
        self._time = time
        self._offset_us = BASE_US + offset_us
        self._steps: list[tuple[float, int]] = []
        self._stepped_s = -math.inf
        # Settings that it had before: from when to when, and the difference to the time of the simulation.
        self._times: list[tuple[int, int, int]] = []
        self._since_us = 0
        self.peak_before_us = 0
        # Sleeps end on multiples of this, as with a coarse kernel timer: what polls then wakes together, which costs less.
        self.granularity_us = 1

    def now_us(self) -> int:
        return self._offset_us + self._time.now_us

    def now_ms(self) -> int:
        return (self._offset_us + self._time.now_us) // 1000

    def monotonic_us(self) -> int:
        return self._time.now_us

    def boot_us(self) -> int:
        return self._time.now_us

    def wait_s(self, wall_us: int) -> float:
        return min(max(wall_us - self.now_us(), 0), LOOK_AGAIN_MS * 1000) / 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        until_us = self.monotonic_us() + int(duration_ms * 1000)
        until_us += -until_us % self.granularity_us
        await self._time.sleep_until(until_us / 1_000_000)

    async def sleep_until_us(self, wall_us: int) -> None:
        await self._time.sleep(self.wait_s(wall_us))

    # What only the simulation does

    def step(self, delta_us: int) -> None:
        """Set the clock forward or back."""
        self.peak_before_us = max(self.peak_before_us, self.now_us())
        self._steps.append((self._time.now_s, self.now_us()))
        self._stepped_s = self._time.worked_s
        self._times.append((self._since_us, self._time.now_us, self._offset_us))
        self._since_us = self._time.now_us
        self._offset_us += delta_us

    def has_shown(self, from_ms: int, to_ms: int) -> bool:
        """Whether it ever showed a time of this range."""
        times = [*self._times, (self._since_us, self._time.now_us, self._offset_us)]
        return any(
            begun_us + offset_us < to_ms * 1000 and ended_us + offset_us >= from_ms * 1000
            for begun_us, ended_us, offset_us in times
        )

    @property
    def lowest_us(self) -> int:
        """The earliest time that a server may show which is asked now."""
        return self.now_us()

    @property
    def step_count(self) -> int:
        """How often it was set."""
        return len(self._steps)

    @property
    def worked_since_step_s(self) -> float:
        """The time since it was last set in which tasks could run and timers came in time."""
        return self._time.worked_s - self._stepped_s

    @property
    def peak_us(self) -> int:
        """The latest time it ever showed."""
        return max(self.peak_before_us, self.now_us())

    def held_us(self, hold_us: int) -> int:
        """The latest time that it may have come to by settings that it began with, or had for `hold_us` together."""
        times = [*self._times, (self._since_us, self._time.now_us, self._offset_us)]
        first_us, total_us = times[0][2], 0
        for begun_us, ended_us, offset_us in sorted(times, key=lambda time: -time[2]):
            total_us += ended_us - begun_us
            if total_us >= hold_us or offset_us <= first_us:
                return self._time.now_us + max(offset_us, first_us)
        raise AssertionError("the first setting is one of them")

    def shown_since_us(self, seconds: float) -> int:
        """The latest time it showed within the last `seconds`."""
        since = self._time.now_s - seconds
        return max([self.now_us(), *(shown for when, shown in self._steps if when >= since)])
