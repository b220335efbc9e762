"""A reload at a member: what was read last counts for whoever leads, also in a later life of the same process."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import trio

from delayserver.config.settings import RouteSettings, Settings
from delayserver.runtime.runtime import Runtime
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors
from delayserver.server.lives import Lives
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.broker import FakeBroker
from tests.fakes.host import Boot, Client, fake_group, faked_settings


def renewed(settings: Settings) -> Settings:
    """With another group instead."""
    return replace(settings, groups=(fake_group("fakeNew"),), routes=(RouteSettings("*", ("fakeNew",)),))


async def test_a_standby_takes_over_what_it_has_read_again_when_it_leads(boot: Boot) -> None:
    cluster = Cluster(boot, "ab", faked_settings())
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(500)
    second.settings = renewed(second.settings)
    second.brokers["fakeNew:1"] = FakeBroker(second.clock, "fakeNew:1")
    assert await second.server.parts.dispatch.reload.reload() != []
    await client.put("here", first.now_ms, subject="a-new-name")
    await client.put("there", first.now_ms + 30_000, subject="a-new-name")
    await first.sleep_ms(500)
    assert second.died_of is None
    await first.kill()
    await second.wait_up()
    await second.sleep_ms(40_000)
    assert second.fake("fakeNew").texts == ["there"]
    assert await second.server.parts.dispatch.reload.reload() == []


async def test_the_next_life_of_a_process_has_the_settings_that_were_read_last(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    given, latest = host.settings, renewed(host.settings)
    listener = host.network.listen("a")
    led = trio.Event()

    def begin(settings: Settings) -> DelayServer:
        return DelayServer(
            settings,
            runtime=Runtime.on(clock=host.clock, chance=Random(1), workers=host.workers),
            doors=Doors(host.disk, host.network.connect),
            reread=lambda: latest,
            membership=cluster.membership("a", 0),
        )

    lives = Lives(begin, given)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lives.run, listener, None, "a:1", lambda _host, _port: led.set())
        with trio.fail_after(60):
            await led.wait()
        client = Client(await host.network.connect("a:1"))
        await client.request("reload")
        led = trio.Event()
        await client.request("cluster", {"action": "switch", "member": "gone"})
        with trio.fail_after(60):
            await led.wait()
        assert [group.name for group in lives.server.parts.dispatch.groups] == ["fakeNew"]
        lives.stop()
