"""Three nodes of Kafka: one is killed, then two are, and nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from delayserver.runtime.shared_log import LogUnavailable
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import following, new_engine
from tests.delayserver.kafka.test_kafka_log import numbers
from tests.ports import free_port

pytestmark = pytest.mark.kafka


@pytest.fixture
def three_nodes(tmp_path: Path) -> Iterator[KafkaNodes]:
    nodes = KafkaNodes(tmp_path, 3, free_port(6))
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.wipe()


def leader(nodes: KafkaNodes) -> int:
    """The node that leads the partition of shard 0."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": nodes.bootstrap})
    (topic,) = [each for name, each in client.list_topics().topics.items() if name.startswith("shards-")]
    node: int = topic.partitions[0].leader
    return node


async def test_a_killed_leader_costs_no_record_and_without_two_of_three_nodes_the_log_waits(
    three_nodes: KafkaNodes,
) -> None:
    engine = await new_engine(three_nodes, copies_min=3)
    log = engine.open(0)
    about = await log.describe()
    assert (about.copies, about.in_sync_min, about.faults) == (3, 2, ())
    async with following(log) as member:
        for record in numbers(100)[:50]:
            log.append(record)
        await member.reached(25)
        killed = await trio.to_thread.run_sync(leader, three_nodes)
        for record in numbers(100)[50:]:
            log.append(record)
        three_nodes.kill(killed)
        await member.reached(100)
        assert not member.ended.is_set()
        assert member.data == numbers(100)
        second = await trio.to_thread.run_sync(leader, three_nodes)
        assert second != killed
        # Now no majority is left. What is appended waits until there is one again.
        three_nodes.kill(second)
        for record in numbers(120)[100:]:
            log.append(record)
        with pytest.raises(LogUnavailable):
            await log.ask()
        assert member.data == numbers(100)
        await trio.to_thread.run_sync(three_nodes.start, killed)
        await member.reached(120)
        assert not member.ended.is_set()
        assert member.data == numbers(120)
    async with following(engine.open(0)) as other:
        await other.reached(120)
        assert other.records == member.records
