"""Nothing that has expired is handed to anybody: not by the dispatcher, not by the broker at any pull of any group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.protocol.columns import I64, unpack_column
from store.records.column_batch import constant_column
from store.records.expiry import expired_rows
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, Host, faked_settings, small_settings, texts
from tests.fakes.network import FakeNetwork


class OversleepingClock(SimulatedClock):
    """Wakes some milliseconds after the moment that was asked for, as a busy machine does."""

    async def sleep_until_us(self, wall_us: int) -> None:
        await trio.sleep(self.wait_s(wall_us) + 0.003)


async def settle(client: Client, operation: str, message: dict[str, Any], **rest: Any) -> dict[str, Any]:
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]}
    return await client.request(operation, arguments | rest)


async def expired_of(host: Host, client: Client) -> dict[str, int]:
    """The count of each consumer group, by its name."""
    return {group["group"]: group["expired"] for group in (await client.request("groups"))["groups"]}


@pytest.mark.parametrize(
    ("expires_ms", "now_us", "expired"),
    [
        (0, 1 << 50, False),
        (1_000, 999_999, False),
        (1_000, 1_000_000, True),
        (1_000, 1_000_999, True),
        ((1 << 62) - 1, 1 << 50, False),
    ],
)
def test_a_message_has_expired_from_the_very_millisecond_on(expires_ms: int, now_us: int, expired: bool) -> None:
    for column in (constant_column(expires_ms, 2, I64), np.array([expires_ms, 0], np.int64)):
        found = expired_rows(column, now_us)
        assert (found is not None and bool(found[0])) == expired
        assert found is None or found[1] == (column.strides == (0,))


async def test_the_dispatcher_does_not_deliver_in_the_very_millisecond_of_expiry(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 500
    at = await client.put("at its expiry", due_ms, expires_ms=due_ms)
    before = await client.put("a moment before", due_ms, expires_ms=due_ms + 1)
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["a moment before"]
    assert await client.lookup(at["receipt"], before["receipt"]) == ["expired", "delivered"]
    assert (await host.balanced(pending=0))["expired"] == 1


async def test_the_dispatcher_compares_the_expiry_with_the_time_that_it_stamps(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(), clock=OversleepingClock())
    due_ms = host.now_ms + 500
    short = await client.put("short", due_ms, expires_ms=due_ms + 2)
    long = await client.put("long", due_ms, expires_ms=due_ms + 1_000)
    await host.sleep_ms(1_000)
    assert host.fake().texts == ["long"]
    assert await client.lookup(short["receipt"], long["receipt"]) == ["expired", "delivered"]


async def test_a_pull_says_when_each_message_expires(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms
    for expires_ms in (due_ms + 60_000, 0):
        await client.put("m", due_ms, expires_ms=expires_ms)
    await host.sleep_ms(100)
    rows = await client.pull(wait_ms=1_000)
    assert [row["expires_ms"] for row in rows] == [due_ms + 60_000, 0]
    arguments = {"subject": "s", "group": "other", "max_messages": 9, "columns": True}
    columns = await client.request("pull", arguments)
    assert unpack_column(columns["expires_ms"], 2, I64, "expires_ms").tolist() == [due_ms + 60_000, 0]


async def test_no_group_is_handed_an_expired_message_and_each_group_counts_it(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms
    receipts = [
        (await client.put(body, due_ms, expires_ms=expires_ms))["receipt"]
        for body, expires_ms in (("a", 0), ("b", due_ms + 2_000), ("c", 0), ("d", due_ms + 2_000))
    ]
    await host.sleep_ms(due_ms + 2_000 - host.now_ms)
    assert await client.lookup(*receipts) == ["delivered"] * 4
    pulled = await client.pull()
    assert texts(pulled) == ["a", "c"]
    for message in pulled:
        assert await settle(client, "ack", message) == {"acked": 1, "unknown": 0}
    assert texts(await client.pull(group="late")) == ["a", "c"]
    assert await expired_of(host, client) == {"g": 2, "late": 2}
    await host.sleep_ms(100)
    await host.restart_killed()
    client = await host.client()
    assert await expired_of(host, client) == {"g": 2, "late": 2}
    assert texts(await client.pull()) == []


async def test_a_nack_behind_the_expiry_ends_as_expired_and_is_counted(boot: Boot) -> None:
    host, client = await boot.connected()
    sent = await client.put("m", host.now_ms, expires_ms=host.now_ms + 1_000)
    await client.put("other", host.now_ms)
    await host.sleep_ms(100)
    message, other = await client.pull(wait_ms=1_000)
    await host.sleep_ms(1_000)
    both = {"count": 2, "deliveries": np.array([message["delivery"], other["delivery"]]).tobytes()}
    nacked = await client.request("nack", {"subject": "s", "group": "g", "delay_ms": 0} | both)
    assert nacked == {"nacked": 2, "unknown": 0, "expired": 1}
    assert texts(await client.pull(wait_ms=1_000)) == ["other"]
    assert texts(await client.pull(wait_ms=70_000 - 10_000)) == []
    assert await expired_of(host, client) == {"g": 1}
    assert await client.lookup(sent["receipt"]) == ["delivered"]
    await host.restart_unpowered()
    assert await expired_of(host, await host.client()) == {"g": 1}


async def test_a_nack_whose_delay_reaches_the_expiry_ends_as_expired(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms, expires_ms=host.now_ms + 5_000)
    (message,) = await client.pull(wait_ms=1_000)
    assert await settle(client, "nack", message, delay_ms=5_000) == {"nacked": 1, "unknown": 0, "expired": 1}
    assert await expired_of(host, client) == {"g": 1}


async def test_a_lease_that_ends_behind_the_expiry_ends_as_expired(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("short", host.now_ms, expires_ms=host.now_ms + 1_000)
    await client.put("long", host.now_ms, expires_ms=host.now_ms + 60_000)
    await host.sleep_ms(100)
    assert len(await client.pull(wait_ms=1_000, ack_timeout_ms=2_000)) == 2
    (again,) = await client.pull(wait_ms=20_000)
    assert (again["body"], again["attempt"]) == (b"long", 2)
    assert await expired_of(host, client) == {"g": 1}


async def test_a_redelivery_that_expires_on_its_way_is_counted_for_its_group(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms, expires_ms=host.now_ms + 5_000)
    (message,) = await client.pull(wait_ms=1_000)
    assert await settle(client, "nack", message, delay_ms=1_000) == {"nacked": 1, "unknown": 0}
    await host.kill()
    host.clock.step(60_000)
    client = await host.start_connected()
    assert await client.pull(wait_ms=5_000) == []
    assert await expired_of(host, client) == {"g": 1}


async def test_expired_messages_before_a_live_one_do_not_end_a_pull_early(boot: Boot) -> None:
    """A pull passes over a bounded number of messages in one step, and goes on in the next."""
    host, client = await boot.connected(small_settings(broker={"pull_messages_max": 5}))
    for number in range(23):
        await client.put(str(number), host.now_ms, expires_ms=host.now_ms + 1_000)
    await client.put("live", host.now_ms)
    await host.sleep_ms(1_500)
    assert texts(await client.pull(max_messages=5)) == ["live"]
    assert texts(await client.pull(group="late", max_messages=5, wait_ms=1_000)) == ["live"]
    assert await expired_of(host, client) == {"g": 23, "late": 23}


async def test_a_lone_node_does_not_hand_out_expired_messages(boot: Boot) -> None:
    network = FakeNetwork()
    routes = (RouteSettings("*", ("far",)),)
    settings = small_settings(groups=(GroupSettings("far", (NodeSettings("node:1"),)),), routes=routes)
    server = boot(settings, network=network)
    node = await boot.started(name="node", role=BROKER, network=network)
    await server.start()
    client, consumer = await server.client(), await node.client()
    await client.put("short", server.now_ms, expires_ms=server.now_ms + 1_000)
    await client.put("long", server.now_ms, expires_ms=server.now_ms + 60_000)
    await server.sleep_ms(1_500)
    (message,) = await consumer.pull()
    assert message["body"] == b"long"
    assert (await consumer.status())["broker"]["expired"] == 1
