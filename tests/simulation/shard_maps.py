"""Members of several shards, which join their cluster and read its map as real processes do. The map is a log of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.settings import Settings
from delayserver.members.founding import Engines
from delayserver.members.member_map import FORMAT, Founded, encode_note
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import SharedLog
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors
from delayserver.server.joining import Joined, join
from delayserver.server.map_reading import MapReading
from delayserver.startup.directory_opening import OpeningMember, require_openable
from tests.simulation.clocks import WallClock
from tests.simulation.log import SimulatedLog, SimulatedLogs
from tests.simulation.members import Member
from tests.simulation.network import Network

CLUSTER_ID = 77
# The number of the log of the map. Those of the shards begin at 0.
MAP = 1_000


class SimulatedTopic:
    """The `Engine` of one topic, as somebody reaches it."""

    def __init__(self, logs: SimulatedLogs, who: str, topic: str, first: int) -> None:
        """`first`: the number of its first log among all logs."""
        self.topic = topic
        self._logs = logs
        self._who = who
        self._first = first

    def open(self, shard: int) -> SharedLog:
        """See `Engine`."""
        return SimulatedLog(self._logs, self._first + shard, self._who)

    async def make_topic(self, shards: int) -> None:
        """See `Engine`."""
        await trio.lowlevel.checkpoint()
        for shard in range(shards):
            self._logs.make(self._first + shard)

    async def grow_topic(self, shards: int) -> None:
        """See `Engine`."""
        await trio.lowlevel.checkpoint()
        self._logs.make(self._first + shards - 1)


def engines_of(logs: SimulatedLogs, who: str) -> Engines:
    """The topics of a cluster, as a member or an operator reaches them."""
    return Engines(SimulatedTopic(logs, who, "shards", 0), SimulatedTopic(logs, who, "map", MAP))


def found(logs: SimulatedLogs, server_ids: list[str]) -> None:
    """Make the logs of these shards, and the map with its first record."""
    for shard in range(len(server_ids)):
        logs.make(shard)
    logs.make(MAP).land(encode_note(Founded(FORMAT, f"{CLUSTER_ID:012x}", tuple(server_ids))), "operator", 0.0)


class MappedMember(Member):
    """A member whose processes join the cluster, and read the map while they run."""

    def __init__(
        self,
        name: str,
        shard: int,
        settings: Settings,
        clock: WallClock,
        network: Network,
        logs: SimulatedLogs,
        chance: Random,
        note: Callable[..., None],
    ) -> None:
        super().__init__(name, 0, settings, clock, network, logs, chance, note)
        self._engines = engines_of(logs, name)
        self._file = ClusterFile(kafka="simulated:9092", member=name, shard=shard, front_probe=False)
        self._joining = chance
        self._joined: Joined | None = None

    async def join(self) -> None:
        """The next process announces itself in the map, and reads it. Raises SharedLogError."""
        self._joined = await join(
            self._file, self._engines, self.address, "", self.settings.storage.window_ms, self._joining, self._look
        )
        self.map = self._joined.shards

    def _look(self, member: OpeningMember) -> None:
        require_openable(self.disk, self.settings.storage.data_dir, member, self.name, "server")

    def _new_server(self, runtime: Runtime) -> DelayServer:
        assert self._joined is not None, "a process joins first"
        membership = self._joined.membership(self._joining, lambda _primary: None, self.settings.tls)
        self.number, self.instance = membership.seat.me.member, membership.seat.me.instance
        self.programs[self.instance] = self.reads
        return DelayServer(
            self.settings,
            runtime=runtime,
            doors=Doors(self.disk, self._connect),
            reread=lambda: self.file,
            membership=membership,
        )

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_map)
            await super()._live()
            nursery.cancel_scope.cancel()

    async def _read_map(self) -> None:
        joined = self._joined
        assert joined is not None, "a process joins first"
        await MapReading(joined.engines.map, joined.own, joined.shards).run()
