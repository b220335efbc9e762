"""The topic of a cluster, as a client without threads of its own sees it: what it has, how it is set up, what may go."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

import trio
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from delayserver.kafka.client_options import FRAMING_BYTES, KafkaCluster, asker_options
from delayserver.runtime.shared_log import (
    ANSWER_MS_MAX,
    ASK_MS_MAX,
    RECORD_BYTES_MAX,
    LogDescription,
    LogFault,
    LogMissing,
    LogUnavailable,
    LogUnusable,
)

MISSING: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Errors which say that there is no such topic or partition, or no more."""
REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError._AUTHENTICATION,
}
"""Errors which say that Kafka refuses this client. Waiting does not help."""
LEARN_S: Final = 0.05
"""Between two looks for a topic that was just made."""
MAX_MESSAGE_BYTES: Final = RECORD_BYTES_MAX + FRAMING_BYTES


def wanted_settings(cluster: KafkaCluster) -> dict[str, str]:
    """The settings of the topic. Where the value is a bound, a larger one serves too."""
    return {
        "min.insync.replicas": str(cluster.in_sync_min),
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
    }


BOUNDS: Final = {"min.insync.replicas", "max.message.bytes"}
"""The settings whose value is a lower bound."""
STATE: Final = re.compile(r" \(after \d+ms in state [A-Z_0-9]+\)")
"""What the library adds to the reason of a failed connection, and only its makers read."""


def serves(name: str, value: str, wanted: str) -> bool:
    """Whether a setting of a topic is good enough."""
    return int(value) >= int(wanted) if name in BOUNDS else value == wanted


class Trouble:
    """Why the last connection failed. The client keeps its callback, so this does not know the client.

    A client in a circle of references would keep its threads until the collector comes by.
    """

    def __init__(self) -> None:
        self.reason = ""
        """Empty while Kafka answers."""

    def hear(self, error: KafkaError) -> None:
        """What the library says of its connections. It is called within `poll`."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # that one comes behind the reasons, and has none
            self.reason = STATE.sub("", error.str())

    def end(self) -> None:
        """Kafka has answered."""
        self.reason = ""


class KafkaTopic:
    """Asks for one topic, and changes it, until `close`. Its methods are for the event loop, but those for threads."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._client: AdminClient | None = None
        # Shards whose partition is there. The client would look for a missing one until its time is over.
        self._known: set[int] = set()
        self._trouble = Trouble()

    async def make(self, shards: int) -> None:
        """Make the topic, with a partition for each shard. Raises LogUnusable if it exists or is refused, LogUnavailable."""
        topic = NewTopic(self._cluster.topic, shards, self._cluster.copies_min, config=wanted_settings(self._cluster))
        with self._within(ANSWER_MS_MAX):
            await self._answer(self._opened.create_topics([topic]), final=True)
            # Brokers learn of it a moment later. A member that starts at once must find it.
            while True:
                with contextlib.suppress(LogUnusable):
                    await self._about(shards - 1)
                    return
                await trio.sleep(LEARN_S)

    async def grow(self, shards: int) -> None:
        """Have so many partitions, one more than there are. Raises LogUnusable if Kafka refuses it, LogUnavailable."""
        with self._within(ANSWER_MS_MAX):
            await self._answer(self._opened.create_partitions([NewPartitions(self._cluster.topic, shards)]), final=True)

    async def identity(self, shard: int) -> str:
        """The identity of the topic, which no other topic of this name ever has. Raises LogUnusable, LogUnavailable."""
        with self._within(ANSWER_MS_MAX):
            about = await self._about(shard)
            return str(about.topic_id)

    def ask_identity(self, wait_s: float) -> Future[Any]:
        """Ask which topic has the name. For threads: does not wait. `identity_of` reads the answer, which comes in time."""
        (future,) = self._ask_about(wait_s).values()
        return future

    def identity_of(self, answer: Future[Any]) -> str | None:
        """The identity in an answer, None without a topic. For threads: waits for it. Raises LogUnavailable."""
        try:
            return str(answer.result().topic_id)
        except KafkaException as raised:
            if raised.args[0].code() in MISSING:
                return None
            raise LogUnavailable(raised.args[0].str()) from None

    async def end(self, shard: int) -> int:
        """The position behind the last record, asked for now. Raises LogUnavailable after ASK_MS_MAX, LogUnusable."""
        with self._within(ASK_MS_MAX):
            return await self._offset(shard, OffsetSpec.latest())

    async def trim(self, shard: int, position: int) -> None:
        """Remove the records below a position. Raises LogUnavailable, LogUnusable."""
        records = [TopicPartition(self._cluster.topic, shard, position)]
        with self._within(ANSWER_MS_MAX):
            await self._look_for(shard)
            await self._answer(self._opened.delete_records(records))

    async def describe(self, shard: int) -> LogDescription:
        """Copies, positions and faults. Raises LogUnavailable, LogUnusable."""
        with self._within(ANSWER_MS_MAX):
            about = await self._about(shard)
            resource = ConfigResource(ConfigResource.Type.TOPIC, self._cluster.topic)
            entries = await self._answer(self._opened.describe_configs([resource]))
            first = await self._offset(shard, OffsetSpec.earliest())
            end = await self._offset(shard, OffsetSpec.latest())
            copies = len(about.partitions[shard].replicas)
            settings = {name: str(entries[name].value) for name in wanted_settings(self._cluster)}
            return LogDescription(
                copies=copies,
                in_sync_min=int(settings["min.insync.replicas"]),
                record_bytes_max=int(settings["max.message.bytes"]) - FRAMING_BYTES,
                first=first,
                end=end,
                in_sync=len(about.partitions[shard].isr),
                faults=(*self._too_few(shard, copies), *self._faults(settings)),
            )

    def close(self) -> None:
        """End the client. For threads: it waits for those of the library."""
        self._client = None

    @property
    def _opened(self) -> AdminClient:
        if self._client is None:
            try:
                self._client = AdminClient(asker_options(self._cluster) | {"error_cb": self._trouble.hear})
            except KafkaException as raised:
                raise LogUnusable(f"Kafka's client library refuses an option: {raised.args[0].str()}") from None
        return self._client

    def _hear(self) -> None:
        """Have the library say what it has kept to say. While a broker is down, that grows with each attempt."""
        if self._client is not None:
            self._client.poll(0)

    def _unanswered(self) -> LogUnavailable:
        """Kafka gave no answer in time: the error, with what the library has said of its connections meanwhile."""
        self._hear()
        reason = f": {self._trouble.reason}" if self._trouble.reason else ", and names no reason"
        return LogUnavailable(f"Kafka ({self._cluster.servers}) does not answer{reason}")

    def _ask_about(self, wait_s: float) -> Mapping[Any, Future[Any]]:
        topics = TopicCollection([self._cluster.topic])
        futures: Mapping[Any, Future[Any]] = self._opened.describe_topics(topics, request_timeout=wait_s)
        return futures

    async def _about(self, shard: int) -> Any:
        about = await self._answer(self._ask_about(ANSWER_MS_MAX / 1000))
        if shard >= len(about.partitions):
            raise LogUnusable(
                f"topic {self._cluster.topic} has no partition {shard}. "
                f"To add it: {self._command('topics')} --alter --topic {self._cluster.topic} --partitions {shard + 1}"
            )
        self._known.add(shard)
        return about

    async def _look_for(self, shard: int) -> None:
        if shard not in self._known:
            await self._about(shard)

    async def _offset(self, shard: int, which: Any) -> int:
        await self._look_for(shard)
        asked = {TopicPartition(self._cluster.topic, shard): which}
        offset: int = (await self._answer(self._opened.list_offsets(asked))).offset
        return offset

    async def _answer(self, futures: Mapping[Any, Future[Any]], *, final: bool = False) -> Any:
        """The result of a call. Raises LogUnusable where Kafka refuses it, for `final` also for any other answer."""
        (future,) = futures.values()
        loop, came = trio.lowlevel.current_trio_token(), trio.Event()

        def tell(_: object) -> None:
            # The answer may come after the end of the event loop.
            with contextlib.suppress(trio.RunFinishedError):
                loop.run_sync_soon(came.set)

        future.add_done_callback(tell)
        await came.wait()
        self._hear()
        try:
            answer = future.result()
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() in MISSING:
                raise LogMissing(
                    f"topic {self._cluster.topic} does not exist, or not with this partition: {error.str()}. "
                    "If the cluster is new: delayserver cluster init --cluster FILE"
                ) from None
            if error.code() == KafkaError._TIMED_OUT:
                raise self._unanswered() from None
            if error.code() in REFUSED or (final and not error.retriable() and error.code() > 0):
                raise LogUnusable(f"Kafka refuses topic {self._cluster.topic}: {error.str()}") from None
            raise LogUnavailable(f"topic {self._cluster.topic}: {error.str()}") from None
        self._trouble.end()
        return answer

    @contextlib.contextmanager
    def _within(self, wait_ms: int) -> Iterator[None]:
        with trio.move_on_after(wait_ms / 1000) as scope:
            yield
        if scope.cancelled_caught:
            raise self._unanswered()

    def _too_few(self, shard: int, copies: int) -> list[LogFault]:
        wanted = self._cluster.copies_min
        if copies >= wanted:
            return []
        command = f"{self._command('reassign-partitions')} --execute --reassignment-json-file FILE"
        plan = f'{{"topic": "{self._cluster.topic}", "partition": {shard}, "replicas": [BROKER, …]}}'
        return [
            LogFault(
                f"partition {shard} of topic {self._cluster.topic} has {copies} copies, and must have {wanted} or more "
                "(copies in the file of the cluster)",
                f'{command}, where FILE has, with {wanted} brokers: {{"version": 1, "partitions": [{plan}]}}',
            )
        ]

    def _faults(self, settings: Mapping[str, str]) -> list[LogFault]:
        alter = f"{self._command('configs')} --alter --entity-type topics --entity-name {self._cluster.topic}"
        return [
            LogFault(
                f"{name} of topic {self._cluster.topic} is {settings[name]}, and must be {wanted}"
                + (" or more" if name in BOUNDS else ""),
                f"{alter} --add-config {name}={wanted}",
            )
            for name, wanted in wanted_settings(self._cluster).items()
            if not serves(name, settings[name], wanted)
        ]

    def _command(self, tool: str) -> str:
        return f"kafka-{tool}.sh --bootstrap-server {self._cluster.servers}"
