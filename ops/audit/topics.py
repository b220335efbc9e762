"""The logs of a cluster's shards, as tasks read them: each is a partition of a topic. Names no row and judges no record.

A `TopicShard` can be pickled. It has all that a task needs to connect by itself, also the password of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from delayserver.cli.kafka.on_kafka import read_map
from delayserver.config.cluster_file import load_cluster
from delayserver.kafka.client_options import KafkaCluster, reader_options
from delayserver.runtime.shared_log import LogLost, LogRecord, LogTrimmed, LogUnavailable, LogUnusable
from store.shared.envelope import ShardIdentity

# A first connection may take seconds, and a broker that restarts a little longer.
ANSWER_S: Final = 30.0
# Records of one call. In bytes the queue of the library bounds it.
_RECORDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicShard:
    """The log of one shard: partition `number` of the cluster's topic."""

    cluster: KafkaCluster
    number: int
    identity: ShardIdentity

    @property
    def path(self) -> str:
        """A name for people, in the place of a path."""
        return f"kafka:{self.cluster.topic}/{self.number}"

    @property
    def server_id(self) -> int:
        """The server id of the shard, which all its members have."""
        return self.identity.server_id

    def bounds(self) -> tuple[int, int]:
        """The first position that can be read, and the one behind the last record, now. Raises LogUnavailable."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(reader_options(self.cluster, patient=False))
        try:
            # None after the time limit, whatever the library's types say.
            found: Any = consumer.get_watermark_offsets(TopicPartition(self.cluster.topic, self.number), ANSWER_S)
        except KafkaException as error:
            raise LogUnavailable(f"{self.path}: {error.args[0].str()}") from None
        finally:
            consumer.close()
        if found is None:
            raise LogUnavailable(f"{self.path}: Kafka does not answer")
        return int(found[0]), int(found[1])

    def records(self, start: int, stop: int) -> Iterator[LogRecord]:
        """The records from `start` to `stop`, which is at most the end. Raises LogLost, LogUnavailable, LogUnusable."""
        if start < stop:
            yield from self._read(start, stop)

    def _read(self, start: int, stop: int) -> Iterator[LogRecord]:
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        from delayserver.kafka.partition_reader import DAMAGED, LOST
        from delayserver.kafka.topic import REFUSED

        consumer = Consumer({**reader_options(self.cluster, patient=False), "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(self.cluster.topic, self.number, start)])
            position = start
            while position < stop:
                first = consumer.poll(ANSWER_S)
                if first is None:
                    raise LogUnavailable(f"{self.path}: Kafka does not answer")
                for message in [first, *consumer.consume(_RECORDS_MAX, 0)]:
                    offset, error = message.offset(), message.error()
                    if error is None:
                        assert offset is not None
                        if position <= offset < stop:
                            yield LogRecord(offset, message.value() or b"")
                        position = max(position, offset + 1)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        position = stop  # the last positions have no records
                    elif error.code() in LOST:
                        first_kept, _ = self.bounds()
                        if first_kept > position:
                            raise LogTrimmed(self.number, position, first_kept)
                        raise LogLost(self.number, position, stop, error.str())
                    elif error.code() in DAMAGED:
                        raise LogLost(self.number, position, position + 1, error.str())
                    elif error.code() in REFUSED:
                        raise LogUnusable(f"Kafka refuses topic {self.cluster.topic}: {error.str()}")
        finally:
            consumer.close()


def find_shards(path: str) -> list[TopicShard]:
    """The shards of the cluster that a file describes. Raises ConfigError, LogUnavailable, LogUnusable."""
    file = load_cluster(path)
    cluster = KafkaCluster(file.kafka, file.topic, file.kafka_options, file.copies)
    found = read_map(path)
    if found.founded is None:
        raise LogUnusable(f"topic {file.topic} has no cluster: delayserver cluster init --cluster {path}")
    return [TopicShard(cluster, number, found.identity(number)) for number in range(len(found.shards))]
