"""A log on one node of Kafka that is killed, paused, or loses its topic. The conformance suite has the rest."""

from __future__ import annotations

import contextlib
import gc

import pytest
import trio

from delayserver.runtime.shared_log import (
    RECORD_BYTES_MAX,
    AppendFailed,
    LogLost,
    LogUnavailable,
    LogUnusable,
    SharedLog,
)
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.kafka.following import UNHURRIED_S, following, library_threads, new_cluster, new_engine
from tests.delayserver.kafka.test_topic import alter

pytestmark = pytest.mark.kafka


async def unavailable(log: SharedLog) -> None:
    """Return when `ask` gets no answer."""
    with pytest.raises(LogUnavailable):
        while True:
            await log.ask()


async def asked(log: SharedLog) -> int:
    """The end of the log, when it answers. A node that has just started, or a busy machine, may be late."""
    while True:
        with contextlib.suppress(LogUnavailable):
            return await log.ask()


def numbers(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


async def test_what_is_appended_while_the_broker_is_dead_arrives_once_and_in_order(kafka: KafkaNodes) -> None:
    log = (await new_engine(kafka)).open(0)
    async with following(log) as member:
        for record in numbers(20):
            log.append(record)
        await member.reached(20)
        for record in numbers(40)[20:30]:
            log.append(record)
        kafka.kill(1)
        for record in numbers(40)[30:]:
            log.append(record)
        await unavailable(log)
        await trio.to_thread.run_sync(kafka.start)
        await member.reached(40)
        assert member.data == numbers(40)
        assert await asked(log) == member.records[-1].position + 1


async def test_a_broker_that_stands_still_is_no_error(kafka: KafkaNodes) -> None:
    log = (await new_engine(kafka)).open(0)
    async with following(log) as member:
        log.append(b"before")
        await member.reached(1)
        kafka.pause(1)
        log.append(b"meanwhile")
        await unavailable(log)
        assert not member.ended.is_set()
        kafka.resume(1)
        await member.reached(2)
        assert member.data == [b"before", b"meanwhile"]


async def test_a_log_starts_without_a_broker_and_goes_on_when_it_is_there(kafka: KafkaNodes) -> None:
    log = (await new_engine(kafka)).open(0)
    kafka.pause(1)
    log.append(b"early")
    async with following(log) as member:
        await unavailable(log)
        kafka.resume(1)
        await member.reached(1)


async def test_a_member_that_only_reads_lets_kafka_gather_until_it_appends(
    kafka: KafkaNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delayserver.kafka import partition_reader

    monkeypatch.setattr(partition_reader, "GATHER_S", 10.0 * UNHURRIED_S)
    engine = await new_engine(kafka)
    primary, standby = engine.open(0), engine.open(0)
    async with following(primary) as leading, following(standby) as reading:
        primary.append(b"the first record")
        await reading.reached(1)
        for count in range(2, 20):
            primary.append(b"a record")
            await leading.reached(count)
        assert len(reading.records) == 1
        standby.append(b"a claim")
        await reading.reached(20)
        primary.append(b"a beat")
        await reading.reached(21)
        await leading.reached(21)
        assert reading.records == leading.records


async def test_a_member_that_gets_much_at_once_goes_on(kafka: KafkaNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from delayserver.kafka import partition_reader

    monkeypatch.setattr(partition_reader, "GATHER_S", 10.0 * UNHURRIED_S)
    engine = await new_engine(kafka)
    primary, standby = engine.open(0), engine.open(0)
    async with following(primary) as leading, following(standby) as reading:
        for count in (1, 2):
            primary.append(bytes(partition_reader.GATHERED_BYTES))
            await leading.reached(count)
            await reading.reached(count)
        standby.append(b"the end")
        await reading.reached(3)


def delete(kafka: KafkaNodes, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.delete_topics([topic])[topic].result()


async def test_a_topic_that_was_made_again_is_lost(kafka: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    cluster = new_cluster(kafka)
    engine = KafkaEngine(cluster)
    await engine.make_topic(1)
    log = engine.open(0)
    async with following(log) as member:
        for record in numbers(3):
            log.append(record)
        await member.reached(3)
        await trio.to_thread.run_sync(delete, kafka, cluster.topic)
        await engine.make_topic(1)
        await member.ended.wait()
    assert isinstance(member.error, LogLost)
    assert "made again" in str(member.error)
    assert member.data == numbers(3)


async def test_a_topic_that_is_gone_is_named(kafka: KafkaNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from delayserver.kafka import partition_reader
    from delayserver.kafka.kafka_log import KafkaEngine

    monkeypatch.setattr(partition_reader, "MISSING_S", 0.1)
    monkeypatch.setattr(partition_reader, "SAME_S", 0.1)
    cluster = new_cluster(kafka)
    engine = KafkaEngine(cluster)
    await engine.make_topic(1)
    log = engine.open(0)
    async with following(log) as member:
        log.append(b"1")
        await member.reached(1)
        await trio.to_thread.run_sync(delete, kafka, cluster.topic)
        await member.ended.wait()
    assert isinstance(member.error, LogUnusable)
    assert cluster.topic in str(member.error)


async def test_a_record_beyond_every_bound_is_refused_at_once(one_node: KafkaNodes) -> None:
    log = (await new_engine(one_node)).open(0)
    for record in (b"", bytes(RECORD_BYTES_MAX + 1)):
        with pytest.raises(ValueError, match=f"1 to {RECORD_BYTES_MAX} bytes"):
            log.append(record)


async def test_a_record_that_the_topic_does_not_take_is_named_and_nothing_follows_it(one_node: KafkaNodes) -> None:
    from delayserver.kafka.kafka_log import KafkaEngine

    cluster = new_cluster(one_node)
    engine = KafkaEngine(cluster)
    await engine.make_topic(1)
    await trio.to_thread.run_sync(alter, cluster, "max.message.bytes=500000")
    log = engine.open(0)
    async with following(log) as member:
        log.append(b"before")
        await member.reached(1)
        log.append(bytes(1_000_000))
        # Batches of their own, on their way when the first one fails.
        for _ in range(10):
            log.append(bytes(300_000))
        while not member.ended.is_set():
            # Never raises, also where the library has given up and `run` has not yet.
            log.append(b"behind")
            await trio.sleep(0.02)
    assert isinstance(member.error, AppendFailed)
    assert "max.message.bytes" in str(member.error)
    assert await asked(engine.open(0)) == 1


async def test_the_threads_of_the_library_end_with_the_run(kafka: KafkaNodes) -> None:
    engine = await new_engine(kafka)
    log = engine.open(0)
    async with following(log) as member:
        log.append(b"1")
        await member.reached(1)
        assert library_threads()
    assert library_threads() == []
    # Also while the broker does not answer, and has taken what is in flight.
    log = engine.open(0)
    async with following(log) as member:
        await member.reached(1)
        kafka.pause(1)
        log.append(b"2")
        await unavailable(log)
    assert library_threads() == []


async def test_a_topic_that_nobody_asks_any_more_keeps_no_threads(kafka: KafkaNodes) -> None:
    from delayserver.kafka.topic import KafkaTopic

    cluster = new_cluster(kafka)
    await KafkaTopic(cluster).make(1)
    gc.collect()
    before = library_threads()
    gc.disable()
    try:
        await KafkaTopic(cluster).identity(0)
        assert library_threads() == before, "the client is in a circle, which only the collector ends"
    finally:
        gc.enable()


async def test_a_member_that_takes_nothing_stops_the_reader(one_node: KafkaNodes) -> None:
    engine = await new_engine(one_node)
    log = engine.open(0)
    async with following(log) as member:
        for _ in range(40):
            log.append(bytes(4 << 20))
        await member.reached(40)
    log = engine.open(0)
    log.pause()
    async with following(log) as member:
        log.append(b"last")
        while await asked(log) < 41:
            await trio.sleep(0.05)
        assert member.records == []
        log.resume()
        await member.reached(41)
        assert [record.position for record in member.records] == list(range(41))
