"""Reads one partition in a thread. Only this thread calls its consumer: a call from another one may never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from delayserver.kafka.client_options import KafkaCluster, reader_options
from delayserver.kafka.topic import MISSING, REFUSED, KafkaTopic
from delayserver.logs.events import EventLogger
from delayserver.runtime.shared_log import LogLost, LogRecord, LogTrimmed, LogUnavailable, LogUnusable, SharedLogError

_LOG: Final = EventLogger()
LOOK_S: Final = 0.2
"""How often the thread looks whether it shall end."""
GATHER_S: Final = 0.1
"""So long a patient reader lets Kafka gather, behind what it took. An answer for each record would cost Kafka as much as one
more copy of it."""
GATHERED_BYTES: Final = 1 << 20
"""Where it gets so much at once, it goes on at once."""
BATCH_RECORDS_MAX: Final = 256
"""Records of one batch. In bytes the library's own queue bounds it."""
MISSING_S: Final = 5.0
"""A topic that brokers do not know for so long is gone. A broker that has just started may not know it for a moment."""
SAME_S: Final = 10.0
"""How often the thread asks whether the topic is still the same. The library may follow another topic of this name."""
ASK_S: Final = 1.0
LOST: Final = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
"""Errors which say that the log does not have what comes next."""
DAMAGED: Final = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG}
"""Errors which say that a record cannot be read. The library would go on behind it."""


class PartitionReader:
    """Reads a partition from a position on, and gives the records in batches. It is patient until `hurry`."""

    def __init__(self, cluster: KafkaCluster, topic: KafkaTopic, identity: str, shard: int, position: int) -> None:
        """`identity` is that of the topic to which the position belongs."""
        self._cluster = cluster
        self._topic = topic
        self._identity = identity
        self._shard = shard
        self._next = position
        self._hurries = threading.Event()
        self._missing_since: float | None = None
        self._asked: Future[Any] | None = None
        self._asked_at = time.monotonic()
        self._in_trouble = False
        self._error: SharedLogError | None = None

    def hurry(self) -> None:
        """Give each record as soon as Kafka has it, from now on. From any thread."""
        self._hurries.set()

    def read(self, give: Callable[[list[LogRecord]], None], end: threading.Event) -> None:
        """Read until `end` is set. `give` gets each batch in this thread, and may wait. Raises LogLost, LogUnusable."""
        patient = not self._hurries.is_set()
        consumer = self._consumer(patient)
        try:
            while not end.is_set():
                hurried = self._hurries.is_set()
                # `consume` would wait until it has all the records that it is asked for.
                first = consumer.poll(LOOK_S)
                if self._error is not None:
                    raise self._error
                if first is not None:
                    messages = [first, *consumer.consume(BATCH_RECORDS_MAX - 1, 0)]
                    self._take(messages, give, consumer)
                    if patient and sum(map(len, messages)) < GATHERED_BYTES:
                        self._hurries.wait(GATHER_S)
                if patient and hurried:
                    # The library cannot change the options of a consumer. The record of the hurry mostly came by this one.
                    patient, before, consumer = False, consumer, self._consumer(patient=False)
                    before.close()
                self._look_for_topic()
        finally:
            consumer.close()

    def _consumer(self, patient: bool) -> Consumer:
        """One that reads what comes next."""
        consumer = Consumer({**reader_options(self._cluster, patient=patient), "error_cb": self._told})
        consumer.assign([TopicPartition(self._cluster.topic, self._shard, self._next)])
        return consumer

    def _take(self, messages: list[Message], give: Callable[[list[LogRecord]], None], consumer: Consumer) -> None:
        errors = [each.error() for each in messages]
        failed = next((place for place, error in enumerate(errors) if error is not None), len(messages))
        records = [
            LogRecord(offset, each.value() or b"")
            for each in messages[:failed]
            # After a reconnect the library may read a batch of Kafka's again from its beginning.
            if (offset := each.offset()) is not None and offset >= self._next
        ]
        if records:
            self._next = records[-1].position + 1
            self._in_trouble = False
            give(records)
        if failed < len(messages) and (error := errors[failed]) is not None:
            self._judge(error, consumer)
            self._take(messages[failed + 1 :], give, consumer)

    def _judge(self, error: KafkaError, consumer: Consumer) -> None:
        """Raise if an error means that reading cannot go on. All others end by themselves."""
        code = error.code()
        if code in LOST:
            self._compare(self._topic.ask_identity(ASK_S))
            raise self._lost(error, consumer)
        if code in DAMAGED:
            raise LogLost(self._shard, self._next, self._next + 1, error.str())
        if code in REFUSED:
            raise LogUnusable(f"Kafka refuses topic {self._cluster.topic}: {error.str()}")
        if code in MISSING:
            self._missing_since = self._missing_since or time.monotonic()

    def _lost(self, error: KafkaError, consumer: Consumer) -> LogLost:
        partition = TopicPartition(self._cluster.topic, self._shard)
        try:
            # None after the time limit, whatever the library's types say.
            marks: Any = consumer.get_watermark_offsets(partition, ASK_S)
        except KafkaException:
            marks = None
        first, end = marks or (self._next, self._next)
        if first > self._next:
            return LogTrimmed(self._shard, self._next, first)
        return LogLost(
            self._shard, min(end, self._next), max(end, self._next), f"it has less than it had ({error.str()})"
        )

    def _look_for_topic(self) -> None:
        """Ask now and then which topic has the name, and judge the answer when it has come. Raises LogLost, LogUnusable."""
        now = time.monotonic()
        if self._asked is not None:
            if self._asked.done():
                answer, self._asked = self._asked, None
                self._compare(answer)
        elif self._missing_since is not None or now - self._asked_at > SAME_S:
            self._asked, self._asked_at = self._topic.ask_identity(ASK_S), now

    def _compare(self, answer: Future[Any]) -> None:
        """Raise if the topic is gone, or another one has its name."""
        try:
            identity = self._topic.identity_of(answer)
        except LogUnavailable:
            return
        now = time.monotonic()
        if identity is None:
            self._missing_since = self._missing_since or now
            if now - self._missing_since > MISSING_S:
                raise LogUnusable(f"topic {self._cluster.topic} does not exist any more")
        elif identity != self._identity:
            raise LogLost(self._shard, 0, self._next, f"topic {self._cluster.topic} was deleted and made again")
        else:
            self._missing_since = None

    def _told(self, error: KafkaError) -> None:
        """What the library says of the whole client. It is called within `poll`."""
        if error.code() in REFUSED and self._error is None:
            self._error = LogUnusable(f"Kafka ({self._cluster.servers}) refuses this server: {error.str()}")
        elif not self._in_trouble:
            # Once until records come again: the library repeats it with each attempt.
            self._in_trouble = True
            _LOG.warning("kafka_does_not_answer", "Kafka does not answer: {reason}", reason=error.str())
