"""A shard of several takes the messages of its own slots, and those whose id names it. Each member serves the map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from delayserver.config.settings import Settings
from delayserver.protocol.columns import U32, pack_column
from delayserver.protocol.schema.shard_map import ShardMap, ShardPlace
from delayserver.protocol.slots import slot_of
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Client

OWN, OTHER, ADDED = "00000000000a", "00000000000b", "00000000000c"


def two_shards(version: int = 7, *, state: str = "open") -> ShardMap:
    """This shard has the first half of the slots, and an added one has none."""
    places = [
        ShardPlace(0, OWN, state, 1, "a:1", ["b:1"]),
        ShardPlace(1, OTHER, "open", 1, "c:1", []),
        ShardPlace(2, ADDED, "open", 0, "", []),
    ]
    return ShardMap(version, [[0, 511, 0], [512, 1023, 1]], places)


def text_of(shard: int, subject: str = "s") -> str:
    """A text in a slot of the shard."""
    return next(text for text in map(str, range(100)) if (slot_of(subject, text) > 511) == (shard == 1))


async def started(boot: Boot) -> tuple[Cluster, Client]:
    cluster = Cluster(boot, "ab", Settings())
    client = await cluster.start()
    cluster.maps["a"].take(two_shards())
    return cluster, client


def shard_of(item: dict[str, Any]) -> Any:
    """What the answer to a row says: the shard that has it, "none", or "taken"."""
    return item.get("shard", "none") if item.get("error") == "wrong_shard" else "taken" if "error" not in item else item


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"message_id": text_of(0)}, "taken"),
        ({"message_id": text_of(1)}, 1),
        ({}, "taken"),
        ({"message_id": f"{OWN}.{text_of(1)}"}, "taken"),
        ({"message_id": f"{OTHER}.1"}, 1),
        ({"message_id": f"{ADDED}.1"}, 2),
        ({"order_key": text_of(0), "message_id": f"{OTHER}.1"}, "taken"),
        ({"order_key": text_of(1), "message_id": text_of(0)}, 1),
    ],
    ids=str,
)
async def test_a_row_of_another_shard_is_refused_by_name(boot: Boot, message: dict[str, Any], told: object) -> None:
    _, client = await started(boot)
    row = {"subject": "s", "body": "x"} | message
    for operation, more in (("send", {"delay_ms": 1_000}), ("publish", {}), ("prepare", {"delay_ms": 1_000})):
        terms = {"group": "shop"} if operation == "prepare" else {}
        (result,) = (await client.request(operation, {"messages": [row | more]} | terms))["results"]
        assert shard_of(result) == told, operation
        assert told == "taken" or result["version"] == 7


async def test_of_columns_the_rows_of_this_shard_are_taken(boot: Boot) -> None:
    _, client = await started(boot)
    ids = [text_of(0), text_of(1), f"{ADDED}.1", ""]
    lengths = pack_column(np.array([len(each) for each in ids], np.uint32), U32)
    columns = {"count": 4, "subject": "s", "bodies": b"abcd", "body_length": 1}
    named = {"message_ids": "".join(ids).encode(), "message_id_length": lengths}
    for operation, more in (("send", {"delay_ms": 1_000}), ("publish", {})):
        reply = await client.request(operation, columns | named | more)
        assert [(each[0], each[1]) for each in reply["rejected"]] == [(1, "wrong_shard"), (2, "wrong_shard")]
        keys = {"order_keys": named["message_ids"], "order_key_length": lengths}
        reply = await client.request(operation, columns | keys | more)
        # A key that looks like an id which names a shard is a key.
        others = [place for place, key in enumerate(ids) if key and slot_of("s", key) > 511]
        assert [each[0] for each in reply["rejected"]] == others
    # Too early for its window and of another shard: one error for each row.
    wrong = columns | named | {"due_ms": pack_column(np.array([1, 1, 1, 1], np.int64))}
    assert [each[1] for each in (await client.request("send", wrong))["rejected"]] == ["too_old"] * 4


async def test_a_draining_shard_takes_what_names_it_and_a_closed_one_nothing(boot: Boot) -> None:
    cluster, client = await started(boot)

    async def told() -> list[object]:
        ids = [{}, {"message_id": f"{OWN}.1"}, {"message_id": f"{OTHER}.1"}]
        rows = [{"subject": "s", "body": "x", "delay_ms": 1_000} | each for each in ids]
        return [shard_of(each) for each in await client.send(*rows)]

    cluster.maps["a"].take(two_shards(8, state="draining"))
    assert await told() == ["none", "taken", 1]
    cluster.maps["a"].take(two_shards(9, state="closed"))
    assert await told() == ["none", "none", 1]


async def test_every_member_gives_the_map_when_it_changes(boot: Boot) -> None:
    cluster, client = await started(boot)
    standby = await cluster.hosts["b"].client()
    assert await standby.request("map") == {"version": 0, "slots": [], "shards": []}
    asked = await standby.ask("map", {"after": 0, "wait_ms": 60_000})
    await cluster.hosts["b"].sleep_ms(100)
    cluster.maps["b"].take(two_shards())
    shown = await standby.reply(asked)
    assert shown == await client.request("map")
    assert (shown["version"], [each["primary"] for each in shown["shards"]]) == (7, ["a:1", "c:1", ""])
    # Without a change the present one comes at the end of the time.
    begun_ms = cluster.hosts["b"].now_ms
    assert await standby.request("map", {"after": 7, "wait_ms": 1_000}) == shown
    assert cluster.hosts["b"].now_ms >= begun_ms + 1_000
    assert await standby.refused("map", {"after": 7, "wait_ms": 60_001}) == "invalid_argument"
    assert (await client.request("hello", {"versions": [1]}))["shards"] == 3


async def test_a_server_without_a_cluster_has_no_shards(boot: Boot) -> None:
    _, client = await boot.connected()
    assert "shards" not in await client.request("hello", {"versions": [1]})
    empty = {"version": 0, "slots": [], "shards": []}
    assert await client.request("map", {"wait_ms": 60_000}) == empty


async def test_a_takeover_is_told_to_the_map(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts.values()
    await first.start()
    second.begin()
    await second.sleep_ms(1_000)
    assert (cluster.maps["a"].led.value, cluster.maps["b"].led.value) == (1, 0)
    await first.kill()
    await second.wait_up()
    assert (cluster.maps["a"].led.value, cluster.maps["b"].led.value) == (1, 2)


async def test_connections_end_when_a_second_shard_comes(boot: Boot) -> None:
    cluster = Cluster(boot, "a")
    (only,) = cluster.hosts.values()
    one, two = two_shards(1), two_shards(2)
    cluster.maps["a"].take(ShardMap(1, [[0, 1023, 0]], [ShardPlace(0, OWN, "open", 0, "", ["a:1"])]))
    client = await only.start_connected()
    cluster.maps["a"].take(ShardMap(2, [[0, 1023, 0]], one.shards[:1]))
    assert (await client.request("hello", {"versions": [1]}))["shards"] == 1
    cluster.maps["a"].take(ShardMap(3, [[0, 1023, 0]], two.shards))
    await only.sleep_ms(1)
    with pytest.raises(ConnectionResetError):
        await client.request("ping")
    client = await only.client()
    assert (await client.request("hello", {"versions": [1]}))["shards"] == 3
    cluster.maps["a"].take(two_shards(4))
    await only.sleep_ms(1)
    await client.request("ping")
