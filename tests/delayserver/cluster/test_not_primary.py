"""A member that does not lead, or may not act as the primary now, says so by name."""

from __future__ import annotations

import pytest

from delayserver.protocol.errors import DelayServerError, NotPrimary
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Client

MESSAGE = {"subject": "s", "body": "b", "delay_ms": 60_000}


async def refusal(client: Client, operation: str = "send", **arguments: object) -> DelayServerError:
    with pytest.raises(DelayServerError) as refused:
        await client.request(operation, arguments or {"messages": [MESSAGE]})
    return refused.value


async def test_a_standby_names_the_primary_and_serves_what_concerns_itself(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await first.start()
    second.begin()
    await second.sleep_ms(1_000)
    client = await second.client()
    for operation in ("send", "pull", "lookup", "route"):
        refused = await refusal(client, operation)
        assert isinstance(refused, NotPrimary), operation
        assert (refused.primary, refused.http) == ("a:1", "http://a:2")
        assert refused.retriable and refused.retry_after_ms
    assert await client.refused("reload", {}) == "not_ready", "who reloads a standby means that one"
    assert (await client.status())["ready"] is False
    await client.request("ping")


async def test_a_standby_that_did_not_read_the_claim_learns_the_primary_from_its_beats(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    await first.start()
    second.begin()
    await second.sleep_ms(5_000)
    await second.kill()
    await first.sleep_ms(5_000)
    second.begin()
    await second.sleep_ms(1_000)
    refused = await refusal(await second.client())
    assert isinstance(refused, NotPrimary) and refused.primary == "a:1"


async def test_a_primary_past_its_lease_answers_nothing_that_must_be_true_now(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    receipt = (await client.put("one", host.now_ms + 60_000))["receipt"]
    cluster.engine.logs[0].connect(False)
    await host.sleep_ms(1_000)
    assert await client.lookup(receipt) == ["pending"], "its lease goes on"
    assert (await client.status())["ready"] is True
    await host.sleep_ms(500)
    status = await client.status()
    assert status["ready"] is False and "shared log" in status["waits_for"]
    for operation in ("lookup", "pull", "cancel", "ack", "groups", "route"):
        refused = await refusal(client, operation)
        assert isinstance(refused, NotPrimary) and not refused.primary, operation
    asked = await client.ask("send", {"messages": [MESSAGE]})
    await host.sleep_ms(4_000)
    assert await client.refused("send", {"messages": [MESSAGE]}) == "log_unavailable"
    assert await client.refused("lookup", {"receipts": [receipt]}) == "log_unavailable"
    cluster.engine.logs[0].connect(True)
    assert len((await client.reply(asked))["results"]) == 1, "it waited, and was not refused"
    await host.sleep_ms(500)
    assert await client.lookup(receipt) == ["pending"]
    assert host.server.parts.cluster is not None and host.server.parts.cluster.standing.epoch.value == 1


async def test_a_primary_whose_machine_slept_past_its_lease_looks_nothing_up(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    host = cluster.hosts["a"]
    client = await host.start_connected()
    receipt = (await client.put("one", host.now_ms + 600_000))["receipt"]
    asked = await client.ask("lookup", {"receipts": [receipt]})
    host.clock.suspend(3_000)
    with pytest.raises(NotPrimary):
        await client.reply(asked)
