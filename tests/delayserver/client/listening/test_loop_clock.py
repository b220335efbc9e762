"""The clock of a listener is that of its event loop."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from delayserver.client.listening.loop_clock import loop_clock
from tests.delayserver.client.both import on_each_loop


@on_each_loop
async def test_loop_clock_agrees_with_the_clock_of_the_event_loop() -> None:
    clock = loop_clock()
    before_s = anyio.current_time()
    now_s = clock()
    assert before_s <= now_s <= anyio.current_time()


def test_a_simulated_clock_of_trio_is_the_clock() -> None:
    async def main() -> float:
        clock = loop_clock()
        before_s = clock()
        await trio.sleep(1000)
        return clock() - before_s

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(1000)
