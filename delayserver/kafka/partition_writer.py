"""Appends to one partition. The event loop hands records over, and a thread asks for what failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from delayserver.kafka.client_options import KafkaCluster, writer_options
from delayserver.kafka.topic import MISSING, REFUSED
from delayserver.runtime.shared_log import RECORD_BYTES_MAX, AppendFailed, LogUnusable, SharedLogError

LOOK_S: Final = 0.2
"""How often the thread looks whether it shall end."""
REPORT_LOOKS: Final = 10


class PartitionWriter:
    """Keeps what is handed over until it has a producer. `report` runs in a thread, the other methods on the event loop."""

    def __init__(self, cluster: KafkaCluster, shard: int) -> None:
        self._cluster = cluster
        self._shard = shard
        self._early: list[bytes] = []
        self._producer: Producer | None = None
        self._ended = False
        self._error: SharedLogError | None = None

    def append(self, record: bytes) -> None:
        """Hand over one record. Raises ValueError if it is empty or too long."""
        if not 0 < len(record) <= RECORD_BYTES_MAX:
            raise ValueError(f"a record has 1 to {RECORD_BYTES_MAX} bytes, this one has {len(record)}")
        if self._producer is None:
            if not self._ended:
                self._early.append(record)
        elif self._error is None:
            try:
                self._producer.produce(self._cluster.topic, record, partition=self._shard)
            except KafkaException as raised:
                # It takes nothing more: `report` raises this. What follows is dropped. A fatal error has its reason there.
                if raised.args[0].code() != KafkaError._FATAL:
                    self._error = self._named(raised.args[0])

    def use(self, producer: Producer) -> None:
        """Append by this producer from now on, first what was handed over before."""
        if not self._ended:
            self._producer = producer
            early, self._early = self._early, []
            for record in early:
                self.append(record)

    def end(self) -> None:
        """Drop what is handed over from now on."""
        self._ended = True
        self._producer = None
        self._early.clear()

    def report(self, ready: Callable[[Producer], None], end: threading.Event) -> None:
        """Make the producer, give it to `ready`, and watch it until `end` is set. Raises AppendFailed, LogUnusable."""
        options: dict[str, Any] = {"on_delivery": self._failed, "error_cb": self._told}
        producer = Producer(writer_options(self._cluster) | options)
        ready(producer)
        error = None
        while error is None and not end.is_set():
            error = self._look(producer)
        # What is not sent yet must not go out later. The library's threads end with the last reference, which is here. So no
        # frame of a traceback may have one.
        producer.purge(in_flight=False, blocking=False)
        del producer
        if error is not None:
            raise error

    def _look(self, producer: Producer) -> SharedLogError | None:
        """Wait for reports for a moment. What failed for good, or None."""
        fatal = None
        try:
            producer.poll(LOOK_S)
        except KafkaException as raised:
            # The reports that explain it come a moment later.
            fatal = raised.args[0]
            for _ in range(REPORT_LOOKS):
                if self._error is None:
                    with contextlib.suppress(KafkaException):
                        producer.poll(LOOK_S)
        if self._error is None and fatal is not None:
            self._error = self._named(fatal)
        return self._error

    def _failed(self, error: KafkaError | None, _message: object) -> None:
        if error is not None and self._error is None:
            self._error = self._named(error)

    def _told(self, error: KafkaError) -> None:
        """What the library says of the whole client. A fatal error is raised by `poll` instead."""
        if self._error is None and error.code() in REFUSED:
            self._error = self._named(error)

    def _named(self, error: KafkaError) -> SharedLogError:
        topic = self._cluster.topic
        if error.code() in REFUSED:
            return LogUnusable(f"Kafka refuses topic {topic}: {error.str()}")
        if error.code() in MISSING:
            return LogUnusable(f"topic {topic} does not exist any more: {error.str()}")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return AppendFailed(
                f"a record is longer than max.message.bytes of topic {topic}, or message.max.bytes of Kafka"
            )
        return AppendFailed(f"a record cannot be confirmed: {error.str()}")
