"""Replies with many rows, and requests with many deliveries, are worked on in slices between those of other clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import trio

from tests.delayserver.front.test_fairness import turns
from tests.fakes.host import Boot, Client, Host, small_settings

MANY = 2_000
# A slice ends after 128 items. A row counts as two of them, and 32 rows are made at a time.
TURNS = MANY // 128


async def stored(boot: Boot, count: int = MANY, **settings: Any) -> tuple[Host, Client]:
    """A server with so many messages before every group, the first of them with a tag and an order key."""
    host, client = await boot.connected(small_settings(**settings))
    await client.put("first", host.now_ms, tag="t", order_key="k", properties={"a": "b"}, message_id="mine")
    for first in range(1, count, 1_000):
        rows = [{"subject": "s", "body": str(number), "due_ms": host.now_ms} for number in range(first, first + 1_000)]
        await client.send(*rows[: count - first])
    await host.settled()
    await host.until(lambda: host.status()["delivered"] == count)
    return host, client


async def test_a_pull_of_many_rows_is_made_in_slices_and_is_what_small_ones_are(boot: Boot) -> None:
    host, client = await stored(boot)
    before = host.server.fair_turns.taken
    many = await client.pull(max_messages=MANY, max_bytes=1 << 30)
    assert host.server.fair_turns.taken - before >= TURNS
    small: list[dict[str, Any]] = []
    before = host.server.fair_turns.taken
    while len(small) < MANY:
        small += await client.pull(group="other", max_messages=100)
    assert host.server.fair_turns.taken == before, "a small reply is made in the step that hands its messages out"
    (rare,) = [message for message in many if message["message_id"] == "mine"]
    assert (rare["tag"], rare["order_key"], rare["properties"]) == ("t", "k", {"a": "b"})
    for one, other in zip(many, small, strict=True):
        assert one == other | {"delivery": one["delivery"]}


async def test_a_read_of_many_rows_is_made_in_slices_and_is_what_small_ones_are(boot: Boot) -> None:
    host, client = await stored(boot)
    before = host.server.fair_turns.taken
    arguments = {"subject": "s", "position": 0, "max_messages": MANY, "max_bytes": 1 << 30}
    many = await client.request("read", arguments)
    assert host.server.fair_turns.taken - before >= TURNS
    small = [
        await client.request("read", arguments | {"position": place, "max_messages": 1}) for place in (0, MANY - 1)
    ]
    assert [many["messages"][0], many["messages"][-1]] == [reply["messages"][0] for reply in small]
    assert (many["status"], many["first"], many["end"], many["next"]) == ("found", 0, MANY, MANY)
    assert "delivery" not in many["messages"][0] and len(many["messages"]) == MANY


async def test_a_broadcast_of_many_rows_is_made_in_slices(boot: Boot) -> None:
    host, client = await stored(boot)
    before = host.server.fair_turns.taken
    many = await client.pull(max_messages=MANY, max_bytes=1 << 30, broadcast=True, start="earliest")
    assert len(many) == MANY and host.server.fair_turns.taken - before >= TURNS


async def test_long_properties_make_a_small_reply_a_large_one(boot: Boot) -> None:
    host, client = await boot.connected()
    rows = [{"subject": "s", "body": "", "due_ms": host.now_ms, "properties": {"p": "x" * 15_000}}] * 100
    await client.send(*rows)
    await host.until(lambda: host.status()["delivered"] == 100)
    before = host.server.fair_turns.taken
    assert len(await client.pull(max_messages=100, max_bytes=1 << 30)) == 100
    assert host.server.fair_turns.taken > before


async def test_a_connection_has_one_large_reply_in_the_making_and_begins_small_requests_beside_it(boot: Boot) -> None:
    host, client = await stored(boot)
    half = {"subject": "s", "group": "g", "max_messages": MANY // 2, "max_bytes": 1 << 30}
    first, second = [await client.ask("pull", half) for _ in range(2)]
    ping = await client.ask("ping")
    await turns(host.server, host.server.fair_turns.taken + 3)
    (group,) = host.server.parts.broker.core.group_rows.keys((0, 0), 0, 1)
    row = host.server.parts.broker.core.group_rows.row(group)
    assert row is not None and row.leased == MANY // 2, "the second pull waits for the reply to the first one"
    await client.reply(ping)
    assert first not in client.replies
    assert [len((await client.reply(number))["messages"]) for number in (first, second)] == [MANY // 2] * 2


async def test_messages_of_a_reply_in_the_making_come_again_when_the_client_has_gone(boot: Boot) -> None:
    host, client = await stored(boot)
    await client.ask("pull", {"subject": "s", "group": "g", "max_messages": MANY, "max_bytes": 1 << 30})
    await turns(host.server, host.server.fair_turns.taken + 3)
    client.transport.close()
    await host.until(lambda: host.status()["broker"]["given_back"] == MANY)
    other = await host.client()
    again: list[dict[str, Any]] = []
    with trio.fail_after(60):
        while len(again) < MANY:
            again += await other.pull(max_messages=MANY, max_bytes=1 << 30, wait_ms=1_000)
    assert {message["body"] for message in again} == {b"first", *[b"%d" % number for number in range(1, MANY)]}


async def test_scattered_acks_are_taken_in_slices_and_all_count(boot: Boot) -> None:
    host, client = await stored(boot)
    messages = await client.pull(max_messages=MANY, max_bytes=1 << 30)
    even = np.array([message["delivery"] for message in messages[::2]], np.int64)
    np.random.default_rng(1).shuffle(even)
    foreign = np.random.default_rng(2).integers(-(1 << 62), 1 << 62, 3_000)
    twice = np.concatenate([even, foreign, even[:10]])
    before = host.server.fair_turns.taken
    names = {"subject": "s", "group": "g"}
    reply = await client.request("ack", names | {"count": len(twice), "deliveries": twice.tobytes()})
    assert reply == {"acked": len(even), "unknown": len(foreign) + 10}
    assert host.server.fair_turns.taken - before >= len(twice) // 256
    rest = np.array([message["delivery"] for message in messages], np.int64)
    before = host.server.fair_turns.taken
    pulled = {"max_messages": 1, "ack": {"count": len(rest), "deliveries": rest.tobytes()}}
    assert (await client.request("pull", names | pulled))["messages"] == []
    assert host.server.fair_turns.taken == before, "deliveries that follow one another are one range"
    assert host.status()["broker"]["acked"] == MANY


async def test_a_million_deliveries_of_nobody_are_unknown_to_each_operation(boot: Boot) -> None:
    """As fast as sorting them. Before, each code among them was compared with all of them."""
    host, client = await stored(boot, 10)
    await client.pull()
    foreign = np.random.default_rng(3).integers(0, 1 << 62, 100_000)
    arguments = {"subject": "s", "group": "g", "count": len(foreign), "deliveries": foreign.tobytes()}
    for operation in ("ack", "nack", "extend"):
        reply = await client.request(operation, arguments)
        assert reply["unknown"] == len(foreign)
    assert host.status()["broker"]["acked"] == 0


async def test_a_page_of_groups_is_made_in_slices_one_at_a_time(boot: Boot) -> None:
    host, client = await stored(boot, 10)
    for number in range(100):
        await client.pull(group=f"g{number}", max_messages=1)
    before = host.server.fair_turns.taken
    asked = [await client.ask("groups", {}) for _ in range(10)]
    await turns(host.server, before + 10)
    assert not client.replies
    pages = [(await client.reply(number))["groups"] for number in asked]
    assert [len(page) for page in pages] == [100] * 10
    assert host.server.fair_turns.taken - before >= 10 * 100 * 20 // 160
    assert pages[0][0]["lag"] == 10 and pages[0][0]["subject"] == "s" and pages[0][0]["leased"] == 1
