"""A cluster is founded once, whoever tries how often, and never in a topic of another program."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import trio

from delayserver.config.cluster_file import ClusterFile
from delayserver.members.founding import Engines, FoundedNow, found_cluster
from delayserver.members.member_map import Announced
from delayserver.runtime.shared_log import LogMissing, LogUnusable
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import following, new_cluster
from tests.delayserver.kafka.test_topic import alter

pytestmark = pytest.mark.kafka


def new_engines(nodes: KafkaNodes) -> Engines:
    """The engines of a cluster that nobody has founded."""
    from delayserver.server.cluster_engines import engines_of

    return engines_of(ClusterFile(nodes.bootstrap, "a", topic=new_cluster(nodes).topic, copies=1))


async def found(engines: Engines, seed: int = 1, shards: int = 2) -> FoundedNow:
    return await found_cluster(engines, shards, Random(seed))


async def append(engines: Engines, record: bytes) -> None:
    """Another program writes to the first partition."""
    log = engines.shards.open(0)
    async with following(log) as member:
        log.append(record)
        await member.reached(1)


async def test_a_second_founding_changes_nothing(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    with pytest.raises(LogMissing):
        await engines.read_map()
    first = await found(engines)
    assert len(first.made) == 3
    second = await found(engines, seed=2)
    assert (second.founded, second.made) == (first.founded, ())
    assert len(set(first.founded.shards)) == 2
    with pytest.raises(LogUnusable, match=r"has --shards 2, not 3.*add-shard"):
        await found(engines, shards=3)


async def test_a_founding_that_was_interrupted_goes_on(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    await engines.shards.make_topic(2)
    assert len((await found(engines)).made) == 2
    engines = new_engines(one_node)
    await engines.shards.make_topic(2)
    await engines.map.make_topic(1)
    assert (await found(engines)).made == ("a cluster of 2 shards",)


async def test_two_foundings_at_once_agree(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    await engines.shards.make_topic(2)
    await engines.map.make_topic(1)
    done = []

    async def one(seed: int) -> None:
        done.append((await found(engines, seed)).founded)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 1)
        nursery.start_soon(one, 2)
    assert done[0] == done[1] == (await engines.read_map()).founded


async def test_a_topic_of_another_program_is_refused_by_name(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    await engines.shards.make_topic(2)
    await append(engines, b"an order")
    with pytest.raises(LogUnusable, match=rf"topic {engines.shards.topic} has 1 records .* another program"):
        await found(engines)
    await append(replace(engines, shards=engines.map), b"an order")
    with pytest.raises(LogUnusable, match=rf"topic {engines.map.topic} has a record at 0 .* another program"):
        await found(engines)


async def test_a_wrong_setting_is_refused_with_the_command_that_mends_it(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    await found(engines)
    cluster = new_cluster(one_node)
    alter(replace(cluster, topic=engines.shards.topic), "retention.ms=604800000")
    with pytest.raises(LogUnusable, match=r"retention\.ms .* is 604800000.* kafka-configs\.sh .*retention\.ms=-1"):
        await found(engines)


async def test_members_get_numbers_in_the_order_of_their_first_start(one_node: KafkaNodes) -> None:
    engines = new_engines(one_node)
    await found(engines)
    for name, shard, port in (("x", 0, 1), ("b", 1, 2), ("a", 1, 3), ("x", 0, 4)):
        last = await engines.note(Announced(name, shard, f"h:{port}", "", "1", f"{port:016x}"))
    assert [last.number(name) for name in ("x", "b", "a")] == [1, 2, 3]
    assert [last.rank(name) for name in ("x", "b", "a")] == [0, 0, 1]
    assert last.members["x"].address == "h:4"
    assert [each.name for each in last.of_shard(1)] == ["b", "a"]
    assert await engines.read_map() == last
