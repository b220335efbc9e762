"""A broker node over the network: exactly once by its key, whatever breaks on the way; and what a broker refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.broker_node import DeliveryError
from delayserver.front import BROKER
from delayserver.protocol.columns import U8, unpack_column
from delayserver.protocol.frames import encode_request
from delayserver.remote_node import RemoteNode
from delayserver.settings import GroupSettings, NodeSettings, RouteSettings
from store.batches import StoredBatch
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Host, small_settings, texts
from tests.fakes.network import FakeNetwork

Boot = Callable[..., Host]
QUICK = {"backoff_ms_min": 50, "backoff_ms_max": 500, "breaker_failures": 3, "deliver_timeout_ms": 1_000}


async def pair(boot: Boot, **dispatch: Any) -> tuple[Host, Host]:
    """A server and the lone broker that it delivers to."""
    network, clock = FakeNetwork(), SimulatedClock()
    node = boot(name="node", role=BROKER, network=network, clock=clock)
    group = GroupSettings("remote", (NodeSettings("node:1"),))
    settings = small_settings(groups=(group,), routes=(RouteSettings("*", ("remote",)),), dispatch=QUICK | dispatch)
    server = boot(settings, name="server", network=network, clock=clock)
    await node.start()
    await server.start()
    return server, node


async def test_messages_reach_a_consumer_of_the_node_whole(boot: Boot) -> None:
    server, node = await pair(boot)
    client = await server.client()
    route = await client.request("route", {"subject": "s"})
    assert route == {"group": "remote", "nodes": [{"address": "node:1", "weight": 1}]}
    due_ms = server.now_ms + 100
    sent = await client.put("body", due_ms, message_id="mine", properties={"k": "v"})
    plain = await client.put("plain", due_ms)
    consumer = await node.client()
    first = await consumer.pull(wait_ms=5_000)
    messages = first + (await consumer.pull(wait_ms=100) if len(first) == 1 else [])
    by_body = {message["body"]: message for message in messages}
    mine = by_body[b"body"]
    assert (mine["message_id"], mine["properties"], mine["sequence"]) == ("mine", {"k": "v"}, sent["sequence"])
    assert by_body[b"plain"]["message_id"] == plain["message_id"]
    assert mine["server_id"] == sent["receipt"][:12]
    assert mine["dispatched_us"] >= due_ms * 1_000
    await server.settled()
    server.check_balance(pending=0)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_dies_on_the_way_the_node_stores_each_message_once(boot: Boot, seed: int) -> None:
    server, node = await pair(boot)
    client = await server.client()
    count = 30
    for number in range(count):
        await client.put(str(number), server.now_ms + 100 + number * 40)
    await server.sleep_ms(200 + seed * 90)
    await (node.lose_power(seed) if seed % 2 else node.kill())
    await server.sleep_ms(300)
    await server.lose_power(seed)
    await server.start()
    await node.start()
    await server.sleep_ms(200)
    for transport in list(node._listener.accepted):
        transport.reset()
    await server.sleep_ms(6_000)
    await server.settled()
    consumer = await node.client()
    got = texts(await consumer.pull())
    assert sorted(got, key=int) == [str(number) for number in range(count)]
    server.check_balance(pending=0)


def delivery(now_ms: int, sequence: int, *, uncertain: bool) -> dict[str, Any]:
    """The arguments of a `deliver` of two messages."""
    return {
        "server_id": "00000000000a",
        "window_ms": now_ms // 60_000 * 60_000,
        "uncertain": uncertain,
        "count": 2,
        "sequence": [sequence],
        "redelivery": 0,
        "due_ms": now_ms,
        "accepted_us": now_ms * 1_000,
        "dispatched_us": now_ms * 1_000,
        "expires_ms": 0,
        "origin_sequence": 0,
        "subjects": ["s"],
        "subject_index": 0,
        "target_groups": [],
        "target_group_index": 0,
        "message_ids": b"",
        "message_id_length": 0,
        "properties": b"",
        "properties_length": 0,
        "bodies": b"ab",
        "body_length": 1,
    }


async def test_a_first_attempt_that_arrives_behind_its_repetition_over_a_newer_connection_is_refused(
    boot: Boot,
) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    older, newer = await node.client(), await node.client()
    assert (await older.request("deliver", delivery(node.now_ms, 3, uncertain=False)))["outcome"]
    again = await newer.request("deliver", delivery(node.now_ms, 7, uncertain=True))
    assert unpack_column(again["outcome"], 2, U8, "outcome").tolist() == [1, 1]
    assert await older.refused("deliver", delivery(node.now_ms, 7, uncertain=False)) == "invalid_argument"
    other = delivery(node.now_ms, 7, uncertain=False) | {"server_id": "00000000000b"}
    assert (await older.request("deliver", other))["outcome"], "another server has connections of its own"
    assert len(await newer.pull()) == 6


async def test_deliveries_that_are_read_together_are_stored_in_their_order(boot: Boot) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    client = await node.client()
    for sequence in range(10, 50, 2):
        first, second = (
            encode_request(sequence + place, "deliver", delivery(node.now_ms, sequence, uncertain=bool(place)))
            for place in (0, 1)
        )
        await client.send_bytes(first + second)
        for place, expected in ((0, 1), (1, 2)):
            outcome = (await client.reply(sequence + place))["outcome"]
            assert unpack_column(outcome, 2, U8, "outcome").tolist() == [expected] * 2
    assert len(await client.pull(max_messages=100)) == 40


async def test_a_complete_window_is_forgotten_before_what_is_delivered_behind_it(boot: Boot) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    client = await node.client()
    for sequence in range(10, 50, 2):
        first = delivery(node.now_ms, sequence, uncertain=False)
        complete = {"server_id": first["server_id"], "window_ms": [first["window_ms"]]}
        requests = [("window_complete", complete), ("deliver", first), ("deliver", first | {"uncertain": True})]
        frames = [encode_request(sequence * 10 + place, *request) for place, request in enumerate(requests)]
        await client.send_bytes(b"".join(frames))
        answers = [await client.reply(sequence * 10 + place) for place in range(3)]
        assert unpack_column(answers[2]["outcome"], 2, U8, "outcome").tolist() == [2, 2], "here already"


async def test_a_complete_window_over_an_older_connection_comes_too_late(boot: Boot) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    older, newer = await node.client(), await node.client()
    first = delivery(node.now_ms, 3, uncertain=False)
    complete = {"server_id": first["server_id"], "window_ms": [first["window_ms"]]}
    assert await older.request("window_complete", complete) == {}
    assert (await newer.request("deliver", first))["outcome"]
    assert await older.refused("window_complete", complete) == "invalid_argument"
    again = await newer.request("deliver", first | {"uncertain": True})
    assert unpack_column(again["outcome"], 2, U8, "outcome").tolist() == [2, 2]


async def test_which_windows_are_complete_is_asked_when_there_is_a_connection(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network = FakeNetwork()
    remote = RemoteNode("node:1", 1, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    asked = []

    def windows() -> list[int]:
        asked.append(True)
        return []

    with pytest.raises(DeliveryError):
        await remote.windows_complete(windows)
    assert not asked
    listener = network.listen("node")
    await remote.windows_complete(windows)
    assert asked
    stream = await listener.accept()
    with trio.move_on_after(0.1) as nothing:
        await stream.receive()
    assert nothing.cancelled_caught, "of no window there is nothing to say"


async def test_a_repeated_deliver_is_recognised_and_a_malformed_one_refused(boot: Boot) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    client = await node.client()
    good = delivery(node.now_ms, 7, uncertain=True)
    for expected in (1, 2, 2):
        outcome = (await client.request("deliver", good))["outcome"]
        assert unpack_column(outcome, 2, U8, "outcome").tolist() == [expected] * 2
    bad: list[dict[str, Any]] = [
        {"server_id": "xyz"},
        {"server_id": 5},
        {"window_ms": -1},
        {"window_ms": None},
        {"count": 0},
        {"count": 1 << 40},
        {"count": "2"},
        {"sequence": b"abc"},
        {"due_ms": "now"},
        {"subjects": []},
        {"subjects": "s"},
        {"subjects": [1]},
        {"subjects": [""]},
        {"subject_index": 9},
        {"target_group_index": 1},
        {"target_groups": ["g\n"], "target_group_index": 1},
        {"bodies": b"a"},
        {"body_length": 1 << 31},
        {"bodies": "ab"},
        {"message_id_length": 4},
    ]
    for change in bad:
        assert await client.refused("deliver", good | change) in ("invalid_argument", "subject_invalid"), change
    assert len(await client.pull()) == 2
    assert node.died_of is None


@pytest.mark.parametrize("why", ["refused", "full"])
async def test_new_names_of_a_deliver_share_one_sync_where_some_are_not_taken(boot: Boot, why: str) -> None:
    count = 60
    settings = small_settings(message={"subjects_max": 40 if why == "full" else 1_000})
    node = boot(settings, name="node", role=BROKER)
    await node.start()
    room = 40 - len(node.server.opened.names)
    client = await node.client()
    names = [f"s{number}" for number in range(count)]
    if why == "refused":
        names[7] = "x" * 300
    request = delivery(node.now_ms, 7, uncertain=False) | {
        "count": count,
        "subjects": names,
        "subject_index": [0],
        "bodies": b"x" * count,
    }
    before = node.disk.counts["datasync"]
    outcome = (await client.request("deliver", request))["outcome"]
    # One of the names, and those of what is stored.
    assert node.disk.counts["datasync"] - before < 5
    refused = [7] if why == "refused" else list(range(room, count))
    expected = [3 if place in refused else 1 for place in range(count)]
    assert unpack_column(outcome, count, U8, "outcome").tolist() == expected


async def test_a_broker_refuses_what_only_a_server_does(boot: Boot) -> None:
    node = boot(name="node", role=BROKER)
    await node.start()
    client = await node.client()
    assert (await client.request("hello", {"versions": [1], "client": "x"}))["role"] == "broker"
    for operation in ("send", "cancel", "reschedule", "lookup"):
        assert await client.refused(operation, {}) == "unknown_operation"
    assert (await client.status())["role"] == "broker"


async def test_a_nack_on_a_lone_broker_comes_again_through_its_own_pipeline(boot: Boot) -> None:
    server, node = await pair(boot)
    await (await server.client()).put("m", server.now_ms + 10)
    consumer = await node.client()
    (message,) = await consumer.pull(wait_ms=2_000)
    deliveries = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]}
    assert await consumer.request("nack", deliveries | {"delay_ms": 500}) == {"nacked": 1, "unknown": 0}
    await node.lose_power(3)
    await node.start()
    consumer = await node.client()
    (again,) = await consumer.pull(wait_ms=5_000)
    assert (again["body"], again["attempt"], again["message_id"]) == (b"m", 2, message["message_id"])


def batch(rows: int, body: int) -> StoredBatch:
    """A delivery of `rows` messages."""
    return StoredBatch.filled(
        rows,
        sequence=np.arange(1, rows + 1),
        subject=1,
        bodies=b"x" * rows * body,
        bodies_length=np.full(rows, body, np.uint32),
    )


async def test_half_a_frame_is_never_followed_by_another(boot: Boot, nursery: trio.Nursery) -> None:
    network = FakeNetwork()
    network.window_bytes = 1_000
    listener = network.listen("node")
    remote = RemoteNode("node:1", 1, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    boot()
    with trio.move_on_after(1):
        await remote.deliver(batch(10, 500), uncertain=False)
    first = await listener.accept()
    await trio.sleep(0.1)
    assert len(await first.receive()) == 1_000
    with trio.move_on_after(1):
        await remote.deliver(batch(1, 10), uncertain=False)
    rest = b""
    with pytest.raises(OSError):
        while data := await first.receive():
            rest += data
        raise ConnectionResetError
    assert rest == b""


async def test_a_node_that_cannot_be_reached_has_certainly_stored_nothing(boot: Boot, nursery: trio.Nursery) -> None:
    boot()
    network = FakeNetwork()
    remote = RemoteNode("node:1", 1, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    for _ in range(3):
        with pytest.raises(DeliveryError) as error:
            await remote.deliver(batch(1, 10), uncertain=False)
        assert error.value.known
    listener = network.listen("node")
    results: list[DeliveryError] = []

    async def deliver() -> None:
        try:
            await remote.deliver(batch(1, 10), uncertain=False)
        except DeliveryError as error:
            results.append(error)

    nursery.start_soon(deliver)
    stream = await listener.accept()
    await stream.receive()
    stream.reset()
    await trio.sleep(0.1)
    assert [error.known for error in results] == [False]
