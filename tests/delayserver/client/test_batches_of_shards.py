"""A batcher of a client of several shards: one that does not answer delays no messages of the others."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from typing import Any

import anyio
import numpy as np
import pytest

from delayserver.client import AsyncClient, Client, Message
from delayserver.protocol.columns import I64, pack_column
from delayserver.protocol.schema.shard_map import DRAINING
from delayserver.protocol.slots import SLOTS, slot_of
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_cluster import FakeCluster, fake_cluster
from tests.delayserver.client.fake_server import Garbage

STUCK = 2
KINDS = pytest.mark.parametrize("kind", ["send", "publish"])


def ids_of(shard: int) -> list[str]:
    """Ids of messages of the subject `a`."""
    return [f"m-{n}" for n in range(400) if min(slot_of("a", f"m-{n}") // (SLOTS // 3), 2) == shard]


def publish(asked: dict[str, Any]) -> dict[str, Any]:
    """The reply of a server that stores all messages."""
    count = asked["count"]
    return {"accepted": count, "first_sequence": 1, "position": pack_column(np.arange(count), I64), "rejected": []}


def hang(cluster: FakeCluster, kind: str) -> None:
    for member in cluster.members:
        member.answers["publish"] = publish
    cluster.members[STUCK].misbehave(kind, *[Garbage(b"")] * 50)


def answer_again(cluster: FakeCluster, kind: str) -> None:
    """The client repeats what has an id."""
    member = cluster.members[STUCK]
    member.behave(kind)
    member.drop_connections()


def arguments(kind: str) -> dict[str, Any]:
    return {"due_ms": 1} if kind == "send" else {}


@KINDS
@on_each_loop
async def test_an_asynchronous_batcher_waits_for_no_other_shard(kind: str) -> None:
    with fake_cluster() as cluster:
        async with AsyncClient(cluster.members[0].address, timeout_s=600) as client:
            hang(cluster, kind)
            made = client.batcher if kind == "send" else client.publisher
            async with made("a", linger_ms=1, batch_messages_max=2, pending_messages_max=12) as batcher:
                stuck, more = ids_of(STUCK), anyio.Event()
                behind: list[Awaitable[object]] = []

                async def send_behind(named: str) -> None:
                    behind.append(await batcher.send(b"", message_id=named, **arguments(kind)))

                async def send_to_the_stuck_one() -> None:
                    for each in stuck[:10]:
                        await send_behind(each)
                    more.set()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send_to_the_stuck_one)
                    while len(behind) < 6 or not cluster.members[STUCK].count(kind):
                        await anyio.sleep(0.001)
                    for number in (*ids_of(0)[:9], *ids_of(1)[:9]):
                        await (await batcher.send(b"", message_id=number, **arguments(kind)))
                    for _ in range(9):  # any shard
                        await (await batcher.send(b"", **arguments(kind)))
                    assert len(behind) == 6 and not more.is_set(), "it has half of the places"
                    assert cluster.members[STUCK].count(kind) == 1
                    answer_again(cluster, kind)
                for handle in behind:
                    await handle


@KINDS
def test_a_blocking_batcher_waits_for_no_other_shard(kind: str) -> None:
    with fake_cluster() as cluster, Client(cluster.members[0].address, timeout_s=600) as client:
        hang(cluster, kind)
        made = client.batcher if kind == "send" else client.publisher
        with made("a", linger_ms=1, batch_messages_max=2, pending_messages_max=12) as batcher:
            behind: list[Any] = []

            def send_behind(named: str) -> None:
                behind.append(batcher.send(b"", message_id=named, **arguments(kind)))

            def send_to_the_stuck_one() -> None:
                for each in ids_of(STUCK)[:10]:
                    send_behind(each)

            other = threading.Thread(target=send_to_the_stuck_one, daemon=True)
            other.start()
            while len(behind) < 6 or not cluster.members[STUCK].count(kind):
                other.join(0.001)
            for number in (*ids_of(0)[:9], *ids_of(1)[:9]):
                batcher.send(b"", message_id=number, **arguments(kind)).result(60)
            for _ in range(9):  # any shard
                batcher.send(b"", **arguments(kind)).result(60)
            assert len(behind) == 6 and other.is_alive(), "it has half of the places"
            answer_again(cluster, kind)
            other.join(60)
            for future in behind:
                future.result(60)
            batcher.flush()


@on_each_loop
async def test_a_batch_of_messages_that_any_shard_may_take_goes_to_the_shard_of_its_lane() -> None:
    with fake_cluster() as cluster:
        for member in cluster.members:
            member.answers["publish"] = publish
        async with AsyncClient(cluster.members[0].address) as client:
            assert await client.know_shards() and client.several_shards
            for shard in (1, 1, 0, 1, 2, 1):
                await client.publish_placed([Message("a", b"")], shard)
            assert [member.count("publish") for member in cluster.members] == [1, 4, 1]
            cluster.show(1, state=DRAINING)
            while any(client.placed(Message("a", b""))[0] == 1 for _ in range(3)):
                await anyio.sleep(0.001)
            await client.publish_placed([Message("a", b"")], 1)
            assert cluster.members[1].count("publish") == 4, "it takes no new ones"
