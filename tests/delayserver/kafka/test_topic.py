"""A topic is made as a member wants it, and each setting that is wrong is named with the command that mends it."""

from __future__ import annotations

import pytest

from delayserver.kafka.client_options import KafkaCluster
from delayserver.runtime.shared_log import RECORD_BYTES_MAX, LogMissing, LogUnavailable, LogUnusable
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import new_cluster
from tests.ports import free_port

pytestmark = pytest.mark.kafka


def alter(cluster: KafkaCluster, setting: str) -> None:
    """Change a setting of the topic, written as `--add-config` takes it."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    name, value = setting.split("=")
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, cluster.topic, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": cluster.servers})
    client.incremental_alter_configs([resource])[resource].result()


async def test_a_topic_that_was_made_has_no_fault(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    engine = KafkaEngine(new_cluster(one_node))
    await engine.make_topic(2)
    about = await engine.open(1).describe()
    assert (about.copies, about.in_sync_min, about.record_bytes_max) == (1, 1, RECORD_BYTES_MAX)
    assert (about.first, about.end, about.faults) == (0, 0, ())


async def test_each_wrong_setting_is_named_with_the_command_that_mends_it(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    cluster = new_cluster(one_node)
    engine = KafkaEngine(cluster)
    await engine.make_topic(1)
    of_topic = f"--bootstrap-server {cluster.servers} --alter --entity-type topics --entity-name {cluster.topic}"
    wrong = [
        "unclean.leader.election.enable=true",
        "cleanup.policy=compact",
        "retention.ms=604800000",
        "retention.bytes=1000000000",
        "max.message.bytes=1048588",
    ]
    for setting in wrong:
        alter(cluster, setting)
    faults = (await engine.open(0).describe()).faults
    for setting, fault in zip(wrong, faults, strict=True):
        assert f"{setting.split('=')[0]} of topic {cluster.topic} is {setting.split('=')[1]}, and must be" in fault.text
        command, _, mended = fault.remedy.partition(" --add-config ")
        assert command == f"kafka-configs.sh {of_topic}"
        alter(cluster, mended)
    assert (await engine.open(0).describe()).faults == ()


async def test_too_few_copies_are_named(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    cluster = new_cluster(one_node)
    await KafkaEngine(cluster).make_topic(1)
    strict = KafkaEngine(KafkaCluster(cluster.servers, cluster.topic))
    copies, in_sync = (await strict.open(0).describe()).faults
    assert copies.text.endswith("has 1 copies, and must have 3 or more (copies in the file of the cluster)")
    assert f'"topic": "{cluster.topic}", "partition": 0' in copies.remedy
    assert in_sync.text.endswith("is 1, and must be 2 or more")


@pytest.mark.parametrize(
    ("server", "reason"),
    [(f"127.0.0.1:{free_port()}", "Connection refused"), ("kafka.invalid:9092", "Failed to resolve")],
    ids=["nobody listens", "no such name"],
)
async def test_kafka_that_does_not_answer_is_named_with_the_reason(server: str, reason: str) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    log = KafkaEngine(KafkaCluster(server, "t")).open(0)
    for ask in (log.describe, log.ask):
        with pytest.raises(LogUnavailable, match=rf"^Kafka \({server}\) does not answer: .*{reason}[^(]*$"):
            await ask()


async def test_a_topic_that_is_missing_is_named_with_the_command_that_makes_it(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    with pytest.raises(LogMissing, match=r"does not exist.*delayserver cluster init"):
        await KafkaEngine(new_cluster(one_node)).open(0).describe()


async def test_a_topic_is_not_made_twice(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    engine = KafkaEngine(new_cluster(one_node))
    await engine.make_topic(1)
    with pytest.raises(LogUnusable, match="already exists"):
        await engine.make_topic(1)


async def test_more_copies_than_brokers_are_refused(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    with pytest.raises(LogUnusable, match="replication factor"):
        await KafkaEngine(new_cluster(one_node, copies_min=3)).make_topic(1)


async def test_a_missing_topic_and_a_missing_partition_refuse_the_start(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    engine = KafkaEngine(new_cluster(one_node))
    with pytest.raises(LogUnusable, match="does not exist"):
        await engine.open(0).run(0, print)
    await engine.make_topic(1)
    with pytest.raises(LogUnusable, match=r"no partition 1.*--partitions 2"):
        await engine.open(1).run(0, print)


async def test_an_option_that_the_library_refuses_is_named() -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    engine = KafkaEngine(KafkaCluster("127.0.0.1:9", "shards", {"security.protocol": "none"}))
    with pytest.raises(LogUnusable, match=r"security\.protocol"):
        await engine.open(0).ask()
