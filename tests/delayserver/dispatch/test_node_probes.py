"""A node that is back counts as up again without a message for it: an idle group asks its failing nodes."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.targets.answer import Answer
from delayserver.targets.kinds import Capabilities, TargetKind
from delayserver.targets.registry import KINDS
from delayserver.targets.target import DeliveryError, Target
from store.records.batches import StoredBatch
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, fake_group, small_settings
from tests.fakes.network import FakeNetwork

QUICK = {"backoff_ms_min": 50, "backoff_ms_max": 30_000, "breaker_failures": 3, "deliver_timeout_ms": 1_000}
ALL = (RouteSettings("*", ("remote",)),)


async def states(client: Client) -> dict[str, str]:
    nodes: list[dict[str, Any]] = (await client.request("route", {"subject": "s"}))["nodes"]
    return {node["address"]: node["state"] for node in nodes}


async def test_a_node_that_restarts_counts_as_up_within_seconds(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    nodes = [boot(name=name, role=BROKER, network=network, clock=clock) for name in ("a", "b")]
    group = GroupSettings("remote", (NodeSettings("a:1"), NodeSettings("b:1")))
    server = boot(
        small_settings(groups=(group,), routes=ALL, dispatch=QUICK), name="server", network=network, clock=clock
    )
    for host in (*nodes, server):
        await host.start()
    client = await server.client()
    await nodes[0].kill()
    for number in range(400):  # pauses double, so it fails once in a while until it counts as down
        await client.put(f"{number}", server.now_ms)
        await server.sleep_ms(100)
        if (await states(client))["a:1"] == "down":
            break
    assert (await states(client))["a:1"] == "down"
    await server.settled()
    await server.sleep_ms(20_000)
    assert await states(client) == {"a:1": "down", "b:1": "up"}, "the group is idle, and the node is gone"
    await nodes[0].start()
    await server.sleep_ms(2_000)
    assert await states(client) == {"a:1": "up", "b:1": "up"}
    server.check_balance(pending=0)


async def test_a_node_that_answers_and_refuses_messages_does_not_count_as_up(boot: Boot) -> None:
    settings = small_settings(groups=(fake_group("fake", "fake", "fakeb"),), routes=(RouteSettings("*", ("fake",)),))
    host = await boot.started(settings)
    client, node = await host.client(), host.fake()
    node.up = False
    for number in range(30):
        await client.put(f"{number}", host.now_ms)
        await host.sleep_ms(300)
    await host.settled()
    attempts, failing = len(node.attempts), (await states(client))["fake:1"]
    assert failing in ("failing", "down")
    await host.sleep_ms(60_000)
    assert (await states(client))["fake:1"] == failing, "no probe works"
    assert len(node.attempts) == attempts, "and none of them is an attempt with messages"
    node.up = True
    await host.sleep_ms(2_000)
    assert (await states(client))["fake:1"] == "up"


class Unasked(Target):
    """A target of a kind that cannot be asked whether it is back."""

    address = "unasked://x"

    def __init__(self) -> None:
        self.up = False
        self.tried = 0

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        self.tried += 1
        if not self.up:
            raise DeliveryError("it is down", known=True)
        return Answer.stored(len(batch))


async def test_only_a_message_shows_that_a_node_is_back_that_cannot_be_asked(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, can = Unasked(), Capabilities(consumable=True)
    monkeypatch.setitem(KINDS, "unasked", TargetKind("unasked", lambda *_: can, lambda *_: target))
    group = GroupSettings("remote", (NodeSettings(target.address),))
    host = boot(small_settings(groups=(group,), routes=ALL, dispatch=QUICK | {"dead_letter_attempts": 1}))
    client = await host.start_connected()
    for number in range(3):
        await client.put(f"{number}", host.now_ms)
        await host.sleep_ms(1_000)
    await host.balanced(pending=0)
    tried, failing = target.tried, (await states(client))[target.address]
    assert tried == 3 and failing == "down", "a probe that always works would have ended this"
    target.up = True
    await host.sleep_ms(60_000)
    assert (target.tried, (await states(client))[target.address]) == (tried, failing)
    await client.put("after the pause", host.now_ms)
    await host.sleep_ms(2_000)
    assert (target.tried, (await states(client))[target.address]) == (tried + 1, "up")
