"""A member of the tests that follows a log on real Kafka, and clusters with a topic of their own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from delayserver.kafka.client_options import KafkaCluster
from delayserver.runtime.marks import Mark
from delayserver.runtime.shared_log import LogRecord, SharedLog, SharedLogError
from ops.kafka.nodes import KafkaNodes

if TYPE_CHECKING:
    from delayserver.kafka.kafka_log import KafkaEngine

UNHURRIED_S = 300
"""A test that hangs fails after this time, and none needs so long."""
_numbers = itertools.count()


def new_cluster(nodes: KafkaNodes, copies_min: int = 1) -> KafkaCluster:
    """A cluster with a topic that no other test has."""
    return KafkaCluster(nodes.bootstrap, f"shards-{next(_numbers)}", copies_min=copies_min)


async def new_engine(nodes: KafkaNodes, copies_min: int = 1) -> KafkaEngine:
    """An engine whose topic is made, with two shards."""
    from delayserver.kafka.kafka_log import KafkaEngine

    engine = KafkaEngine(new_cluster(nodes, copies_min))
    await engine.make_topic(2)
    return engine


class Follower:
    """What has arrived of a log, and how its `run` ended."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.error: SharedLogError | None = None
        self.ended = trio.Event()
        self._count = Mark(0)

    @property
    def data(self) -> list[bytes]:
        """The records without their positions."""
        return [record.data for record in self.records]

    def arrived(self, records: Sequence[LogRecord]) -> None:
        """For `run`."""
        self.records += records
        self._count.advance(len(self.records))

    async def follow(self, log: SharedLog, position: int) -> None:
        """Run the log until it is cancelled, or to the error that it raises."""
        try:
            await log.run(position, self.arrived)
        except SharedLogError as error:
            self.error = error
        finally:
            self.ended.set()

    async def reached(self, count: int) -> None:
        """Return when so many records have arrived."""
        await self._count.reached(count)


@asynccontextmanager
async def following(log: SharedLog, position: int = 0) -> AsyncIterator[Follower]:
    """Follow a log as long as the block lasts."""
    follower = Follower()
    with trio.fail_after(UNHURRIED_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.follow, log, position)
            yield follower
            nursery.cancel_scope.cancel()


def library_threads(pid: int | None = None) -> list[str]:
    """The threads of librdkafka in a process, by name. None: in this one."""
    names = [path.read_text().strip() for path in Path(f"/proc/{pid or 'self'}/task").glob("*/comm")]
    return [name for name in names if name.startswith("rdk:")]
