"""Notices: frames that answer no request, for clients that asked for them."""

from __future__ import annotations

from delayserver.protocol.frames import CLOCK_STEPPED
from tests.fakes.host import Boot


async def test_a_client_that_asked_hears_of_a_step_within_half_a_second_and_others_hear_nothing(boot: Boot) -> None:
    host = await boot.started()
    asked, other = await host.client(), await host.client()
    await asked.request("hello", {"versions": [1], "notices": True})
    await other.request("hello", {"versions": [1]})
    for step_ms in (3_600_000, -7_200_000):
        host.clock.step(step_ms)
        stepped_us = host.clock.now_us()
        await asked.take()
        notice = asked.replies.pop(0)
        assert notice.result is not None
        assert stepped_us <= notice.result[CLOCK_STEPPED] <= host.clock.now_us() <= stepped_us + 500_000
    await other.request("ping")
    assert 0 not in other.replies


async def test_notices_is_a_boolean(boot: Boot) -> None:
    _, client = await boot.connected()
    assert await client.refused("hello", {"versions": [1], "notices": 1}) == "invalid_argument"
