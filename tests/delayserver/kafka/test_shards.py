"""Shards as processes: the map names them and whoever leads, one is added and drained, and a member moves."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from delayserver.client import Client, ShardMap
from delayserver.protocol.slots import slot_of
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import UNHURRIED_S
from tests.delayserver.kafka.processes import Cluster, Member, running
from tests.ports import free_port

pytestmark = pytest.mark.kafka

DUE_MS = time.time_ns() // 1_000_000 + 3_600_000


@pytest.fixture(scope="module")
def cluster(one_node: KafkaNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two shards with a member each."""
    with running(one_node, tmp_path_factory.mktemp("shards"), "ab", shards=(0, 1)) as members:
        yield members


def ask(member: Member, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One request to this very member, as the wire has it: clients of the library go to the shard of a message."""
    host, _, port = member.address.rpartition(":")
    payload = msgpack.packb([1, operation, arguments])
    with socket.create_connection((host, int(port)), UNHURRIED_S) as connection, connection.makefile("rb") as replies:
        connection.sendall(struct.pack("<I", len(payload)) + payload)
        (length,) = struct.unpack("<I", replies.read(4))
        result: dict[str, Any] = msgpack.unpackb(replies.read(length))[2]
        return result


def put(member: Member, **fields: Any) -> dict[str, Any]:
    """Send one message that is due in an hour."""
    row = {"subject": "s", "body": "x", "due_ms": DUE_MS} | fields
    (result,) = ask(member, "send", {"messages": [row]})["results"]
    return dict(result)


def map_with(member: Member, wanted: Callable[[ShardMap], bool]) -> ShardMap:
    """The map of a member, when it is as wanted."""
    with Client(member.address) as client:
        for _ in range(UNHURRIED_S * 10):
            shown = client.shard_map()
            if wanted(shown):
                return shown
            time.sleep(0.1)
    raise AssertionError(shown)


def leads(shard: int, address: str) -> Callable[[ShardMap], bool]:
    return lambda shown: len(shown.shards) > shard and shown.shards[shard].primary == address


def test_each_member_knows_all_shards_and_takes_its_own_messages(cluster: Cluster) -> None:
    a, b = cluster.members["a"], cluster.members["b"]
    for member in (a, b):
        for other in (a, b):
            shown = map_with(member, leads(other.shard, other.address))
    ids = next(text for text in map(str, range(100)) if slot_of("s", text) > 511)
    refused = put(a, message_id=ids)
    assert (refused["error"], refused["shard"]) == ("wrong_shard", 1)
    assert refused["version"] <= shown.version
    assert put(b, message_id=ids)["receipt"].startswith(shown.shards[1].server_id)
    assert ask(a, "hello", {"versions": [1]})["shards"] == 2
    rows = {row["member"]: row for row in cluster.run("status", "--json").rows}
    assert {name: (row["shard"], row["role"], row["state"]) for name, row in rows.items()} == {
        "a": (0, "primary", "open"),
        "b": (1, "primary", "open"),
    }


def add_member(cluster: Cluster, name: str, like: Member, shard: int) -> Member:
    """Start a new member of a shard."""
    member = Member(name, like.folder, f"127.0.0.1:{free_port(1)}", shard)
    member.file.write_text(like.file.read_text().replace(f'member = "{like.name}"', f'member = "{name}"'))
    cluster.members[name] = member
    member.begin()
    member.ready()
    return member


def test_a_shard_is_added_and_drained(cluster: Cluster) -> None:
    first = cluster.members["a"]
    refused = cluster.run("drain-shard", "--shard", "0")
    assert (refused.code, "one of the founding" in refused.err) == (1, True)
    added = cluster.run("add-shard", "--json")
    assert (added.code, added.row["shard"]) == (0, 2), added.err
    assert "shard 2 has no members" in cluster.run("status").out
    member = add_member(cluster, "c", first, 2)
    map_with(first, leads(2, member.address))
    named = f"{added.row['server_id']}.1"
    assert put(first, message_id=named)["shard"] == 2
    receipts = [put(member, message_id=named)["receipt"], put(member)["receipt"]]
    drained = cluster.run("drain-shard", "--shard", "2", "--json")
    assert (drained.code, drained.row) == (0, {"shard": 2, "state": "draining", "left": 2}), drained.err
    assert put(member)["error"] == "wrong_shard"
    assert "shard 2, draining: 2 messages are left" in cluster.run("status").out
    # A repeated send still meets the shard that has the message.
    assert "receipt" in put(member, message_id=named)
    ask(member, "cancel", {"receipts": receipts})
    for _ in range(UNHURRIED_S):  # outcomes are counted when they are on disk
        drained = cluster.run("drain-shard", "--shard", "2", "--json")
        if drained.row["state"] == "closed":
            break
    assert drained.row == {"shard": 2, "state": "closed", "left": 0}, drained.err
    assert put(member, message_id=named)["error"] == "wrong_shard"


def test_a_member_moves(cluster: Cluster) -> None:
    former = cluster.members["b"]
    heir = add_member(cluster, "d", former, 1)
    refused = cluster.run("move", "--shard", "0", "--from", "b", "--to", "d")
    assert (refused.code, "shard 0 has no member b" in refused.err) == (1, True)
    moved = cluster.run("move", "--shard", "1", "--from", "b", "--to", "d", "--json")
    assert (moved.code, moved.row) == (0, {"shard": 1, "from": "b", "to": "d", "led": True}), moved.err
    shown = map_with(cluster.members["a"], leads(1, heir.address))
    assert shown.shards[1].standbys == []
