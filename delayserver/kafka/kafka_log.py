"""`KafkaLog`: the shared log of a shard is one partition of a topic. Two threads: one reads, the other watches the producer.

Each hands over with one call into the event loop a batch. A member that does not take its batches stops the reader, and so
the library, whose queue has a bound.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NoReturn

import trio
from confluent_kafka import Producer

from delayserver.kafka.client_options import KafkaCluster
from delayserver.kafka.partition_reader import PartitionReader
from delayserver.kafka.partition_writer import PartitionWriter
from delayserver.kafka.topic import KafkaTopic
from delayserver.runtime.shared_log import LogDescription, LogRecord, LogUnavailable

BATCHES_MAX: Final = 2
"""Batches that were read and not taken yet. The reader waits with the next one."""
AGAIN_S: Final = 0.2
"""Between two looks for the topic, while Kafka does not answer."""


class KafkaEngine:
    """A `LogEngine`: the shards' logs are the partitions of a topic. Shard i is partition i."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.topic = cluster.topic

    def open(self, shard: int) -> KafkaLog:
        """The log of a shard. Does no I/O."""
        return KafkaLog(self._cluster, shard)

    async def make_topic(self, shards: int) -> None:
        """Make the topic as a member wants it. Raises LogUnusable if it exists or is refused, LogUnavailable."""
        await self._of_topic(lambda topic: topic.make(shards))

    async def grow_topic(self, shards: int) -> None:
        """Add a partition: then there are so many. Raises LogUnusable if Kafka refuses it, LogUnavailable."""
        await self._of_topic(lambda topic: topic.grow(shards))

    async def _of_topic(self, work: Callable[[KafkaTopic], Awaitable[None]]) -> None:
        topic = KafkaTopic(self._cluster)
        try:
            await work(topic)
        finally:
            await _in_thread(topic.close)


class KafkaLog:
    """A `SharedLog` on Kafka. All its methods are called on the event loop."""

    def __init__(self, cluster: KafkaCluster, shard: int) -> None:
        self._cluster = cluster
        self._shard = shard
        self._topic = KafkaTopic(cluster)
        self._writer = PartitionWriter(cluster, shard)
        # A member that appends waits for its records to come back. One that only reads does not.
        self._hurry: Callable[[], None] | None = None
        self._appends = False
        self._arrived: Callable[[Sequence[LogRecord]], None] | None = None
        self._paused = False
        self._waiting: deque[list[LogRecord]] = deque()
        # The reader takes a place for each batch.
        self._places = threading.Semaphore(BATCHES_MAX)
        self._end = threading.Event()
        self._over = trio.Event()
        self._error: BaseException | None = None
        self._loop: trio.lowlevel.TrioToken | None = None

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        """Read and append until cancelled, as `SharedLog` says."""
        loop = self._loop = trio.lowlevel.current_trio_token()
        self._arrived = arrived
        try:
            reader = PartitionReader(self._cluster, self._topic, await self._identity(), self._shard, position)
            self._hurry = reader.hurry
            if self._appends:
                reader.hurry()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beside, partial(reader.read, self._give, self._end))
                nursery.start_soon(self._beside, partial(self._writer.report, self._ready, self._end))
                try:
                    await self._over.wait()
                finally:
                    self._stop()
        finally:
            self._stop()
            with trio.CancelScope(shield=True):
                await _in_thread(self._topic.close)
        assert self._error is not None and loop is not None
        raise self._error

    def append(self, record: bytes) -> None:
        """Hand over one record. Raises ValueError if it is empty or too long."""
        self._writer.append(record)
        if not self._appends:
            self._appends = True
            if self._hurry is not None:
                self._hurry()

    async def ask(self) -> int:
        """The end of the log, asked for now."""
        return await self._topic.end(self._shard)

    def pause(self) -> None:
        """Stop reading. The reader goes on until its places are taken."""
        self._paused = True

    def resume(self) -> None:
        """Go on reading, with what has waited meanwhile."""
        if self._paused:
            self._paused = False
            if self._loop is not None:
                self._loop.run_sync_soon(self._take_waiting)

    async def trim(self, position: int) -> None:
        """Remove the records below a position."""
        await self._topic.trim(self._shard, position)

    async def describe(self) -> LogDescription:
        """Positions, copies, and faults of the topic's settings."""
        return await self._topic.describe(self._shard)

    async def _identity(self) -> str:
        """Which topic it is. Waits until Kafka answers."""
        while True:
            try:
                return await self._topic.identity(self._shard)
            except LogUnavailable:
                await trio.sleep(AGAIN_S)

    async def _beside(self, work: Callable[[], None]) -> None:
        """Run one of the threads. Its error ends `run`."""
        try:
            await _in_thread(work)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _give(self, records: list[LogRecord]) -> None:
        """From the reader's thread: a batch. Waits until there is a place for it."""
        assert self._loop is not None
        self._places.acquire()
        self._loop.run_sync_soon(self._take, records)

    def _ready(self, producer: Producer) -> None:
        """From the writer's thread: its producer."""
        assert self._loop is not None
        self._loop.run_sync_soon(self._writer.use, producer)

    def _take(self, records: list[LogRecord]) -> None:
        self._waiting.append(records)
        self._take_waiting()

    def _take_waiting(self) -> None:
        while self._waiting and not self._paused and self._arrived is not None:
            self._places.release()
            try:
                self._arrived(self._waiting.popleft())
            except BaseException as error:  # noqa: BLE001  raised by `run`
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End `run` with this error, if it is the first. Nothing arrives from now on."""
        if self._error is None:
            self._error = error
            self._arrived = None
            self._over.set()

    def _stop(self) -> None:
        """Let the threads end, also a reader that waits for a place."""
        self._arrived = None
        self._writer.end()
        self._end.set()
        self._places.release(BATCHES_MAX + 1)


async def _in_thread(work: Callable[[], None]) -> None:
    """Run work in a thread of its own. It counts for no limit: these threads stay."""
    await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))
