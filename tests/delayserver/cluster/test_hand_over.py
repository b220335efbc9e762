"""A planned change of the leadership: nothing is refused for long, nothing is lost, and nothing is in doubt."""

from __future__ import annotations

import pytest
import trio

from delayserver.protocol.errors import NotPrimary
from delayserver.server.delay_server import LeadershipLost
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot

BRIEF_MS = 500


async def test_the_heir_serves_at_once_and_nothing_is_uncertain(boot: Boot) -> None:
    cluster = Cluster(boot, "abc")
    first, heir, other = cluster.hosts.values()
    client = await cluster.start()
    await client.put("early", first.now_ms + 1_000)
    soon = await client.put("soon", first.now_ms + 2_900)
    await client.put("late", first.now_ms + 60_000)
    await first.sleep_ms(1_500)
    begun_ms = first.now_ms
    assert await client.request("cluster", {"action": "switch", "member": "b"}) == {"epoch": 1}
    await heir.wait_up()
    assert heir.now_ms - begun_ms < BRIEF_MS
    await first.wait_down()
    assert isinstance(first.died_of, LeadershipLost)
    client = await heir.client()
    standing = await client.request("cluster", {"action": "show"})
    assert (standing["member"], standing["role"], standing["epoch"], standing["primary"]) == ("b", "primary", 2, "b")
    standing = await (await other.client()).request("cluster", {"action": "show"})
    assert (standing["role"], standing["epoch"], standing["primary"], standing["lag_ms"]) == ("standby", 2, "b", 0)
    # It is due within the horizon of the former primary, which has settled what it had begun.
    assert await client.cancel(soon["receipt"]) == ["cancelled"]
    await heir.sleep_ms(70_000)
    assert cluster.delivered == ["early", "late"]
    assert cluster.node.uncertain == set()


async def test_a_primary_that_reads_the_claim_of_its_heir_with_its_own_end_has_handed_over(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, heir = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_500)
    log = cluster.engine.logs[0]
    log.pause()

    async def resume_when_it_leads() -> None:
        await heir.wait_up()
        log.resume()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(resume_when_it_leads)
        assert await client.request("cluster", {"action": "switch", "member": "b"}) == {"epoch": 1}


async def test_a_primary_that_hands_over_begins_no_attempt_while_a_send_is_on_its_way(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, heir = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_500)
    await client.put("soon", first.now_ms + 150)
    log = cluster.engine.logs[0]
    log.pause()
    sent = await client.ask("send", {"messages": [{"subject": "s", "body": "late", "due_ms": first.now_ms + 60_000}]})
    await first.sleep_ms(20)
    switched = await client.ask("cluster", {"action": "switch", "member": "b"})
    await first.sleep_ms(220)
    assert cluster.delivered == []
    log.resume()
    await client.reply(sent)
    assert await client.reply(switched) == {"epoch": 1}
    await heir.wait_up()
    await heir.sleep_ms(70_000)
    assert cluster.delivered == ["soon", "late"]


@pytest.mark.parametrize("stops", [False, True])
async def test_clients_are_told_to_look_for_the_next_primary_from_the_begin_of_a_hand_over(
    boot: Boot, stops: bool
) -> None:
    cluster = Cluster(boot, "ab")
    first, heir = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_500)
    log = cluster.engine.logs[0]
    log.pause()  # a send is on its way, so the hand-over takes a while
    at_once = {"subject": "s", "body": "x", "due_ms": first.now_ms}
    sent = await client.ask("send", {"messages": [at_once]})
    await first.sleep_ms(20)
    if stops:
        first.server.stop()
    else:
        await client.ask("cluster", {"action": "switch", "member": "b"})
    await first.sleep_ms(20)
    with pytest.raises(NotPrimary, match="hands over") as refused:
        await client.request("send", {"messages": [at_once]})
    assert refused.value.retry_after_ms is not None
    assert refused.value.retry_after_ms <= BRIEF_MS / 2
    log.resume()
    await client.reply(sent)
    await heir.wait_up()


@pytest.mark.parametrize("gone_after_ms", [20, 300])
@pytest.mark.parametrize("names", ["a", "ab"])
async def test_a_hand_over_goes_on_when_who_asked_for_it_is_gone(boot: Boot, names: str, gone_after_ms: int) -> None:
    cluster = Cluster(boot, names)
    first = cluster.hosts["a"]
    client = await first.start_connected()
    for other in [host for host in cluster.hosts.values() if host is not first]:
        other.begin()
    await first.sleep_ms(1_500)
    log = cluster.engine.logs[0]
    log.pause()
    await client.ask("send", {"messages": [{"subject": "s", "body": "sent", "due_ms": first.now_ms + 30_000}]})
    await first.sleep_ms(20)
    asking = await first.client()
    await asking.ask("cluster", {"action": "switch", "member": "b"})
    await first.sleep_ms(gone_after_ms)
    asking.transport.close()
    await first.sleep_ms(20)
    log.resume()
    await first.wait_down()
    first.disk.kill()
    first.begin()
    heir = cluster.hosts[names[-1]]
    await heir.wait_up()
    assert heir.server.readiness.ready
    await (await heir.client()).put("late", heir.now_ms)
    await heir.sleep_ms(40_000)
    assert cluster.delivered == ["late", "sent"]


async def test_without_its_heir_another_member_leads(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", first.now_ms + 30_000)
    await second.sleep_ms(1_000)
    soon = await client.put("soon", first.now_ms + 2_900)
    await client.request("cluster", {"action": "switch", "member": "gone"})
    await first.wait_down()
    await second.wait_up()
    # No beat of the former primary came behind its end.
    assert await (await second.client()).cancel(soon["receipt"]) == ["cancelled"]
    await second.sleep_ms(40_000)
    assert cluster.delivered == ["one"]


async def test_a_lone_member_whose_heir_is_gone_leads_again_in_its_next_life(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    (only,) = cluster.hosts.values()
    client = await only.start_connected()
    await client.put("one", only.now_ms + 30_000)
    await client.request("cluster", {"action": "switch", "member": "gone"})
    await only.wait_down()
    assert isinstance(only.died_of, LeadershipLost)
    only.disk.kill()
    only.begin()
    await only.wait_up()
    await only.sleep_ms(40_000)
    assert cluster.delivered == ["one"]


async def test_a_primary_that_stops_hands_over_to_any(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    client = await cluster.start()
    await client.put("one", first.now_ms + 30_000)
    await second.sleep_ms(1_000)
    begun_ms = first.now_ms
    first.server.stop()
    await second.wait_up()
    assert second.now_ms - begun_ms < 2 * BRIEF_MS, "rank 1 waits for rank 0, which is not there"
    await first.wait_down()
    await second.sleep_ms(40_000)
    assert cluster.delivered == ["one"]


async def test_only_the_primary_hands_over(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    _, second = cluster.hosts.values()
    client = await cluster.start()
    await second.sleep_ms(3_000)
    standby = await second.client()
    assert await standby.refused("cluster", {"action": "switch", "member": "b"}) == "not_primary"
    assert await client.refused("cluster", {"action": "switch", "member": "a"}) == "invalid_argument"
    assert (await client.request("cluster", {"action": "show"}))["role"] == "primary"


async def test_a_server_without_a_cluster_says_so(boot: Boot) -> None:
    client = await boot().start_connected()
    assert await client.refused("cluster", {"action": "show"}) == "invalid_argument"


async def test_a_stop_lets_a_hand_over_end_that_was_begun(boot: Boot) -> None:
    """Otherwise the heir would have to wait until the primary is silent for long enough."""
    cluster = Cluster(boot, "abc")
    first, _, heir = cluster.hosts.values()
    client = await cluster.start()
    await first.sleep_ms(1_500)
    cluster.engine.logs[0].pause()  # a send is on its way, so the hand-over takes a while
    await client.ask("send", {"messages": [{"subject": "s", "body": "late", "due_ms": first.now_ms + 60_000}]})
    await first.sleep_ms(20)
    begun_ms = first.now_ms
    await client.ask("cluster", {"action": "switch", "member": "c"})
    await first.sleep_ms(20)
    first.server.stop()
    await first.sleep_ms(20)
    cluster.engine.logs[0].resume()
    await heir.wait_up()
    assert heir.now_ms - begun_ms < BRIEF_MS
    await first.wait_down()
    await heir.sleep_ms(70_000)
    assert cluster.delivered == ["late"]
