"""Faults found by the review of the path from a send to the wheel."""

from __future__ import annotations

from collections.abc import Callable

from tests.delayserver.test_day_tier import HOUR_MS, coarse_settings
from tests.delayserver.test_rare_interleavings import day_after_next
from tests.fakes.host import Host

Boot = Callable[..., Host]


async def test_what_lies_in_a_coarse_day_leaves_within_a_second_of_a_resume(boot: Boot) -> None:
    host = boot(coarse_settings())
    await host.start()
    due_ms = day_after_next(host) + HOUR_MS
    await (await host.client()).put("m", due_ms)
    await host.settled()
    host.clock.step(due_ms + 1_000 - host.now_ms)  # a laptop that slept over the week-end
    await host.until(lambda: host.fake().texts == ["m"], within_ms=3_000)
