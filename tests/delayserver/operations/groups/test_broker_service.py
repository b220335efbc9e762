"""A consumer of the embedded broker: nack and ack timeout go through the delay pipeline and stay out of the balance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.broker.reads import ReadPlan
from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.protocol.columns import I64, U32, unpack_column
from delayserver.protocol.errors import GroupsFull
from store.records.batches import StoredBatch
from store.tables.names import SUBJECT
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, small_settings, texts
from tests.fakes.network import FakeNetwork


async def settle(client: Client, operation: str, message: dict[str, Any], **rest: Any) -> dict[str, Any]:
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]}
    return await client.request(operation, arguments | rest)


async def test_a_nack_brings_the_message_again_after_its_delay_with_the_attempt_counted(boot: Boot) -> None:
    host, client = await boot.connected()
    sent = await client.put("m", host.now_ms, message_id="mine", properties={"a": "b"})
    (message,) = await client.pull(wait_ms=1_000)
    for attempt in range(2, 5):
        before_ms = host.now_ms
        assert await settle(client, "nack", message, delay_ms=2_000) == {"nacked": 1, "unknown": 0}
        assert await settle(client, "nack", message, delay_ms=2_000) == {"nacked": 0, "unknown": 1}
        (message,) = await client.pull(wait_ms=10_000)
        assert 2_000 <= host.now_ms - before_ms < 2_100
        assert (message["attempt"], message["message_id"], message["body"]) == (attempt, "mine", b"m")
        assert message["properties"] == {"a": "b"}
    assert await settle(client, "ack", message) == {"acked": 1, "unknown": 0}
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["delivered"]) == (1, 1)
    assert await client.lookup(sent["receipt"]) == ["delivered"]
    await host.restart_killed()
    assert host.check_balance(pending=0)["accepted"] == 1
    assert await (await host.client()).pull() == []


async def test_the_bound_of_consumer_groups_is_a_setting(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(broker={"groups_max": 2}))
    await client.put("m", host.now_ms)
    for group in ("one", "two", "one"):
        await client.pull(group=group, wait_ms=1_000)
    with pytest.raises(GroupsFull, match="groups_max"):
        await client.pull(group="three")


async def test_an_unacked_message_comes_again_after_its_timeout_and_only_to_its_group(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms)
    (one,) = await client.pull(wait_ms=1_000, ack_timeout_ms=3_000)
    (other,) = await client.pull(group="other", wait_ms=1_000)
    await settle(client, "ack", other, group="other")
    assert await client.pull(wait_ms=2_000) == []
    (again,) = await client.pull(wait_ms=5_000)
    assert (again["attempt"], again["message_id"]) == (2, one["message_id"])
    assert await client.pull(group="other", wait_ms=5_000) == []
    assert await settle(client, "ack", one) == {"acked": 0, "unknown": 1}
    await settle(client, "ack", again)
    await host.balanced(pending=0)


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_loss_of_power_only_messages_without_an_ack_come_again(boot: Boot, seed: int) -> None:
    host, client = await boot.connected()
    for number in range(6):
        await client.put(str(number), host.now_ms)
    await host.sleep_ms(100)
    messages = await client.pull(wait_ms=1_000)
    for message in messages[:3]:
        await settle(client, "ack", message)
    await settle(client, "nack", messages[3], delay_ms=0)
    await host.restart_unpowered(seed)
    client = await host.client()
    got: list[str] = []
    for _ in range(5):
        got += texts(await client.pull(wait_ms=500))
    acked = {message["body"].decode() for message in messages[:3]}
    assert sorted(got) == sorted({str(number) for number in range(6)} - acked)


async def test_an_arrival_answers_a_waiting_pull_in_columns(boot: Boot) -> None:
    host = await boot.started()
    client, sender = await host.client(), await host.client()
    waiting = await client.ask(
        "pull", {"subject": "s", "group": "g", "max_messages": 9, "wait_ms": 30_000, "columns": True}
    )
    await host.sleep_ms(500)
    sent = await sender.put("body", host.now_ms + 200, message_id="id")
    await host.sleep_ms(150)
    got = await client.reply(waiting)
    assert host.now_ms - sent["due_ms"] < 20
    assert got["count"] == 1
    assert got["bodies"] == b"body"
    assert got["message_ids"] == b"id"
    assert unpack_column(got["sequence"], 1, I64, "sequence").tolist() == [sent["sequence"]]
    assert unpack_column(got["attempt"], 1, U32, "attempt").tolist() == [1]
    empty = await client.request(
        "pull", {"subject": "s", "group": "g", "max_messages": 9, "wait_ms": 100, "columns": True}
    )
    assert empty["count"] == 0


async def test_an_id_stays_used_after_delivery_cancel_and_expiry(boot: Boot) -> None:
    host, client = await boot.connected()
    due_ms = host.now_ms + 100
    await client.put("delivered", due_ms, message_id="d")
    cancelled = await client.put("cancelled", due_ms, message_id="c")
    await client.put("expired", due_ms, message_id="e", expires_ms=due_ms - 1)
    await client.cancel(cancelled["receipt"])
    await host.sleep_ms(1_000)
    copies = [await client.put("copy", due_ms, message_id=name) for name in ("d", "c", "e")]
    other_subject = await client.put("other subject", due_ms, subject="t", message_id="d")
    other_due = await client.put("other due", due_ms + 1, message_id="d")
    await host.sleep_ms(1_000)
    assert await client.lookup(*[copy["receipt"] for copy in copies]) == ["deduplicated"] * 3
    assert await client.lookup(other_subject["receipt"], other_due["receipt"]) == ["delivered"] * 2
    assert sorted(texts(await client.pull())) == ["delivered", "other due"]
    assert (await host.balanced(pending=0))["deduplicated"] == 3
    await host.restart_killed()
    client = await host.client()
    late = await client.put("copy", due_ms, message_id="d")
    assert await client.lookup(late["receipt"]) == ["deduplicated"]


async def test_messages_of_several_servers_in_one_pull_name_each_its_own(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("mine", host.now_ms)
    await host.sleep_ms(100)
    subject = host.server.parts.files.names.code(SUBJECT, "s")
    for server_id in (0xABC, 0xDEF, 0xABC):
        batch = StoredBatch.filled(2, sequence=np.array([5, 6]), server_id=server_id, subject=subject)
        host.server.parts.broker.core.arrivals.deliver(batch, host.clock.now_us())
    pulled = await client.request("pull", {"subject": "s", "group": "g", "max_messages": 9, "columns": True})
    index = unpack_column(pulled["server_index"], 7, U32, "server_index").tolist()
    own = f"{host.server.parts.opened.directory.server_id:012x}"
    pairs = ["000000000abc"] * 2, ["000000000def"] * 2
    assert [pulled["server_ids"][place] for place in index] == [own, *pairs[0], *pairs[1], *pairs[0]]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_a_step_of_the_wall_clock_does_not_change_the_duration_of_a_lease(boot: Boot, step_ms: int) -> None:
    host, client = await boot.connected()
    await client.put("m", host.now_ms)
    (message,) = await client.pull(wait_ms=1_000, ack_timeout_ms=2_000)
    assert message["attempt"] == 1
    host.clock.step(step_ms)
    await host.sleep_ms(1_500)
    assert await client.pull() == []
    await host.sleep_ms(1_000)
    (again,) = await client.pull(wait_ms=1_000)
    assert (again["body"], again["attempt"]) == (b"m", 2)


async def test_an_ack_makes_no_consumer_group(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(broker={"groups_max": 2}))
    await client.put("m", host.now_ms)
    (message,) = await client.pull(group="one", wait_ms=1_000)
    for group in ("typo", "tipo", "typ0"):
        arguments = {"subject": "s", "group": group, "count": 1, "deliveries": message["delivery"]}
        assert await client.request("ack", arguments) == {"acked": 0, "unknown": 1}
    assert (await client.status())["broker"]["groups"] == 1


async def test_two_groups_may_name_the_same_node(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = boot(name="node", role=BROKER, network=network, clock=clock)
    groups = tuple(GroupSettings(name, (NodeSettings("node:1"),)) for name in ("one", "two"))
    routes = (RouteSettings("a*", ("one",)), RouteSettings("*", ("two",)))
    server = boot(small_settings(groups=groups, routes=routes), name="server", network=network, clock=clock)
    await node.start()
    client = await server.start_connected()
    for number in range(3):
        for subject in ("a", "b"):
            await client.put(f"{subject}{number}", server.now_ms, subject=subject)
            await server.sleep_ms(200)
    await server.sleep_ms(10_000)
    consumer = await node.client()
    assert texts(await consumer.pull("b")) == ["b0", "b1", "b2"]
    assert texts(await consumer.pull("a")) == ["a0", "a1", "a2"]


async def test_a_lease_ends_in_time_while_the_disk_reads_for_another_group(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(broker={"segment_bytes": 1 << 22, "cache_bytes_max": 1 << 20}))
    await client.put("m", host.now_ms, "slow")
    await client.pull("slow", wait_ms=1_000, ack_timeout_ms=2_000)
    for _ in range(3):  # the record of the first message leaves memory, and one read does not bring both
        await client.put("m" * 900_000, host.now_ms, "between")
    await client.put("m", host.now_ms)
    await client.pull(wait_ms=1_000, ack_timeout_ms=4_000)

    async def slowly(name: str, work: Callable[[], Any]) -> Any:
        if name == "run" and isinstance(getattr(work, "__self__", None), ReadPlan) and not reads:
            reads.append(name)
            await host.sleep_ms(30_000)
        return work()

    reads: list[str] = []
    host.workers.around = slowly
    await host.sleep_ms(3_000)
    assert reads, "the lease of the other group has ended"
    (again,) = await client.pull(wait_ms=5_000)
    assert again["attempt"] == 2
    (again,) = await client.pull("slow", wait_ms=60_000)
    assert again["attempt"] == 2


@pytest.mark.parametrize("outlive_ms", [0, 3_000])
async def test_leases_that_shall_end_with_their_connection_do_and_others_do_not(boot: Boot, outlive_ms: int) -> None:
    host = await boot.started()
    dying, living = await host.client(), await host.client()
    for body in ("acked", "extended", "lost", "plain"):
        await living.put(body, host.now_ms)
    owned = await dying.pull(wait_ms=1_000, max_messages=3, ack_timeout_ms=600_000, outlive_ms=outlive_ms)
    await dying.pull(wait_ms=1_000, ack_timeout_ms=600_000)
    assert [message["body"] for message in owned] == [b"acked", b"extended", b"lost"]
    await settle(living, "extend", owned[1], ack_timeout_ms=600_000, outlive_ms=0)
    dying.transport.close()
    if outlive_ms:
        assert await living.pull(wait_ms=outlive_ms - 500) == []
        assert await settle(living, "ack", owned[0]) == {"acked": 1, "unknown": 0}
    again = [message for _ in owned for message in await living.pull(wait_ms=1_000)]
    expected = [(b"lost", 2)] if outlive_ms else [(b"acked", 2), (b"lost", 2)]
    assert sorted((message["body"], message["attempt"]) for message in again) == expected
    assert await settle(living, "ack", owned[1]) == {"acked": 1, "unknown": 0}
    (group,) = (await living.request("groups"))["groups"]
    assert group["leased"] == 1 + len(again)


async def test_a_nack_whose_connection_ends_at_any_step_leaves_its_message_to_somebody(boot: Boot) -> None:
    host, living = await boot.connected()
    for steps in range(24):
        leaving = await host.client()
        await living.put(str(steps), host.now_ms)
        (message,) = await leaving.pull(wait_ms=1_000, ack_timeout_ms=600_000)
        await leaving.ask(
            "nack",
            {
                "subject": "s",
                "group": "g",
                "delay_ms": 0,
                "unseen": True,
                "count": 1,
                "deliveries": message["delivery"],
            },
        )
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        leaving.transport.close()
        await host.sleep_ms(1_000)
        (group,) = (await living.request("groups"))["groups"]
        if group["leased"]:  # the server had not begun the nack
            await settle(living, "nack", message, delay_ms=0)
        (again,) = await living.pull(wait_ms=1_000)
        assert again["body"] == b"%d" % steps
        await settle(living, "ack", again)


async def test_a_poison_message_that_ends_its_consumers_is_given_up(boot: Boot) -> None:
    host, client = await boot.connected()
    await client.put("poison", host.now_ms)
    await client.pull(wait_ms=1_000, max_messages=1, ack_timeout_ms=1)
    await client.request("policy", {"subject": "s", "group": "g", "set": {"attempts": 4}})
    attempts = []
    for _ in range(3):
        dying = await host.client()
        attempts += [each["attempt"] for each in await dying.pull(wait_ms=60_000, ack_timeout_ms=600_000, outlive_ms=0)]
        dying.transport.close()
    assert attempts == [2, 3, 4]
    assert await client.pull(wait_ms=60_000) == []
    (letter,) = (await client.request("dead_letters", {"subject": "s", "group": "g", "action": "list"}))["letters"]
    assert (letter["reason"], letter["text"]) == ("ack_timeout", "the connection of its consumer ended")
