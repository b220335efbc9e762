"""A cluster of several shards, of fake servers: one member a shard, and the map that all of them show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from delayserver.protocol.schema.shard_map import OPEN, ShardMap, ShardPlace
from delayserver.protocol.slots import SLOTS
from delayserver.state.shard.cluster_map import ClusterMap
from tests.delayserver.client.fake_server import FakeServer


class FakeCluster:
    """Shards by number. Each has the same part of the slots."""

    def __init__(self, members: list[FakeServer]) -> None:
        self.members = members
        size = SLOTS // len(members)
        slots = [[size * shard, size * (shard + 1) - 1, shard] for shard in range(len(members))]
        slots[-1][1] = SLOTS - 1
        places = [ShardPlace(n, member.server_id, OPEN, 1, member.address, []) for n, member in enumerate(members)]
        self.shown = ShardMap(0, slots, places)
        self.show()

    @property
    def addresses(self) -> str:
        """Those of all members."""
        return ",".join(member.address for member in self.members)

    def show(self, *shards: int, **changes: object) -> None:
        """All members show a later map, in which these shards have changed."""
        places = [replace(place, **changes) if place.shard in shards else place for place in self.shown.shards]
        self.shown = replace(self.shown, version=self.shown.version + 1, shards=places)
        self.tell(*range(len(self.members)))

    def add(self, server_id: str) -> None:
        """All members show a later map, with a shard more that has no member yet."""
        added = ShardPlace(len(self.shown.shards), server_id, OPEN, 0, "", [])
        self.shown = replace(self.shown, shards=[*self.shown.shards, added])
        self.show()

    def tell(self, *shards: int) -> None:
        """The members of these shards read the present map."""
        for shard in shards:
            read = ClusterMap(shard)
            read.take(self.shown)
            self.members[shard].map = read

    def bodies(self) -> list[list[bytes]]:
        """What each shard has stored."""
        return [[message.body for message in member.messages] for member in self.members]


@contextmanager
def fake_cluster(shards: int = 3) -> Iterator[FakeCluster]:
    """A cluster of so many shards."""
    with ExitStack() as stack:
        members = [stack.enter_context(FakeServer(server_id=f"{shard + 10:012x}")) for shard in range(shards)]
        yield FakeCluster(members)
