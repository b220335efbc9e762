"""The kernel's timer against the real clock: a wait never ends before its time, and an event ends it where it may."""

from __future__ import annotations

import time

import trio

from delayserver.clock import FINE_WAIT_S, SystemClock
from delayserver.fine_timer import FineTimer


def test_a_sleep_lasts_at_least_its_time() -> None:
    async def sleep() -> None:
        timer = FineTimer()
        for duration_us in (1, 300, 1_500, 20_000):
            began = time.monotonic_ns()
            await timer.sleep_us(duration_us)
            assert time.monotonic_ns() - began >= duration_us * 1000

    trio.run(sleep)


def test_a_wait_ends_at_its_wall_time_and_never_before() -> None:
    async def wait() -> None:
        clock = SystemClock()
        for ahead_us in (-5, 200, 1_100, 7_300, 31_007):
            until_us = clock.now_us() + ahead_us
            while clock.now_us() < until_us:
                await clock.wait_until(until_us, trio.Event())
            assert clock.now_us() >= until_us

    trio.run(wait)


def test_an_event_ends_a_wait() -> None:
    async def wait() -> None:
        clock = SystemClock()
        event = trio.Event()
        far_us = clock.now_us() + 60_000_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.wait_until, far_us, event)
            await trio.sleep(0.01)
            event.set()
        assert event.is_set() and clock.now_us() < far_us - int(FINE_WAIT_S * 1_000_000)

    trio.run(wait)
