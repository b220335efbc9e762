"""Large steps take turns: no two of them in one pass of the event loop, in the order in which they asked."""

from __future__ import annotations

import trio

from delayserver.turns import Turns


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
        turns = Turns()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(work, turns, number)

    trio.run(together, instruments=[CountPasses()])
    assert len(steps) == 20
    assert len({at for at, _ in steps}) == 20, "two large steps in one pass"
    first = [number for _, number in steps[:4]]
    assert [number for _, number in steps] == first * 5, "whoever had a turn goes to the end of the line"


def test_a_task_that_is_cancelled_in_line_holds_up_nobody() -> None:
    async def cancelled() -> None:
        turns = Turns()
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
