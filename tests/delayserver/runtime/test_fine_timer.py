"""The kernel's timer against the real clock: a wait never ends before its time."""

from __future__ import annotations

import resource
import time

import trio

from delayserver.runtime.clock import SystemClock
from delayserver.runtime.fine_timer import FineTimer


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
                await clock.sleep_until_us(until_us)
            assert clock.now_us() >= until_us

    trio.run(wait)


def test_many_wait_at_the_same_time_and_a_long_wait_ends_to_be_looked_at_again() -> None:
    async def wait() -> None:
        clock = SystemClock()
        ended: list[int] = []

        async def one(until_us: int) -> None:
            await clock.sleep_until_us(until_us)
            assert clock.now_us() >= until_us
            ended.append(until_us)

        now_us = clock.now_us()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, now_us + 500 * number)
        assert len(ended) == 20
        await clock.sleep_until_us(now_us + 3_600_000_000)
        assert clock.now_us() < now_us + 3_600_000_000

    trio.run(wait)


def test_where_connections_took_all_descriptors_a_wait_is_coarse() -> None:
    async def wait() -> None:
        clock = SystemClock()
        ended: list[int] = []

        async def one(until_us: int) -> None:
            while clock.now_us() < until_us:
                await clock.sleep_until_us(until_us)
            ended.append(until_us)

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(one, clock.now_us() + 1_500 + number)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(ended) == 3

    trio.run(wait)
