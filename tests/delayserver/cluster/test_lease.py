"""Past its lease a primary hands nothing out and begins no attempt, also where its process stood still."""

from __future__ import annotations

import pytest
import trio

from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Host, small_settings, texts


def epoch(host: Host) -> int:
    cluster = host.server.parts.cluster
    assert cluster is not None
    return cluster.standing.epoch.value


async def test_a_primary_that_is_cut_off_begins_no_attempt_beyond_its_lease(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    for delay_ms in (500, 2_000, 3_500):
        await client.put(f"{delay_ms}", host.now_ms + delay_ms)
    cluster.engine.logs[0].connect(False)
    await host.sleep_ms(10_000)
    assert cluster.delivered == ["500"]
    cluster.engine.logs[0].connect(True)
    await host.sleep_ms(500)
    assert cluster.delivered == ["500", "2000", "3500"], "the beats go on, and all that is overdue leaves"
    assert epoch(host) == 1


async def test_a_primary_whose_machine_slept_attempts_nothing_before_a_beat_has_come_back(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    await client.put("due meanwhile", host.now_ms + 20_000)
    await host.sleep_ms(1_000)
    cluster.engine.logs[0].connect(False)  # nobody knows yet what the log says now
    host.clock.suspend(30_000)
    await host.sleep_ms(5_000)
    assert cluster.delivered == []
    cluster.engine.logs[0].connect(True)
    await host.sleep_ms(1_000)
    assert cluster.delivered == ["due meanwhile"]


async def test_what_was_taken_for_an_attempt_before_the_lease_ended_is_not_handed_over_behind_it(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    await client.put("taken", host.now_ms + 2_000)
    group = next(iter(host.server.parts.dispatch.groups))
    read = group.reader.read

    async def slow(shipment: object) -> object:
        batch = await read(shipment)  # type: ignore[arg-type]
        cluster.engine.logs[0].connect(False)
        host.clock.suspend(5_000)
        return batch

    group.reader.read = slow  # type: ignore[assignment, method-assign]
    await host.sleep_ms(8_000)
    assert cluster.delivered == []


@pytest.mark.parametrize("delay_ms", [2_500, 20_000])
async def test_a_message_that_a_successor_cancels_was_not_attempted(boot: Boot, delay_ms: int) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    receipt = (await client.put("maybe", first.now_ms + delay_ms))["receipt"]
    await first.sleep_ms(500)
    cluster.engine.logs[0].connect(False)
    await second.wait_up()
    other = await second.client()
    (outcome,) = await other.cancel(receipt)
    await second.sleep_ms(30_000)
    assert (outcome == "cancelled") == (cluster.delivered == []), (outcome, cluster.delivered)


async def test_a_waiting_pull_gets_nothing_past_the_lease_and_goes_on_with_the_next_beat(boot: Boot) -> None:
    cluster = Cluster(boot, "a", small_settings())
    host = cluster.hosts["a"]
    client = await host.start_connected()
    await client.put("one", host.now_ms + 100)
    (leased,) = await client.pull(wait_ms=5_000, outlive_ms=0)
    assert texts([leased]) == ["one"]
    other = await host.client()
    asked = await other.ask(
        "pull", {"subject": "s", "group": "g", "max_messages": 9, "wait_ms": 20_000, "ack_timeout_ms": 60_000}
    )
    await host.sleep_ms(100)
    cluster.engine.logs[0].connect(False)
    await host.sleep_ms(2_000)
    client.transport.close()
    await host.sleep_ms(2_000)
    await host.until(lambda: host.connections == 1)
    with trio.move_on_after(2):
        await other.take()
    assert not other.replies, "its lease has ended with its connection, and perhaps another primary handed it out"
    cluster.engine.logs[0].connect(True)
    assert texts((await other.reply(asked))["messages"]) == ["one"]
