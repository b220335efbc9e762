"""Publish: messages that are due now go straight into this node's store, are durable before the answer, and one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.front.front import BROKER
from delayserver.protocol.columns import I64, unpack_column
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, small_settings, texts
from tests.fakes.network import FakeNetwork


async def publish(client: Client, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = (await client.request("publish", {"messages": list(messages)}))["results"]
    return results


async def put(client: Client, body: str, subject: str = "s", **rest: Any) -> dict[str, Any]:
    (result,) = await publish(client, {"subject": subject, "body": body} | rest)
    assert "position" in result, result
    return result


async def put_columns(client: Client, bodies: str, **more: Any) -> dict[str, Any]:
    arguments = {"count": len(bodies), "subject": "s", "bodies": bodies.encode(), "body_length": 1}
    return await client.request("publish", arguments | more)


@pytest.mark.parametrize("role", ["server", BROKER])
async def test_rows_and_columns_are_stored_in_their_order_and_answered_with_their_positions(
    boot: Boot, role: str
) -> None:
    host, client = await boot.connected(role=role)
    server = host.server
    first = await put(client, "one", message_id="mine")
    assert first == {"message_id": "mine", "subject": "s", "position": 0}
    results = await publish(client, *({"subject": name, "body": name + "x"} for name in ("t", "s", "t")))
    assert [row["position"] for row in results] == [0, 1, 1]
    assert all(row["message_id"].startswith(server.parts.figures.identity.server_id) for row in results)
    reply = await put_columns(client, "abc")
    assert unpack_column(reply["position"], 3, I64, "position").tolist() == [2, 3, 4]
    index = np.array([1, 0, 1], "<u4").tobytes()
    arguments = {"count": 3, "subjects": ["s", "t"], "subject_index": index, "bodies": b"def", "body_length": 1}
    reply = await client.request("publish", arguments)
    assert unpack_column(reply["position"], 3, I64, "position").tolist() == [2, 5, 3]
    assert texts(await client.pull()) == ["one", "sx", "a", "b", "c", "e"]
    pulled = await client.pull("t")
    assert texts(pulled) == ["tx", "tx", "d", "f"]
    assert [row["message_id"][-4:] for row in pulled[2:]] == [
        f"{reply['first_sequence'] + place:04x}" for place in (0, 2)
    ]
    status = await client.status()
    assert status["broker"]["published"] == 10 and status["broker"]["delivered"] == 0
    if role == "server":
        assert host.check_balance(pending=0)["accepted"] == 0


async def test_messages_published_in_one_step_are_one_write_and_keep_their_order(boot: Boot) -> None:
    host, client = await boot.connected()
    server = host.server
    await put(client, "0")
    groups = server.parts.broker.publishing.groups
    server.parts.broker.publishing.begin_step()  # as the hub does around all that it reads
    asked = []
    for number in range(1, 6):
        if number == 3:
            arguments = {"count": 2, "subject": "s", "bodies": b"xy", "body_length": 1}
        else:
            arguments = {"messages": [{"subject": "s", "body": str(number)}]}
        asked.append(await client.ask("publish", arguments))
    await host.sleep_ms(1)
    assert server.parts.broker.publishing.groups == groups and not client.replies
    assert server.parts.broker.publishing.end_step()
    for number in asked:
        await client.reply(number)
    assert server.parts.broker.publishing.groups == groups + 1
    assert texts(await client.pull()) == ["0", "1", "2", "x", "y", "4", "5"]


async def test_a_waiting_pull_is_answered_in_the_step_of_the_publish(boot: Boot) -> None:
    host = await boot.started()
    waiting, client = await host.client(), await host.client()
    await put(client, "first")
    await waiting.pull()
    asked = await waiting.ask("pull", {"subject": "s", "group": "g", "max_messages": 9, "wait_ms": 60_000})
    await host.sleep_ms(100)
    before_ms = host.now_ms
    await put(client, "second", tag="new", order_key="k", properties={"a": "b"}, expires_ms=host.now_ms + 60_000)
    (message,) = (await waiting.reply(asked))["messages"]
    assert host.now_ms - before_ms < 5
    assert (message["body"], message["tag"], message["order_key"]) == (b"second", "new", "k")
    assert message["properties"] == {"a": "b"} and message["expires_ms"] == before_ms + 60_000
    assert message["due_ms"] * 1000 <= message["accepted_us"] == message["dispatched_us"]


async def test_publishes_and_deliveries_of_a_subject_are_one_queue_with_one_sequence(boot: Boot) -> None:
    host, client = await boot.connected()
    sent = await client.put("sent", host.now_ms + 100)
    await put(client, "published")
    await host.sleep_ms(500)
    await put(client, "again")
    later = await client.put("later", host.now_ms)
    await host.sleep_ms(500)
    pulled = await client.pull()
    assert texts(pulled) == ["published", "sent", "again", "later"]
    sequences = [row["sequence"] for row in pulled]
    assert len(set(sequences)) == 4 and sequences[1] == sent["sequence"] and later["sequence"] > sequences[2]
    host.check_balance(pending=0)


@pytest.mark.parametrize("crash", ["kill", "lose_power", "stop"])
async def test_answered_messages_survive_a_crash_and_none_comes_twice(boot: Boot, crash: str) -> None:
    host, client = await boot.connected()
    for number in range(20):
        await put(client, f"{number:02}")
    await put_columns(client, "abc")
    await getattr(host, crash)()
    server = await host.start()
    client = await host.client()
    assert (await put(client, "more"))["position"] == 23
    pulled = await client.pull()
    assert texts(pulled) == [*[f"{number:02}" for number in range(20)], "a", "b", "c", "more"]
    assert len({row["sequence"] for row in pulled}) == 24
    assert not server.parts.broker.core.state.damages.texts
    assert server.parts.broker.core.status()["open_windows"] == 0, "published messages have no window"


async def test_a_nack_brings_a_published_message_again(boot: Boot) -> None:
    host, client = await boot.connected()
    result = await put(client, "m", tag="t", order_key="k")
    (message,) = await client.pull()
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"], "delay_ms": 0}
    assert (await client.request("nack", arguments))["nacked"] == 1
    await host.sleep_ms(300)
    (again,) = await client.pull()
    assert (again["message_id"], again["attempt"], again["tag"]) == (result["message_id"], 2, "t")


async def test_an_expired_published_message_is_not_handed_out(boot: Boot) -> None:
    host, client = await boot.connected()
    await put(client, "gone", expires_ms=host.now_ms + 50)
    await put(client, "stays")
    await host.sleep_ms(100)
    assert texts(await client.pull()) == ["stays"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"subject": ""}, "subject_invalid"),
        ({"subject": "a\n"}, "subject_invalid"),
        ({"body": 7}, "invalid_argument"),
        ({"body": "x" * 101}, "message_too_large"),
        ({"due_ms": 1}, "invalid_argument"),
        ({"delay_ms": 0}, "invalid_argument"),
        ({"properties": {"a": 1}}, "properties_invalid"),
        ({"message_id": ""}, "message_id_invalid"),
        ({"expires_ms": -1}, "invalid_argument"),
        ({"tag": ""}, "invalid_argument"),
        ({"order_key": 1}, "invalid_argument"),
    ],
)
async def test_a_bad_row_is_refused_by_name_beside_its_neighbours(
    boot: Boot, change: dict[str, Any], error: str
) -> None:
    _, client = await boot.connected(small_settings(message={"body_bytes_max": 100}))
    good = {"subject": "s", "body": "good"}
    results = await publish(client, good, good | change, good)
    assert [row.get("error") for row in results] == [None, error, None]
    assert [row.get("position") for row in results] == [0, None, 1]
    assert texts(await client.pull()) == ["good", "good"]


async def test_bad_rows_of_columns_are_refused_and_bad_columns_refuse_all(boot: Boot) -> None:
    _, client = await boot.connected(small_settings(message={"body_bytes_max": 2, "batch_messages_max": 3}))
    lengths = np.array([1, 3, 2], "<u4").tobytes()
    arguments = {"count": 3, "subject": "s", "bodies": b"abbbcc", "body_length": lengths}
    reply = await client.request("publish", arguments)
    assert reply["accepted"] == 2 and [row[:2] for row in reply["rejected"]] == [[1, "message_too_large"]]
    assert texts(await client.pull()) == ["a", "cc"]
    for wrong, error in (
        ({"count": 4}, "batch_too_large"),
        ({"count": 0}, "invalid_argument"),
        ({"due_ms": 5}, "invalid_argument"),
        ({"bodies": b"x"}, "invalid_argument"),
        ({"messages": []}, "invalid_argument"),
    ):
        assert await client.refused("publish", arguments | wrong) == error, wrong
    assert await client.refused("publish", {"messages": []}) == "invalid_argument"


async def test_a_subject_of_other_nodes_is_refused_with_their_names_and_stores_nothing(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = await boot.started(name="node", role=BROKER, network=network, clock=clock)
    groups = (GroupSettings("here"), GroupSettings("there", (NodeSettings("node:1"),)))
    routes = (RouteSettings("far.*", ("there",)), RouteSettings("*", ("here",)))
    host, client = await boot.connected(
        small_settings(groups=groups, routes=routes), name="server", network=network, clock=clock
    )
    server = host.server
    names = len(server.parts.files.names)
    good, far = {"subject": "s", "body": "x"}, {"subject": "far.a", "body": "x"}
    refused, stored = await publish(client, far, good)
    assert refused["error"] == "published_elsewhere" and "node:1" in refused["message"]
    assert stored["position"] == 0 and len(server.parts.files.names) == names + 1
    arguments = {"count": 2, "subjects": ["s", "far.a"], "subject_index": [0], "bodies": b"ab", "body_length": 1}
    reply = await client.request("publish", arguments)
    assert [row[:2] for row in reply["rejected"]] == [[1, "published_elsewhere"]]
    assert len(server.parts.files.names) == names + 1
    assert (await put(await node.client(), "x", "far.a"))["position"] == 0


async def test_nothing_is_stored_without_room_and_all_goes_on_with_it(boot: Boot) -> None:
    host, client = await boot.connected()
    await put(client, "before")
    host.disk.capacity_bytes = host.disk.used_bytes
    for _ in range(3):
        refused = await client.refused("publish", {"messages": [{"subject": "s", "body": "x" * 300_000}]})
        assert refused == "disk_full"
    host.disk.capacity_bytes = None
    assert (await put(client, "after"))["position"] == 1
    assert texts(await client.pull()) == ["before", "after"]


async def test_a_stop_waits_for_the_space_that_is_zeroed_ahead_of_the_store(boot: Boot) -> None:
    host = boot(small_settings(storage={"warm_ahead_bytes": 1 << 16}))
    warming = trio.Event()

    async def around(name: str, work: Callable[[], Any]) -> Any:
        if name == "sync_warm":
            warming.set()
            with trio.CancelScope(shield=True):  # as a thread
                await host.sleep_ms(200)
        return work()

    host.workers.around = around
    client = await host.start_connected()
    await client.request("publish", {"messages": [{"subject": "s", "body": "m"}]})
    await warming.wait()
    await host.stop()
    assert (await host.start()).parts.opened.sequences.clean
