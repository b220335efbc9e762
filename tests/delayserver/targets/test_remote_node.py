"""A broker node over the network: exactly once by its key, whatever breaks on the way; and what a broker refuses."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings, Settings
from delayserver.front.front import BROKER
from delayserver.protocol.columns import U8, U32, unpack_column
from delayserver.protocol.frames import FrameDecoder, decode_request, encode_reply, encode_request
from delayserver.protocol.proof import make_proof
from delayserver.targets.kinds import ServerIdentity
from delayserver.targets.remote_node import RemoteNode
from delayserver.targets.target import DeliveryError
from store.records.batches import StoredBatch
from store.tables.names import SUBJECT
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Host, small_settings, texts
from tests.fakes.network import FakeListener, FakeNetwork, FakeTransport

DAY_MS = 86_400_000
IDENTITY = ServerIdentity("000000000001", "00000000000000a1", "")
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
    assert route["nodes"][0].pop("since_ms") <= server.now_ms
    assert route == {"group": "remote", "nodes": [{"address": "node:1", "weight": 1, "state": "unknown"}]}
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
    await server.balanced(pending=0)


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_stores_each_message_once_although_both_sides_die_on_the_way(boot: Boot, seed: int) -> None:
    server, node = await pair(boot)
    client = await server.client()
    count = 30
    for number in range(count):
        await client.put(str(number), server.now_ms + 100 + number * 40)
    await server.sleep_ms(200 + seed * 90)
    await (node.lose_power(seed) if seed % 2 else node.kill())
    await server.sleep_ms(300)
    await server.restart_unpowered(seed)
    await node.start()
    await server.sleep_ms(200)
    for transport in list(node.listener.accepted):
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
    node = await boot.started(name="node", role=BROKER)
    older, newer = await node.client(), await node.client()
    assert (await older.request("deliver", delivery(node.now_ms, 3, uncertain=False)))["outcome"]
    again = await newer.request("deliver", delivery(node.now_ms, 7, uncertain=True))
    assert unpack_column(again["outcome"], 2, U8, "outcome").tolist() == [1, 1]
    assert await older.refused("deliver", delivery(node.now_ms, 7, uncertain=False)) == "invalid_argument"
    other = delivery(node.now_ms, 7, uncertain=False) | {"server_id": "00000000000b"}
    assert (await older.request("deliver", other))["outcome"], "another server has connections of its own"
    assert len(await newer.pull()) == 6


async def test_deliveries_that_are_read_together_are_stored_in_their_order(boot: Boot) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
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


async def test_a_node_forgets_a_complete_window_before_the_deliveries_behind_it(boot: Boot) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
    for sequence in range(10, 50, 2):
        first = delivery(node.now_ms, sequence, uncertain=False)
        complete = {"server_id": first["server_id"], "window_ms": [first["window_ms"]]}
        requests = [("window_complete", complete), ("deliver", first), ("deliver", first | {"uncertain": True})]
        frames = [encode_request(sequence * 10 + place, *request) for place, request in enumerate(requests)]
        await client.send_bytes(b"".join(frames))
        answers = [await client.reply(sequence * 10 + place) for place in range(3)]
        assert unpack_column(answers[2]["outcome"], 2, U8, "outcome").tolist() == [2, 2], "here already"


async def test_a_complete_window_over_an_older_connection_comes_too_late(boot: Boot) -> None:
    node = await boot.started(name="node", role=BROKER)
    older, newer = await node.client(), await node.client()
    first = delivery(node.now_ms, 3, uncertain=False)
    complete = {"server_id": first["server_id"], "window_ms": [first["window_ms"]]}
    assert await older.request("window_complete", complete) == {}
    assert (await newer.request("deliver", first))["outcome"]
    assert await older.refused("window_complete", complete) == "invalid_argument"
    again = await newer.request("deliver", first | {"uncertain": True})
    assert unpack_column(again["outcome"], 2, U8, "outcome").tolist() == [2, 2]


async def greeted(listener: FakeListener) -> FakeTransport:
    """The node's end of the next connection, once `hello` is answered on it."""
    stream = await listener.accept()
    (payload,) = FrameDecoder(1 << 20).feed(await stream.receive())
    request = decode_request(payload)
    assert request.operation == "hello"
    stream.send_now(encode_reply(request.id, {"version": 1}))
    return stream


async def test_which_windows_are_complete_is_asked_when_there_is_a_connection(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network = FakeNetwork()
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    asked = []

    def windows() -> list[int]:
        asked.append(True)
        return []

    with pytest.raises(DeliveryError):
        await remote.windows_complete(windows)
    assert not asked
    listener = network.listen("node")
    streams: list[FakeTransport] = []

    async def answer() -> None:
        streams.append(await greeted(listener))

    nursery.start_soon(answer)
    await remote.windows_complete(windows)
    assert asked
    (stream,) = streams
    with trio.move_on_after(0.1) as nothing:
        await stream.receive()
    assert nothing.cancelled_caught, "of no window there is nothing to say"


async def test_a_node_whose_disk_cannot_read_what_it_has_goes_on_and_decides_a_repetition_later(boot: Boot) -> None:
    """A node that ended would end again after its next start, because the server repeats what it does not know."""
    node, client = await boot.connected(name="node", role=BROKER)
    good = delivery(node.now_ms, 7, uncertain=False)
    await client.request("deliver", good)
    (path,) = [path for path in node.disk.files("/data/") if "/broker/store/" in path]
    node.disk.unreadable[path] = [(64, 80)]
    assert await client.refused("deliver", good | {"uncertain": True}) == "storage_failed"
    await node.sleep_ms(1_000)
    assert node.died_of is None
    node.disk.unreadable.clear()
    outcome = (await client.request("deliver", good | {"uncertain": True}))["outcome"]
    assert unpack_column(outcome, 2, U8, "outcome").tolist() == [2, 2]
    assert len(await client.pull()) == 2


async def test_a_repeated_deliver_is_recognised_and_a_malformed_one_refused(boot: Boot) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
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
    node = await boot.started(settings, name="node", role=BROKER)
    room = 40 - node.server.parts.files.names.count(SUBJECT)
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


async def test_a_broker_refuses_operations_of_servers(boot: Boot) -> None:
    _, client = await boot.connected(name="node", role=BROKER)
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
    await node.restart_unpowered(3)
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
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    boot()
    streams: list[FakeTransport] = []

    async def answer() -> None:
        streams.append(await greeted(listener))

    nursery.start_soon(answer)
    with trio.move_on_after(1):
        await remote.deliver(batch(10, 500), uncertain=False)
    (first,) = streams
    await trio.sleep(0.1)
    assert len(await first.receive()) == 1_000
    with trio.move_on_after(1), suppress(DeliveryError):
        await remote.deliver(batch(1, 10), uncertain=False)
    rest = b""
    with pytest.raises(OSError):
        while data := await first.receive():
            rest += data
        raise ConnectionResetError
    assert rest == b""


async def test_a_member_that_lost_its_lease_before_the_connection_was_there_sends_nothing(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network, held = FakeNetwork(), [True]
    listener = network.listen("node")
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s", lambda: held[0])
    nursery.start_soon(remote.run)
    streams: list[FakeTransport] = []

    async def answer() -> None:
        held[0] = False  # while the node is greeted
        streams.append(await greeted(listener))

    nursery.start_soon(answer)
    with trio.fail_after(60), pytest.raises(DeliveryError, match="lease") as error:
        await remote.deliver(batch(1, 10), uncertain=False)
    assert error.value.known
    (stream,) = streams
    with trio.move_on_after(0.1) as nothing:
        await stream.receive()
    assert nothing.cancelled_caught and not stream.is_closed


async def test_a_member_that_lost_its_lease_does_not_send_the_rest_of_a_frame(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network, held = FakeNetwork(), [True]
    network.window_bytes = 1_000
    listener = network.listen("node")
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s", lambda: held[0])
    nursery.start_soon(remote.run)

    async def answer() -> None:
        stream = await greeted(listener)
        await trio.sleep(0.1)
        held[0] = False
        assert len(await stream.receive()) == 1_000

    nursery.start_soon(answer)
    with trio.fail_after(60), pytest.raises(DeliveryError, match="lease") as error:
        await remote.deliver(batch(10, 500), uncertain=False)
    assert error.value.known, "the node has no whole frame"


async def test_a_node_that_cannot_be_reached_has_certainly_stored_nothing(boot: Boot, nursery: trio.Nursery) -> None:
    boot()
    network = FakeNetwork()
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s")
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
    stream = await greeted(listener)
    await stream.receive()
    stream.reset()
    await trio.sleep(0.1)
    assert [error.known for error in results] == [False]


async def test_a_node_that_accepts_connections_and_hangs_has_certainly_stored_nothing(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network = FakeNetwork()
    listener = network.listen("node")
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    with pytest.raises(DeliveryError) as error, trio.fail_after(10):
        await remote.deliver(batch(1, 10), uncertain=False)
    assert error.value.known
    with pytest.raises(DeliveryError) as error, trio.fail_after(2):
        await remote.deliver(batch(1, 10), uncertain=False)
    assert error.value.known, "also where the caller's time is over before the connection's"
    assert listener.accepted


async def test_a_node_that_did_not_answer_gets_no_message_before_it_answers_again(
    boot: Boot, nursery: trio.Nursery
) -> None:
    boot()
    network = FakeNetwork()
    listener = network.listen("node")
    remote = RemoteNode("node:1", IDENTITY, 1 << 20, network.connect, lambda _code: "s")
    nursery.start_soon(remote.run)
    streams: list[FakeTransport] = []

    async def answer() -> None:
        streams.append(await greeted(listener))

    nursery.start_soon(answer)
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await remote.deliver(batch(1, 10), uncertain=False)
    for _ in range(3):
        with pytest.raises(DeliveryError) as error, trio.fail_after(1):
            await remote.deliver(batch(1, 10), uncertain=True)
        assert error.value.known
    (stream,) = streams
    asked = [decode_request(payload) for payload in FrameDecoder(1 << 20).feed(await stream.receive())]
    assert [request.operation for request in asked] == ["deliver", "ping", "ping", "ping"]
    outcomes: list[int] = []

    async def deliver() -> None:
        outcomes.extend((await remote.deliver(batch(1, 10), uncertain=True)).rows.tolist())

    nursery.start_soon(deliver)
    for expected in ("ping", "deliver"):
        (payload,) = FrameDecoder(1 << 20).feed(await stream.receive())
        request = decode_request(payload)
        assert request.operation == expected
        stream.send_now(encode_reply(request.id, {} if expected == "ping" else {"outcome": 1}))
    await trio.sleep(0.1)
    assert outcomes == [1]


# -- two processes with one server id


def routed(**parts: Any) -> Settings:
    """A server whose messages all go to `node:1`."""
    group = GroupSettings("remote", (NodeSettings("node:1"),))
    return small_settings(groups=(group,), routes=(RouteSettings("*", ("remote",)),), dispatch=QUICK, **parts)


async def copied(boot: Boot) -> tuple[Host, Host, Host]:
    """A server, a node, and a second server on a copy of the first one's data directory. The node and the first one run."""
    network, clock = FakeNetwork(), SimulatedClock()
    node = await boot.started(name="node", role=BROKER, network=network, clock=clock)
    server = await boot.started(routed(), name="server", network=network, clock=clock)
    await server.stop()
    copy = boot(routed(), name="copy", network=network, clock=clock, disk=deepcopy(server.disk), seed=2)
    await server.start()
    return server, copy, node


async def test_a_server_whose_place_another_process_took_delivers_when_that_one_is_gone(boot: Boot) -> None:
    server, copy, node = await copied(boot)
    client, consumer = await server.client(), await node.client()
    await client.put("first", server.now_ms)
    assert texts(await consumer.pull(wait_ms=2_000, ack_timeout_ms=DAY_MS)) == ["first"]
    await copy.start()
    await (await copy.client()).put("of the copy", server.now_ms)
    assert texts(await consumer.pull(wait_ms=2_000, ack_timeout_ms=DAY_MS)) == ["of the copy"]
    await client.put("waits", server.now_ms)
    assert await consumer.pull(wait_ms=10_000, ack_timeout_ms=DAY_MS) == []
    await copy.kill()
    assert await consumer.pull(wait_ms=30_000, ack_timeout_ms=DAY_MS) == [], (
        "the newer process may only have lost its connection"
    )
    await server.sleep_ms(60_000)
    assert texts(await consumer.pull(wait_ms=1_000, ack_timeout_ms=DAY_MS)) == ["waits"]
    await server.balanced(pending=0)


async def test_two_processes_with_one_server_id_are_named_on_all_sides_until_one_is_gone(boot: Boot) -> None:
    server, copy, node = await copied(boot)
    client = await server.client()
    await client.put("first", server.now_ms)
    await server.sleep_ms(1_000)
    other = await copy.start_connected()
    await other.put("it takes the place", server.now_ms)
    await server.sleep_ms(1_000)
    for number in range(10):
        await client.put(f"old {number}", server.now_ms)
        await other.put(f"new {number}", server.now_ms)
        await server.sleep_ms(2_000)
    for asked in (client, other, await node.client()):
        (told,) = (await asked.status())["duplicate_server_ids"]
        assert "stop one of the two" in told
    (row,) = (await client.status())["groups"]["remote"]["nodes"]
    assert row["problem"] == "duplicate_server_id" and "copies of one data directory" in row["last_error"]
    (found,) = (await (await node.client()).status())["broker"]["duplicate_servers"]
    assert found["now"] and found["refused"] < 20, "the older one asks again after pauses that grow"
    node.server.servers.fence.check_invariants()
    assert (await client.status())["pending"] == 10, "the newer one wins"
    await copy.kill()
    await server.sleep_ms(130_000)
    await server.balanced(pending=0)
    for asked in (client, await node.client()):
        assert (await asked.status())["duplicate_server_ids"] == []


async def test_a_server_that_restarts_takes_its_own_place_at_once(boot: Boot) -> None:
    server, node = await pair(boot)
    await (await server.client()).put("before", server.now_ms)
    await server.sleep_ms(500)
    await server.kill()
    parts = {"disk": server.disk, "clock": server.clock, "network": server.network}
    server = await boot.started(server.settings, name="server", seed=2, **parts)  # a process of other chance
    await (await server.client()).put("behind", server.now_ms)
    await server.sleep_ms(500)
    assert texts(await (await node.client()).pull()) == ["before", "behind"]
    assert (await (await node.client()).status())["duplicate_server_ids"] == []


async def test_with_nodes_of_before_two_processes_with_one_server_id_do_not_flap(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, copy, node = await copied(boot)
    # Such a node does not read the instance: the newest connection wins, whosever it is.
    monkeypatch.setattr(node.server.servers, "hello", lambda _peer, _instance, _server_id: None)
    await copy.start()
    client, other = await server.client(), await copy.client()
    before = len(node.listener.accepted)
    for number in range(60):
        await client.put(f"old {number}", server.now_ms)
        await other.put(f"new {number}", server.now_ms)
        await server.sleep_ms(2_000)
    assert len(node.listener.accepted) - before < 40
    for asked in (client, other):
        assert (await asked.status())["duplicate_server_ids"]
    await copy.kill()
    await server.sleep_ms(60_000)
    await server.balanced(pending=0)


# -- who may deliver, and what


async def test_without_a_secret_only_loopback_delivers_and_redispatches(boot: Boot) -> None:
    host, near = await boot.connected()
    assert (await near.request("deliver", delivery(host.now_ms, 3, uncertain=False)))["outcome"]
    mapped = ("[::1]:7", "::1:7", "::ffff:127.0.0.1:7")
    for place, peer in enumerate(mapped):
        host.network.comes_from = peer
        client = await host.client()
        assert (await client.request("deliver", delivery(host.now_ms, 5 + 2 * place, uncertain=False)))["outcome"], peer
    for peer in ("10.0.0.7:7", "2001:db8::1:7", "nonsense"):
        host.network.comes_from = peer
        far = await host.client()
        arguments = delivery(host.now_ms, 77, uncertain=False)
        assert await far.refused("deliver", arguments | {"subjects": ["never stored"]}) == "server_not_proven"
        complete = {"server_id": "00000000000a", "window_ms": [0]}
        assert await far.refused("window_complete", complete) == "server_not_proven"
        assert await far.refused("redispatch", {"from_ms": 0, "to_ms": 1, "dry_run": True}) == "server_not_proven"
        assert (await far.put("as before", host.now_ms))["receipt"]
    assert "never stored" not in [
        host.server.parts.files.names.name(code) for code in range(1, len(host.server.parts.files.names))
    ]


async def test_a_server_proves_the_secret_of_its_node_without_sending_it(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    network.comes_from = "10.0.0.7:7"
    secret = "correct horse battery"
    node = await boot.started(
        small_settings(listen={"server_secret": secret}), name="node", role=BROKER, network=network, clock=clock
    )
    server = await boot.started(routed(listen={"server_secret": secret}), name="server", network=network, clock=clock)
    await (await server.client()).put("m", server.now_ms)
    consumer = await node.client()
    assert texts(await consumer.pull(wait_ms=1_000)) == ["m"]
    _, client = await boot.connected(
        routed(listen={"server_secret": "another secret text"}), name="stranger", network=network, clock=clock, seed=3
    )
    await client.put("not taken", server.now_ms)
    assert await consumer.pull(wait_ms=3_000) == []
    (row,) = (await client.status())["groups"]["remote"]["nodes"]
    assert row["problem"] == "server_not_proven" and "server_secret" in row["last_error"]
    assert (await client.status())["pending"] == 1


async def test_a_proof_is_good_for_one_challenge_of_one_connection(boot: Boot) -> None:
    secret = "correct horse battery"
    node = await boot.started(small_settings(listen={"server_secret": secret}), name="node")
    first, second = await node.client(), await node.client()
    good = delivery(node.now_ms, 3, uncertain=False)
    assert await first.refused("deliver", good) == "server_not_proven", "from loopback too, where a secret is set"
    assert await first.refused("prove", {"proof": make_proof(secret, b"")}) == "server_not_proven"
    challenge = (await first.request("prove"))["challenge"]
    proof = make_proof(secret, challenge)
    await second.request("prove")
    assert await second.refused("prove", {"proof": proof}) == "server_not_proven"
    for bad in (b"", proof[:-1], bytes(32), proof.hex(), 5):
        challenge = (await first.request("prove"))["challenge"]
        assert await first.refused("prove", {"proof": bad}) == "server_not_proven"
    challenge = (await first.request("prove"))["challenge"]
    assert await first.refused("prove", {"proof": proof}) == "server_not_proven", "of an earlier challenge"
    challenge = (await first.request("prove"))["challenge"]
    assert await first.request("prove", {"proof": make_proof(secret, challenge)}) == {}
    assert (await first.request("deliver", good))["outcome"]
    assert await second.refused("deliver", good) == "server_not_proven"


async def test_a_connection_belongs_to_the_server_that_it_named(boot: Boot) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
    hello = {"versions": [1], "server_id": "00000000000a", "instance": "00000000000000aa"}
    assert (await client.request("hello", hello))["version"] == 1
    assert await client.refused("hello", hello | {"instance": "00000000000000bb"}) == "invalid_argument"
    for bad in ({"instance": "xyz"}, {"instance": 5}, {"server_id": "A" * 12}, {"server_id": None}):
        assert await client.refused("hello", hello | bad) == "invalid_argument"
    good = delivery(node.now_ms, 3, uncertain=False)
    assert (await client.request("deliver", good))["outcome"]
    assert await client.refused("deliver", good | {"server_id": "00000000000b"}) == "invalid_argument"


@pytest.mark.parametrize("sequence", [0, -1, (1 << 48) - 1, 1 << 48, (1 << 48) + 3, -(1 << 63)])
async def test_sequences_that_no_receipt_can_carry_are_refused(boot: Boot, sequence: int) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
    good = delivery(node.now_ms, 3, uncertain=True)
    assert (await client.request("deliver", good))["outcome"]
    # Two rows: the second one has the next sequence.
    assert await client.refused("deliver", good | {"sequence": [sequence]}) == "invalid_argument"
    if sequence:
        assert await client.refused("deliver", good | {"origin_sequence": [sequence]}) == "invalid_argument"
    assert len(await client.pull()) == 2


async def test_a_node_refuses_messages_that_are_due_far_ahead_of_its_clock(boot: Boot) -> None:
    node, client = await boot.connected(
        small_settings(broker={"server_clock_ahead_ms_max": 5_000}), name="node", role=BROKER
    )
    good = delivery(node.now_ms, 3, uncertain=False)
    assert await client.refused("deliver", good | {"due_ms": node.now_ms + 5_001}) == "not_due"
    assert await client.refused("deliver", good | {"due_ms": -1}) == "invalid_argument"
    assert (await client.request("deliver", good | {"due_ms": node.now_ms + 4_999}))["outcome"]


async def test_messages_of_a_server_whose_clock_is_ahead_wait_until_the_node_agrees(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = await boot.started(
        small_settings(broker={"server_clock_ahead_ms_max": 5_000}), name="node", role=BROKER, network=network
    )
    server = await boot.started(routed(), name="server", network=network, clock=clock)
    clock.step(20_000)
    client = await server.client()
    await client.put("m", server.now_ms)
    consumer = await node.client()
    assert await consumer.pull(wait_ms=10_000) == []
    (row,) = (await client.status())["groups"]["remote"]["nodes"]
    assert row["problem"] == "not_due" and "clock" in row["last_error"]
    assert texts(await consumer.pull(wait_ms=10_000)) == ["m"]
    await server.balanced(pending=0)


# -- delivered by two nodes


async def two_nodes(boot: Boot, **dispatch: Any) -> tuple[Host, Host, Host]:
    """A server and the two nodes of its one group."""
    network, clock = FakeNetwork(), SimulatedClock()
    nodes = [
        boot(name=name, role=BROKER, network=network, clock=clock, seed=seed) for seed, name in ((2, "a"), (3, "b"))
    ]
    group = GroupSettings("remote", (NodeSettings("a:1", 3), NodeSettings("b:1")))
    settings = small_settings(groups=(group,), routes=(RouteSettings("*", ("remote",)),), dispatch=QUICK | dispatch)
    server = boot(settings, name="server", network=network, clock=clock)
    for host in (*nodes, server):
        await host.start()
    return server, nodes[0], nodes[1]


async def test_a_message_that_another_node_may_have_carries_a_higher_attempt_and_is_counted(boot: Boot) -> None:
    server, first, second = await two_nodes(boot)
    client = await server.client()
    await client.put("warm", server.now_ms)
    await server.sleep_ms(500)
    consumer = await first.client()
    assert [message["attempt"] for message in await consumer.pull()] == [1]
    for transport in first.listener.accepted[:-1]:
        transport.fail_sends = True  # it stores, and its answer is lost
    sent = await client.put("m", server.now_ms)
    await server.sleep_ms(1_000)
    (here,), (there,) = await consumer.pull(), await (await second.client()).pull()
    assert (here["attempt"], there["attempt"]) == (1, 2)
    for name in ("server_id", "sequence", "message_id", "body"):
        assert here[name] == there[name], "a consumer knows it again by (server_id, sequence), and by message_id"
    assert sent["receipt"].startswith(here["server_id"])
    group = (await client.status())["groups"]["remote"]
    assert group["maybe_delivered_twice"] == 1
    found = await client.find(sent["receipt"])
    assert (found["outcome"], found["attempts"], found["unanswered_elsewhere"]) == ("delivered", 2, 1)
    await second.restart_unpowered(1)
    consumer = await second.client()
    (again,) = await consumer.pull(group="later")
    assert again["attempt"] == 2, "the node keeps it"
    names = {"subject": "s", "group": "later", "count": 1, "deliveries": again["delivery"]}
    nacked_ms = second.now_ms
    await consumer.request("nack", names)
    (last,) = await consumer.pull(group="later", wait_ms=20_000)
    assert 2_000 <= second.now_ms - nacked_ms < 2_200, "the pause follows the attempt, which counts the other node's"
    assert (last["attempt"], last["message_id"]) == (3, again["message_id"])
    columns = await consumer.request("pull", {"subject": "s", "group": "columns", "columns": True})
    assert unpack_column(columns["attempt"], columns["count"], U32, "attempt").tolist() == [2]
    await server.balanced(pending=0)


async def test_where_an_unknown_result_is_asked_of_the_same_node_nothing_counts_as_delivered_twice(boot: Boot) -> None:
    server, node = await pair(boot)
    client = await server.client()
    await client.put("warm", server.now_ms)
    await server.sleep_ms(500)
    for transport in node.listener.accepted:
        transport.fail_sends = True
    await client.put("m", server.now_ms)
    await server.sleep_ms(500)
    await server.restart_killed()
    client = await server.client()
    await client.put("behind", server.now_ms)
    await server.sleep_ms(2_000)
    messages = await (await node.client()).pull()
    assert [(message["body"], message["attempt"]) for message in messages] == [(b"warm", 1), (b"m", 1), (b"behind", 1)]
    assert (await client.status())["groups"]["remote"]["maybe_delivered_twice"] == 0


async def test_after_a_crash_messages_that_another_node_may_have_count_as_maybe_delivered_twice(boot: Boot) -> None:
    server, first, second = await two_nodes(boot)
    client = await server.client()
    due_ms = server.now_ms + 200
    for number in range(8):
        await client.put(str(number), due_ms)
    await server.sleep_ms(100)
    await server.restart_killed()
    await server.sleep_ms(2_000)
    messages = [*await (await first.client()).pull(), *await (await second.client()).pull()]
    assert sorted(texts(messages)) == [str(number) for number in range(8)]
    assert {message["attempt"] for message in messages} == {2}, "the server cannot know that there was no attempt"
    status = await (await server.client()).status()
    assert status["groups"]["remote"]["maybe_delivered_twice"] == 8


async def test_a_node_takes_a_delivery_with_and_without_hand_overs_to_others(boot: Boot) -> None:
    node, client = await boot.connected(name="node", role=BROKER)
    first = delivery(node.now_ms, 3, uncertain=False) | {"unanswered": [0], "redelivery": 1}
    assert (await client.request("deliver", first))["outcome"]
    assert [message["attempt"] for message in await client.pull()] == [2, 3]
    again = first | {"uncertain": True, "unanswered": 7}
    outcome = (await client.request("deliver", again))["outcome"]
    assert unpack_column(outcome, 2, U8, "outcome").tolist() == [2, 2], "the key is without it"
    high = delivery(node.now_ms, 13, uncertain=False) | {"unanswered": (1 << 32) - 1, "redelivery": (1 << 32) - 1}
    assert (await client.request("deliver", high))["outcome"]
    assert {message["attempt"] for message in await client.pull()} == {0xFFFF * 2 + 1}, "counted up to a bound"
    for bad in ("x", b"12", -1, 1 << 32):
        assert await client.refused("deliver", first | {"unanswered": bad}) == "invalid_argument"
