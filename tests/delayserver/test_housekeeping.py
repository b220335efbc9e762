"""Windows that are complete are told to the nodes once their minute is over; steps of the clock are counted."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]


async def test_a_node_is_told_of_complete_windows_after_their_minute_and_not_of_others(boot: Boot) -> None:
    host = boot(faked_settings())
    await host.start()
    client = await host.client()
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("done", window_ms + 100)
    host.fake().refuse = lambda batch: batch.sequence == 2
    await client.put("stuck", window_ms + 60_100)
    await host.sleep_ms(30_000)
    assert not host.fake().complete
    await host.sleep_ms(100_000)
    assert host.fake().complete == [window_ms]
    host.fake().refuse = None
    await host.until(lambda: host.fake().complete == [window_ms, window_ms + 60_000], within_ms=60_000)


async def test_slewing_is_no_step(boot: Boot) -> None:
    host = boot()
    await host.start()
    for _ in range(100):
        host.clock.step(1)
        await host.sleep_ms(50)
    assert host.server.status.to_map()["clock"]["steps"] == 0
    host.clock.step(-5_000)
    await host.sleep_ms(600)
    clock = host.server.status.to_map()["clock"]
    assert clock["steps"] == 1
    assert abs(clock["step_last_ms"] + 5_000) <= 20
