"""The row `target-kafka`: deliveries to a topic of Kafka, against the bare producer in Python.

The bare producer writes the same records to the same node of Kafka, in batches of 1,000. Both sides take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ops.bench.bodies import BODY_BYTES
from ops.bench.children import CONTEXT, Child, Gate, children, run_together
from ops.bench.delivering import LOAD_RATE_MIN, load_targets, whole_second_ms
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, steady
from ops.bench.server_process import ServerProcess, free_port, fresh_directory
from ops.kafka.nodes import KafkaNodes

MESSAGES: Final = 400_000
TURNS: Final = 3
BATCH: Final = 1_000
RATE: Final = 1_000
SECONDS: Final = 15.0
DELAY_MS: Final = 2_000
TICK_S: Final = 0.01
SETTLED_S_MAX: Final = 120.0
PARTITIONS: Final = 6
WARM_UP: Final = "warm-up"
Times = NDArray[np.float64]

CONFIG: Final = """
[[groups]]
name = "topic"
nodes = ["kafka://{servers}/{topic}"]

[[routes]]
pattern = "*"
groups = ["topic"]
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a running Kafka."""

    servers: str
    name: str

    def make(self) -> None:
        """Make it."""
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.servers})
        client.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result()

    def records(self) -> int:
        """How many records it has."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "bench"})
        try:
            return sum(consumer.get_watermark_offsets(TopicPartition(self.name, each))[1] for each in range(PARTITIONS))
        finally:
            consumer.close()


@contextmanager
def running_kafka(directory: str) -> Iterator[str]:
    """One node, whose code is compiled well. Gives its address."""
    with KafkaNodes(Path(directory), 1, free_port(), java_options=()) as nodes:
        Topic(nodes.bootstrap, WARM_UP).make()
        yield nodes.bootstrap


@contextmanager
def delivering_to(topic: Topic, options: Options) -> Iterator[ServerProcess]:
    """A server whose messages all go to a topic."""
    with fresh_directory(options.data_dir) as directory:
        config = Path(directory) / "config.toml"
        config.write_text(CONFIG.format(servers=topic.servers, topic=topic.name))
        with ServerProcess(directory, str(config)) as server:
            yield server


def measure_kafka(options: Options) -> Run:
    """The value is the median of the ratios of messages a second in neighbouring turns."""
    messages = options.messages or MESSAGES
    ours: list[float] = []
    bare: list[float] = []
    with fresh_directory(options.data_dir) as near, running_kafka(near) as servers:
        late = _lateness(servers, options)  # it warms Kafka up
        for turn in range(TURNS):
            topic = Topic(servers, f"turn-{turn}")
            topic.make()
            (rate,) = run_together([(produce, servers, topic.name, messages)])
            bare.append(rate)
            ours.append(_drained(topic, messages, options))
    ratios = [mine / its for mine, its in zip(ours, bare, strict=True)]
    details = {"target_rate": rounded(statistics.median(ours)), "bare_rate": rounded(statistics.median(bare))}
    return Run(statistics.median(ratios), {**details, **late})


def produce(gate: Gate, servers: str, topic: str, messages: int) -> float:
    """Records as the server writes them, by the bare client in batches. Returns records a second, until all are reported."""
    producer, reports = _bare_producer(servers)
    body = bytes(BODY_BYTES)
    due = (b"%d" % (time.time_ns() // 1_000_000), SUBJECT.encode())
    gate.wait()
    begin = time.perf_counter()
    for first in range(0, messages, BATCH):
        for number in range(first, min(first + BATCH, messages)):
            headers = [("delayserver-id", b"0123456789ab:%d:0" % number), ("delayserver-due-ms", due[0])]
            headers.append(("delayserver-subject", due[1]))
            producer.produce(topic, body, headers=headers, on_delivery=reports.append_error)
        producer.poll(0)
    producer.flush()
    reports.check(messages)
    return messages / (time.perf_counter() - begin)


class _Reports:
    """Counts the reports of the bare client."""

    def __init__(self) -> None:
        self._count = 0
        self._error: Any = None

    def append_error(self, error: Any, _record: object) -> None:
        """What a report says."""
        self._count += 1
        self._error = self._error or error

    def check(self, messages: int) -> None:
        """Raises WrongResult unless so many records were written."""
        expect(self._error is None and self._count == messages, f"{self._count} of {messages}: {self._error}")


def _bare_producer(servers: str) -> tuple[Any, _Reports]:
    from confluent_kafka import Producer

    options = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "queue.buffering.max.messages": 0}
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, **options})
    # The first record waits until Kafka has given the producer an id.
    producer.produce(WARM_UP, b"")
    producer.flush()
    return producer, _Reports()


def _drained(topic: Topic, messages: int, options: Options) -> float:
    """So many messages become due at once: those a second, until all have their outcome."""
    lead_s = messages / LOAD_RATE_MIN + 2
    before = topic.records()
    with delivering_to(topic, options) as server:
        due_ms = whole_second_ms(lead_s)
        run_together(load_targets(server, SUBJECT, messages, due_ms))
        expect(time.time() < due_ms / 1000, "the messages could not be loaded in time")
        end_s = time.time() + lead_s + SETTLED_S_MAX
        time.sleep(max(due_ms / 1000 - time.time(), 0))
        while (delivered := server.status()["delivered"]) < messages and time.time() < end_s:
            time.sleep(0.02)
        rate = messages / (time.time() - due_ms / 1000)
        expect(delivered == messages, f"{messages} messages were sent, the server says delivered = {delivered}")
    written = topic.records() - before
    expect(written == messages, f"{messages} messages were delivered, the topic has {written} records of them")
    return rate


def _lateness(servers: str, options: Options) -> dict[str, float]:
    """At a steady rate: from the due time to the consumer, and of the bare client from its call to the consumer."""
    seconds = options.seconds or SECONDS
    bare, mine = Topic(servers, "bare"), Topic(servers, "mine")
    for topic in (bare, mine):
        topic.make()
    its_ms = _steadily(bare, (produce_steadily, servers, bare.name, seconds))
    with delivering_to(mine, options) as server:
        mine_ms = _steadily(mine, (steady, server.address, SUBJECT, RATE, seconds, DELAY_MS))
    expect(float(mine_ms.min()) >= 0, "a record came before its due time")
    (its_p50, its_p99), (p50, p99) = [np.percentile(each, (50, 99)).tolist() for each in (its_ms, mine_ms)]
    found = {"p50_ms": p50, "p99_ms": p99, "bare_p50_ms": its_p50, "bare_p99_ms": its_p99, "late_ratio": p99 / its_p99}
    return {name: rounded(value) for name, value in found.items()}


def _steadily(topic: Topic, target: tuple[Any, ...]) -> Times:
    """Milliseconds of each record of a producing child."""
    count = CONTEXT.Value("q", 0)
    with children([(consume_records, topic.servers, topic.name, count), target]) as (consumer, producer):
        consumer.tell()
        producer.tell()
        sent: Sent | int = producer.result()
        return _all_of(count, sent if isinstance(sent, int) else sent.messages, consumer)


def _all_of(count: Any, messages: int, consumer: Child) -> Times:
    end_s = time.monotonic() + SETTLED_S_MAX
    while count.value < messages and time.monotonic() < end_s:
        time.sleep(0.05)
    consumer.tell()
    times_ms: Times = consumer.result()
    expect(len(times_ms) == messages, f"{messages} were sent, {len(times_ms)} records came")
    return times_ms


def produce_steadily(gate: Gate, servers: str, topic: str, seconds: float) -> int:
    """RATE records a second by the bare client, in ticks as of `steady`. Each says when it was handed over."""
    producer, reports = _bare_producer(servers)
    body = bytes(BODY_BYTES)
    messages = int(RATE * seconds)
    a_tick = int(RATE * TICK_S)
    gate.wait()
    begin = time.perf_counter()
    for first in range(0, messages, a_tick):
        while (left_s := begin + first / RATE - time.perf_counter()) > 0:
            producer.poll(left_s)
        for _ in range(min(a_tick, messages - first)):
            headers = [("delayserver-due-ms", b"%.3f" % (time.time_ns() / 1_000_000))]
            producer.produce(topic, body, headers=headers, on_delivery=reports.append_error)
    producer.flush()
    reports.check(messages)
    return messages


def consume_records(gate: Gate, servers: str, topic: str, count: Any) -> Times:
    """The milliseconds from the header of each record to its receipt, f64[n]."""
    from confluent_kafka import Consumer, TopicPartition

    options = {"fetch.wait.max.ms": 20, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", **options})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    late_ms: list[float] = []
    gate.wait()
    while not gate.stopped():
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            now_ms = time.time_ns() / 1_000_000
            headers: Any = record.headers()
            late_ms.append(now_ms - float(dict(headers)["delayserver-due-ms"]))
            count.value = len(late_ms)
    consumer.close()
    return np.array(late_ms)
