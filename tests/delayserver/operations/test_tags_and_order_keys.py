"""Tags and order keys of messages: from the send to the consumer, over everything that makes a new record of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from delayserver.config.settings import GroupSettings, NodeSettings
from delayserver.front.front import BROKER
from delayserver.recover.telling.dump import dump_file
from store.records.batches import MessageBatch
from store.records.column_batch import constant_column
from store.records.id_hash import hash_id
from store.records.record import HEADER_BYTES, decode_header
from store.records.versions import lowest_schema
from tests.fakes.clock import SimulatedClock
from tests.fakes.host import Boot, Client, small_settings
from tests.fakes.network import FakeNetwork

GIVEN = {"tag": "paid", "order_key": "käse"}


def rare(messages: Iterable[dict[str, Any]]) -> list[tuple[str, str | None, str | None]]:
    return [(message["body"].decode(), message.get("tag"), message.get("order_key")) for message in messages]


async def send_columns(client: Client, due_ms: int | bytes, **more: Any) -> dict[str, Any]:
    arguments = {"count": 3, "subject": "s", "due_ms": due_ms, "bodies": b"abc", "body_length": 1}
    return await client.request("send", arguments | more)


async def test_tags_and_order_keys_of_rows_and_columns_come_back_in_rows_and_columns(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    server = host.server
    await client.put("plain", host.now_ms + 100)
    await client.put("rare", host.now_ms + 110, **GIVEN)
    columns = {"tags": ["paid", "new"], "tag_index": np.array([0, 2, 1], "<u4").tobytes()}
    keys = {"order_keys": b"kkl", "order_key_length": np.array([2, 0, 1], "<u4").tobytes()}
    # Messages with a key and those without stand in no order where they are due at one time.
    due_ms = np.array([200, 210, 220], "<i8") + host.now_ms
    assert (await send_columns(client, due_ms.tobytes(), **columns, **keys))["rejected"] == []
    await send_columns(client, host.now_ms + 300, tag="all")
    await host.sleep_ms(500)
    expected: list[tuple[str, str | None, str | None]] = [
        *[("plain", None, None), ("rare", "paid", "käse")],
        *[("a", None, "kk"), ("b", "new", None), ("c", "paid", "l")],
        *[("a", "all", None), ("b", "all", None), ("c", "all", None)],
    ]
    assert rare(await client.pull()) == expected
    arguments = {"subject": "s", "group": "h", "max_messages": 100, "columns": True}
    pulled = await client.request("pull", arguments)
    tags = [None, *pulled["tags"]]
    assert [tags[code] for code in np.frombuffer(pulled["tag_index"], "<u4")] == [tag for _, tag, _ in expected]
    assert pulled["order_keys"].decode() == "".join(key or "" for _, _, key in expected)
    assert (await client.status())["storage"]["tags"] == len(server.parts.files.names.codes(3)) == 3


async def test_messages_without_tags_and_keys_cost_no_byte_on_the_wire_nor_a_newer_record(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.put("one", host.now_ms)
    await send_columns(client, host.now_ms)
    await host.sleep_ms(200)
    columns = await client.request("pull", {"subject": "s", "group": "g", "max_messages": 9, "columns": True})
    assert not {"tags", "tag_index", "order_keys", "order_key_length"} & set(columns)
    (row, *_) = await client.pull(group="h")
    assert not {"tag", "order_key"} & set(row)
    await host.stop()
    paths = [path for path in host.disk.files("/data") if path.endswith(".log")]
    records = [row for path in paths for row in dump_file(host.disk, path) if "record" in row]
    assert {row["record"] for row in records} >= {"messages", "stored"}
    for path in paths:
        for row in (row for row in dump_file(host.disk, path, rows=False) if "record" in row):
            file = host.disk.open(path, write=False)
            assert decode_header(file.pread(row["offset"], HEADER_BYTES), row["offset"]).version == 1, path


@pytest.mark.parametrize("column", ["tag", "flags", "order_hash"])
def test_a_record_has_the_newer_version_only_for_rows_that_need_it(column: str) -> None:
    batch = MessageBatch.filled(3, sequence=np.arange(1, 4))
    assert lowest_schema(batch).version == 1
    assert lowest_schema(batch.with_columns(**{column: np.zeros(3, np.uint64)})).version == 1
    last = np.array([0, 0, 1], dict(batch.schema.fields)[column])
    assert lowest_schema(batch.with_columns(**{column: last})).version == 2
    dtype = dict(batch.schema.fields)[column]
    assert lowest_schema(batch.with_columns(**{column: constant_column(7, 3, dtype)})).version == 2


async def test_tags_and_order_keys_stay_through_restart_reschedule_and_redelivery(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    sent = await client.put("later", host.now_ms + 60_000, message_id="m", **GIVEN)
    (moved,) = (
        await client.request("reschedule", {"items": [{"receipt": sent["receipt"], "due_ms": host.now_ms + 2_000}]})
    )["results"]
    assert moved["outcome"] == "cancelled"
    await host.restart_unpowered()
    client = await host.client()
    await host.sleep_ms(4_000)
    (message,) = await client.pull()
    assert rare([message]) == [("later", "paid", "käse")]
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"], "delay_ms": 0}
    assert (await client.request("nack", arguments))["nacked"] == 1
    await host.sleep_ms(300)
    (again,) = await client.pull()
    assert again["attempt"] == 2 and rare([again]) == [("later", "paid", "käse")]
    span = {"from_ms": 0, "to_ms": 1 << 50}
    assert (await client.request("redispatch", span))["messages"] == 1
    await host.sleep_ms(300)
    assert rare(await client.pull(group="other")) == [("later", "paid", "käse")] * 2


async def test_a_node_on_another_host_gets_tags_and_order_keys(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = await boot.started(name="node", role=BROKER, network=network, clock=clock)
    group = GroupSettings("default", (NodeSettings("node:1"),))
    host, client = await boot.connected(small_settings(groups=(group,)), name="server", network=network, clock=clock)
    await client.put("plain", host.now_ms)
    await client.put("rare", host.now_ms, **GIVEN)
    await client.put("keyed", host.now_ms, order_key="k")
    await host.sleep_ms(500)
    pulled = rare(await (await node.client()).pull())
    assert sorted(pulled) == [("keyed", None, "k"), ("plain", None, None), ("rare", "paid", "käse")]
    await node.stop()
    (path,) = [path for path in node.disk.files("/data/broker/store") if path.endswith(".log")]
    rows = [row for row in dump_file(node.disk, path) if "order_hash" in row]
    named = {(row.get("tag_name"), row.get("order_key"), row["order_hash"]) for row in rows}
    assert named == {
        (None, None, 0),
        ("paid", "käse", hash_id("käse".encode())),
        (None, "k", hash_id(b"k")),
    }


async def test_a_node_refuses_the_rows_whose_tag_has_no_room_and_takes_the_others(boot: Boot) -> None:
    network, clock = FakeNetwork(), SimulatedClock()
    node = await boot.started(
        small_settings(message={"tags_max": 1}), name="node", role=BROKER, network=network, clock=clock
    )
    group = GroupSettings("default", (NodeSettings("node:1"),))
    host, client = await boot.connected(small_settings(groups=(group,)), name="server", network=network, clock=clock)
    for tag in ("one", "two"):
        await client.put(tag, host.now_ms, tag=tag)
    await client.put("none", host.now_ms)
    await host.sleep_ms(1_000)
    pulled = rare(await (await node.client()).pull())
    assert ("none", None, None) in pulled and len(pulled) == 2, "the node has room for one tag"
    assert host.check_balance(pending=1)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("tag", "", "invalid_argument"),
        ("tag", 7, "invalid_argument"),
        ("tag", "a\nb", "invalid_argument"),
        ("tag", "x" * 256, "invalid_argument"),
        ("order_key", "", "invalid_argument"),
        ("order_key", b"k", "invalid_argument"),
        ("order_key", "ä" * 128, "invalid_argument"),
        ("tag", "third", "tags_full"),
    ],
)
async def test_a_bad_row_is_refused_by_name_beside_its_neighbours(
    boot: Boot, field: str, value: object, error: str
) -> None:
    host, client = await boot.connected(small_settings(message={"tags_max": 2}))
    good = {"subject": "s", "body": "x", "due_ms": host.now_ms + 60_000}
    await client.send(good | {"tag": "first"}, good | {"tag": "second"})
    results = await client.send(good, good | {field: value}, good | {"tag": "second", "order_key": "x" * 255})
    assert [result.get("error") for result in results] == [None, error, None]


async def test_bad_rows_of_columns_are_refused_and_bad_columns_refuse_all(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(message={"tags_max": 2}))
    due_ms = host.now_ms + 60_000
    index = np.array([1, 2, 3], "<u4").tobytes()
    reply = await send_columns(client, due_ms, tags=["a", "b\x07", "c"], tag_index=index)
    assert [(row[0], row[1]) for row in reply["rejected"]] == [(1, "invalid_argument")]
    reply = await send_columns(client, due_ms, tags=["a", "c", "d"], tag_index=index)
    assert [(row[0], row[1]) for row in reply["rejected"]] == [(2, "tags_full")]
    lengths = np.array([256, 0, 255], "<u4").tobytes()
    reply = await send_columns(client, due_ms, order_keys=b"k" * 511, order_key_length=lengths)
    assert [(row[0], row[1]) for row in reply["rejected"]] == [(0, "invalid_argument")]
    for wrong in (
        {"tags": ["a"], "tag_index": 2},
        {"tags": "a", "tag_index": 1},
        {"tags": ["a"]},
        {"tag": "\x07"},
        {"order_keys": b"\xff\xff\xff", "order_key_length": 1},
        {"order_keys": "ä".encode() + b"k", "order_key_length": 1},
        {"order_keys": b"k", "order_key_length": 1},
    ):
        arguments = {"count": 3, "subject": "s", "due_ms": due_ms, "bodies": b"abc", "body_length": 1} | wrong
        assert await client.refused("send", arguments) == "invalid_argument", wrong
