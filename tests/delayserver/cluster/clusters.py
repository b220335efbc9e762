"""Whole servers as members of one shard, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.config.settings import Settings
from delayserver.members.member_map import Announced, Healed
from delayserver.protocol.schema.shard_map import ShardMap
from delayserver.server.ground import Membership
from delayserver.server.map_reading import MapReading
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.seat import Seat
from store.shared.envelope import LogWriter, ShardIdentity
from store.shared.payload import LOG_VERSION
from tests.delayserver.follow.members import IDENTITY, ListLog, Records
from tests.delayserver.server.test_map_reading import MapEngine
from tests.fakes.broker import FakeBroker
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Client, faked_settings
from tests.fakes.network import FakeNetwork


class Engine:
    """Gives each life of a member its view of the one log."""

    def __init__(self, records: Records, shard: int) -> None:
        self.records = records
        self.shard = shard
        self.logs: list[ListLog] = []

    def open(self, shard: int) -> ListLog:
        assert shard == self.shard
        self.logs.append(ListLog(self.records))
        return self.logs[-1]


class Cluster:
    """Members on disks of their own. Those with the default settings deliver to the same fake node."""

    def __init__(
        self,
        boot: Boot,
        names: str,
        settings: Settings | None = None,
        records: Records | None = None,
        identity: ShardIdentity = IDENTITY,
        shard: int = 0,
    ) -> None:
        """`records`: the log of another cluster, which has another `identity`. Another `shard` has another one too."""
        self.engine = Engine(records or Records(), shard)
        self.identity = identity
        self.shard = shard
        self.network = FakeNetwork()
        self.lives = 0
        self.maps = {name: ClusterMap(shard, name) for name in names}
        self.front_probe = True
        self.healed: Healed | None = None
        # The highest version of the log that the program of each member reads.
        self.reads = dict.fromkeys(names, LOG_VERSION)
        self.hosts = {
            name: boot(
                settings or faked_settings(),
                name=name,
                disk=FakeDisk(),
                network=self.network,
                seed=number + 1,
                membership=partial(self.membership, name, number),
            )
            for number, name in enumerate(names)
        }
        first = next(iter(self.hosts.values()))
        for host in self.hosts.values():
            host.brokers = first.brokers

    async def start(self) -> Client:
        """Start the first member, which leads, and the others as its standbys. A client of the first one."""
        first, *others = self.hosts.values()
        client = await first.start_connected()
        for other in others:
            other.begin()
        return client

    def membership(self, name: str, number: int) -> Membership:
        """That of the next life of a member."""
        self.lives += 1
        seat = Seat(self.shard, self.identity, LogWriter(number, self.lives), name, f"{name}:1", f"http://{name}:2")
        settings, reads = ClusterSettings(rank=number, front_probe=self.front_probe), self.reads[name]
        return Membership(self.engine, seat, settings, map=self.maps[name], healed=self.healed, reads=reads)

    def announce(self, **reads: int) -> None:
        """The map shows these members, each with the highest version of the log that it reads."""
        for shards in self.maps.values():
            shards.take(ShardMap(shards.version.value + 1, [], []), min(reads.values()))

    @asynccontextmanager
    async def reading(self, engine: MapEngine) -> AsyncIterator[None]:
        """All members read the map of `engine`, and write there, until the end of the block."""
        async with trio.open_nursery() as nursery:
            for name, shards in self.maps.items():
                own = Announced(name, self.shard, f"{name}:1", "", "1", name)
                nursery.start_soon(MapReading(engine, own, shards).run)
            yield
            nursery.cancel_scope.cancel()

    @property
    def node(self) -> FakeBroker:
        return next(iter(self.hosts.values())).fake()

    @property
    def delivered(self) -> list[str]:
        """The bodies of what the node was handed, in order."""
        return [self.node.bodies[sequence].decode() for sequence in self.node.stored]
