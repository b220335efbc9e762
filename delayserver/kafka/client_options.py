"""The settings of librdkafka, the client library of Kafka. The service sets those on which its promises rest.

The operator's table may have only options of the connection. Any other option either breaks a promise or does nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from delayserver.runtime.shared_log import IN_FLIGHT_MAX, RECORD_BYTES_MAX

Option = str | int | float | bool
OPEN: Final = (
    "sasl.",
    "ssl.",
    "security.",
    "https.",
    "enable.ssl.",
    "enable.sasl.",
    "socket.",
    "broker.address.",
    "client.",
)
"""How the options begin that the operator may set: who the client is, and how it connects."""
CLOSED: Final = ("client.rack", "ssl.engine.location", "socket.blocking.max.ms")
"""Options that begin so and may not be set: reads come from the leader, and no foreign code is loaded."""
FRAMING_BYTES: Final = 1024
"""What Kafka adds to a record at most, before it compares the length with `max.message.bytes`."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Where the shared logs are: brokers, the topic with a partition for each shard, and what the operator demands of it.

    `servers` is a list "HOST:PORT,HOST:PORT". `copies_min` below 3 is for a test cluster: a loss of brokers may lose
    acknowledged records. Raises ValueError for an option that the operator may not set.
    """

    servers: str
    topic: str
    options: Mapping[str, Option] = field(default_factory=dict, repr=False)
    copies_min: int = 3

    def __post_init__(self) -> None:
        closed = sorted(name for name in self.options if not name.startswith(OPEN) or name in CLOSED)
        if closed:
            raise ValueError(
                f"kafka_options may not have {', '.join(closed)}: the service sets these itself. "
                f"Options of the connection begin with {', '.join(OPEN)}"
            )

    @property
    def in_sync_min(self) -> int:
        """How many copies must have a record before it counts: a majority of the copies that are demanded."""
        return self.copies_min // 2 + 1


def reader_options(cluster: KafkaCluster, *, patient: bool) -> dict[str, Any]:
    """Of the consumer that reads a shard's partition, from a position that it is given. `patient`: it asks Kafka for more
    only when all that came was taken. Else it always asks."""
    return _connection(cluster) | {
        # Required by the library. There is no group: the position is given, and never stored in Kafka.
        "group.id": "delayserver",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A position that Kafka does not have is a loss, never a reason to go on elsewhere.
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        "fetch.wait.max.ms": 100,
        "queued.min.messages": 1 if patient else 100_000,
        "fetch.error.backoff.ms": 50,
        # By default a full queue stops reading for a second.
        "fetch.queue.backoff.ms": 10,
        # Bounds what is fetched ahead. A single record may be longer.
        "fetch.message.max.bytes": 4 << 20,
        "queued.max.messages.kbytes": 16 << 10,
        "receive.message.max.bytes": 2 * RECORD_BYTES_MAX + (64 << 20),
    }


def writer_options(cluster: KafkaCluster) -> dict[str, Any]:
    """Of the producer that appends to a shard's partition."""
    return _connection(cluster) | {
        "acks": "all",
        "enable.idempotence": True,
        # A record that fails for good stops the producer. Without this a later record would follow it.
        "enable.gapless.guarantee": True,
        "max.in.flight.requests.per.connection": 5,
        # No end: a record is confirmed, or is in doubt until it is.
        "message.timeout.ms": 0,
        "request.timeout.ms": 1500,
        "retry.backoff.ms": 50,
        "linger.ms": 0,
        "message.max.bytes": RECORD_BYTES_MAX + FRAMING_BYTES,
        # What has been read back may wait for its report, so this is twice what the member has in flight.
        "queue.buffering.max.kbytes": 2 * IN_FLIGHT_MAX * (RECORD_BYTES_MAX >> 10),
        "delivery.report.only.error": True,
    }


def asker_options(cluster: KafkaCluster) -> dict[str, Any]:
    """Of the client that asks for ends and settings, and trims."""
    return _connection(cluster)


def _connection(cluster: KafkaCluster) -> dict[str, Any]:
    return {
        "client.id": "delayserver",
        # Errors come by calls. The library's own lines would tell each attempt to connect, to stderr.
        "log_level": 0,
        **cluster.options,
        "bootstrap.servers": cluster.servers,
        "reconnect.backoff.ms": 50,
        # By default 10 s: that long a broker that is back could be unknown.
        "reconnect.backoff.max.ms": 500,
    }
