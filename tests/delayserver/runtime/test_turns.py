"""Large steps take turns: no two of them in one pass of the event loop, in the order in which they asked; and none
just before a moment that a small batch waits for."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import MockClock

from delayserver.runtime.turns import STEP_US, Turns
from tests.fakes.clock import SimulatedClock


def test_no_pass_of_the_event_loop_holds_two_large_steps() -> None:
    passes = 0
    steps: list[tuple[int, int]] = []

    class CountPasses(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    async def work(turns: Turns, number: int) -> None:
        for _ in range(5):
            await turns.take()
            steps.append((passes, number))

    async def together() -> None:
        turns = Turns(SimulatedClock())
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(work, turns, number)

    trio.run(together, instruments=[CountPasses()])
    assert len(steps) == 20
    assert len({at for at, _ in steps}) == 20, "two large steps in one pass"
    first = [number for _, number in steps[:4]]
    assert [number for _, number in steps] == first * 5, "a task that had a turn goes to the end of the line"


def test_a_task_that_is_cancelled_in_line_holds_up_no_other_task() -> None:
    async def cancelled() -> None:
        turns = Turns(SimulatedClock())
        done: list[int] = []

        async def take(number: int) -> None:
            await turns.take()
            done.append(number)

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, 1)
                async with trio.open_nursery() as inner:
                    inner.start_soon(take, 2)
                    inner.cancel_scope.cancel()
                nursery.start_soon(take, 3)
        assert set(done) >= {1, 3}

    trio.run(cancelled)


async def test_a_turn_that_would_run_into_a_reserved_moment_comes_after_it(autojump_clock: MockClock) -> None:
    clock = SimulatedClock()
    turns = Turns(clock)
    done: list[str] = []

    async def small(wait_us: int, name: str) -> None:
        moment_us = clock.now_us() + wait_us
        with turns.reserve(moment_us):
            await clock.sleep_until_us(moment_us)
        done.append(name)

    async def large(name: str) -> None:
        await turns.take()
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(small, STEP_US - 100, "near")
        nursery.start_soon(small, STEP_US * 3, "far")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(large, str(number))
    assert done[0] == "near" and done[-1] == "far", done
    assert sorted(done[1:-1]) == ["0", "1", "2"]


async def test_moments_without_end_and_one_that_a_step_of_the_clock_moved_hold_up_no_turn(
    autojump_clock: MockClock,
) -> None:
    clock = SimulatedClock()
    turns = Turns(clock)

    async def always() -> None:
        while True:
            with turns.reserve(clock.now_us() + STEP_US // 2):
                await clock.sleep_ms(STEP_US / 2_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(always)
        began_us = clock.monotonic_us()
        for _ in range(10):
            await turns.take()
        assert clock.monotonic_us() - began_us <= 10 * STEP_US
        nursery.cancel_scope.cancel()
    with turns.reserve(clock.now_us() - 3_600_000_000):
        began_us = clock.monotonic_us()
        await turns.take()
        assert clock.monotonic_us() - began_us <= 3 * STEP_US
    began_us = clock.monotonic_us()
    await turns.take()
    assert clock.monotonic_us() == began_us, "a moment that has passed is forgotten"
