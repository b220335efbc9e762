"""The operation `metrics` has all figures in one answer, and its lists are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.operations.figures import metrics
from tests.delayserver.front.test_guard import tokens
from tests.fakes.host import Boot, Client, small_settings


async def ask(client: Client) -> dict[str, Any]:
    return await client.request("metrics")


async def test_lateness_is_counted_by_broker_group_and_stages_by_batch(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.send(*[{"subject": "s", "body": "", "due_ms": host.now_ms + 300} for _ in range(7)])
    await host.sleep_ms(1_000)
    await host.settled()
    figures = await ask(client)
    status = await client.status()
    assert figures.keys() > status.keys()
    assert (figures["delivered"], figures["pending"]) == (7, 0)
    lateness = figures["lateness"]["default"]
    assert len(lateness["counts"]) == len(lateness["bounds_us"]) + 1
    assert (sum(lateness["counts"]), lateness["early"]) == (7, 0)
    assert (lateness["bounds_us"][0], lateness["bounds_us"][-1]) == (500, 3_600_000_000)
    stages = figures["stages"]
    for name in ("decode", "commit_wait", "sync", "replay_lag", "load", "wheel", "queue", "hand_off", "settle"):
        assert len(stages[name]["counts"]) == len(stages[name]["bounds_us"]) + 1
        if name != "load":  # a message that is due at once needs none
            assert sum(stages[name]["counts"]) > 0, name


async def test_queues_have_their_bounds(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.put("", host.now_ms + 1_000)
    await host.settled()
    queues = (await ask(client))["queues"]
    assert len({(queue["name"], queue.get("group")) for queue in queues}) == len(queues)
    assert all(0 <= queue["used"] <= queue["bound"] for queue in queues)
    used = {queue["name"]: queue["used"] for queue in queues}
    assert (used["memory_rows"], used["connections"], used["subjects"]) == (1, 1, 1)
    assert [queue["group"] for queue in queues if queue["name"] == "group_rows"] == ["default"]


async def test_consumer_groups_have_their_lag_and_oldest_message(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms
    await client.send(*[{"subject": "s", "body": "", "due_ms": due_ms} for _ in range(5)])
    await host.sleep_ms(200)
    for group in ("a", "b", "c"):
        pulled = await client.request("pull", {"subject": "s", "group": group, "max_messages": 2})
        deliveries = [message["delivery"] for message in pulled["messages"]]
        if group == "a":
            for delivery in deliveries:
                await client.request("ack", {"subject": "s", "group": group, "count": 1, "deliveries": delivery})
    expected = {"subject": "s", "group": "b", "lag": 5, "leased": 2, "retrying": 0, "oldest_ms": due_ms}
    expected |= {"dead_letters": 0, "waiting_keys": 0}
    figures = await ask(client)
    assert figures["consumer_groups"][0] == expected | {"group": "a", "lag": 3, "leased": 0}
    assert figures["consumer_groups"][1] == expected
    assert figures["consumer_groups_all"] == 3
    monkeypatch.setattr(metrics, "GROUPS_MAX", 2)
    figures = await ask(client)
    assert [row["group"] for row in figures["consumer_groups"]] == ["a", "b"]
    assert figures["consumer_groups_all"] == 3


async def test_a_record_that_is_not_in_memory_is_read_by_a_bounded_number_of_reads(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(small_settings(broker={"cache_bytes_max": 1}))
    due_ms = host.now_ms
    for subject in ("s0", "s1", "s2"):
        await client.send(*[{"subject": subject, "body": "x" * 100, "due_ms": due_ms} for _ in range(5)])
        await host.sleep_ms(200)
        await client.request("pull", {"subject": subject, "group": "g"})
    await host.restart()
    client = await host.client()
    monkeypatch.setattr(metrics, "READS_MAX", 1)
    known = [sum(row["oldest_ms"] == due_ms for row in (await ask(client))["consumer_groups"]) for _ in range(3)]
    assert known[0] < 3, "not all in the first call"
    assert known[-1] == 3, "what one call has read the next one keeps"


async def test_a_lone_broker_has_figures_too(boot: Boot) -> None:
    host = await boot.started(small_settings(), role="broker")
    figures = await ask(await host.client())
    assert figures["role"] == "broker"
    assert figures["consumer_groups"] == []


async def test_a_thousand_groups_are_listed_in_slices(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    names = [f"s{number}" for number in range(1_000)]
    await client.send(*[{"subject": name, "body": "", "due_ms": host.now_ms} for name in names])
    await host.sleep_ms(500)
    for name in names:
        await client.request("pull", {"subject": name, "group": "g"})
    taken = host.server.fair_turns.taken
    assert len((await ask(client))["consumer_groups"]) == 1_000
    assert host.server.fair_turns.taken - taken >= 1_000 // 128


async def test_a_token_sees_its_own_groups_and_subjects_behind_those_of_others(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await boot.started(small_settings())
    operator, mine = await tokens(host, {"roles": ["look"], "subjects": ["mine*"]})
    others = [f"theirs.{number}" for number in range(6)]
    later = host.now_ms + 3_600_000
    await operator.send(*[{"subject": name, "body": "", "due_ms": later} for name in [*others, *others, "mine.orders"]])
    await operator.send(*[{"subject": name, "body": "", "due_ms": host.now_ms} for name in [*others, "mine.orders"]])
    await host.sleep_ms(500)
    for name in [*others, "mine.orders"]:
        await operator.request("pull", {"subject": name, "group": "g"})
    await host.until(lambda: host.server.parts.state.balance.subjects.is_counted)
    for name in ("GROUPS_MAX", "SUBJECTS_MAX", "GROUPS_AT_ONCE"):
        monkeypatch.setattr(metrics, name, 4)
    figures = await ask(mine)
    assert [(row["subject"], row["lag"]) for row in figures["consumer_groups"]] == [("mine.orders", 1)]
    assert figures["consumer_groups"][0]["oldest_ms"] is not None
    assert figures["subjects"] == [{"subject": "mine.orders", "pending": 1}]
    figures = await ask(operator)
    assert [row["subject"] for row in figures["consumer_groups"]] == others[:4]
    assert len(figures["subjects"]) == 4
