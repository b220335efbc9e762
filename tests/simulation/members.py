"""A member of a shard: a host whose server follows and leads, and whose process may be stopped and go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import trio

from delayserver.backup.copying import back_up
from delayserver.backup.objects import Folder
from delayserver.backup.point_in_time import plan_restore
from delayserver.backup.repository import Repository
from delayserver.backup.restoring import restore
from delayserver.config.cluster_settings import ClusterSettings
from delayserver.config.settings import Settings
from delayserver.protocol.frames import FrameDecoder, decode_request
from delayserver.protocol.schema.shard_map import ShardMap
from delayserver.runtime.clock import Clock
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import SharedLogError
from delayserver.runtime.workers import Workers
from delayserver.server.delay_server import DelayServer, LeadershipLost
from delayserver.server.ground import Doors, Membership
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.seat import Seat
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import StoreError
from store.shared.envelope import LogWriter, ShardIdentity
from store.shared.payload import LOG_VERSION
from store.snapshots.snapshot_listing import read_listing
from store.snapshots.taking import FILES
from tests.simulation.client import FRAME_BYTES_MAX, Client, DelayServerError, Lost
from tests.simulation.clocks import SimulatedTime, WallClock
from tests.simulation.host import Host, SimulatedDisk
from tests.simulation.log import SimulatedLogs
from tests.simulation.network import Network, SimulatedTransport

T = TypeVar("T")
IDENTITY = ShardIdentity(77, 5)
SHARD = 0
DATA_DIR = "/data"
BACKUPS_BYTES = 1 << 30
# Answers that say for certain that nothing was done: another member may do it.
NOT_HERE = ("not_ready", "not_primary", "log_unavailable", "shutting_down")
# So often a client asks the next member, with a pause before each, until it gives up.
TRIES = 60
PAUSE_S = 0.25
# Pulls wait up to 20 s.
PULL_S_MAX = 25.0

Delivered = Callable[["Member", "DeliverFrame"], None]


class DeliverFrame(dict[str, object]):
    """The arguments of a `deliver` as they left a member."""


class Gate:
    """Open while a process runs."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    def close(self) -> None:
        if self._opened.is_set():  # who waits for a gate that is closed waits on
            self._opened = trio.Event()

    def open(self) -> None:
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    async def passed(self) -> None:
        """Return when it is open."""
        while not self._opened.is_set():
            await self._opened.wait()


class StoppableClock:
    """The `Clock` of a process: the clock of its host goes on while it is stopped, and its sleeps end when it goes on."""

    def __init__(self, clock: WallClock, gate: Gate) -> None:
        self._clock = clock
        self._gate = gate
        self.now_us, self.now_ms, self.wait_s = clock.now_us, clock.now_ms, clock.wait_s
        self.monotonic_us, self.boot_us = clock.monotonic_us, clock.boot_us

    async def sleep_ms(self, duration_ms: float) -> None:
        await self._clock.sleep_ms(duration_ms)
        await self._gate.passed()

    async def sleep_until_us(self, wall_us: int) -> None:
        await self._clock.sleep_until_us(wall_us)
        await self._gate.passed()


class StoppableWorkers:
    """The `Workers` of a process that is stopped, or whose disk hangs: no work comes back meanwhile."""

    def __init__(self, workers: Workers, gate: Gate) -> None:
        self._workers = workers
        self._gate = gate

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        result = await self._workers.run(work, abandon_on_cancel=abandon_on_cancel)
        if not self._gate.is_open:
            with trio.CancelScope(shield=True):
                await self._gate.passed()
        return result


class Member(Host):
    """One of the hosts of a shard."""

    may_die_of = (StoreError, SharedLogError, LeadershipLost)
    dies_of_a_full_disk = True

    def __init__(
        self,
        name: str,
        number: int,
        settings: Settings,
        clock: WallClock,
        network: Network,
        logs: SimulatedLogs,
        chance: Random,
        note: Callable[..., None],
    ) -> None:
        super().__init__(name, 1, settings, clock, network, chance, note)
        self.number = number
        self.gate = Gate()
        # Closed while its disk hangs: no sync or other work of a worker thread comes back.
        self.disk_gate = Gate()
        # Told each `deliver` that leaves it.
        self.on_deliver: Delivered = lambda _member, _frame: None
        self.instance = 0
        # The highest version of the log that its program reads, and that of each of its processes so far, by the instance.
        self.reads = LOG_VERSION
        self.programs: dict[int, int] = {}
        # What the map shows: the highest version of the log that all members read.
        self._shown = ShardMap(0, [], []), 0
        self._instances = chance
        self._logs = logs
        self._stops = 0
        self._kept = 0
        # Whether it asks the fronts of the others, and what it knows of them.
        self.probes = False
        self.map = ClusterMap(SHARD, name)
        # Its machine is lost, and its next life begins with what another member has.
        self.lost = False

    @property
    def kept(self) -> int:
        """It never reads the log again before this position."""
        server = self.server
        if server is not None and server.is_open and server.parts.cluster is not None:
            self._kept = max(self._kept, server.parts.cluster.standing.kept.value)
        return self._kept

    async def begin_from(self, other: Member, now_us: int) -> bool:
        """Its next life begins with a backup of another member, as an operator makes and restores it. False if that one does
        not serve it now. `now_us`: the clock of the operator."""
        client, life = Client(self._network, other.address, f"backup for {self.name}"), other.lives
        try:
            taken = await client.request("snapshot", {"action": "take"})
            if other.lives != life or not other.open.is_set() or other.disk.dead:
                return False
            place = _backed_up(other.disk, str(taken["path"]))
            self.disk = SimulatedDisk()
            done = restore(place, plan_restore(place, None, alone=False), self.disk, DATA_DIR, now_us, _silent)
            assert done.followed is not None, "it is of a member"
            self._kept = done.followed.position
            self.lost = False
            await client.request("snapshot", {"action": "drop", "name": taken["name"]})
        except (Lost, DelayServerError):
            pass  # what is left there, its next start drops
        finally:
            client.close()
        return not self.lost

    def clock_of_process(self) -> Clock:
        return StoppableClock(self.clock, self.gate)

    def workers_of_process(self) -> Workers:
        return StoppableWorkers(StoppableWorkers(self.workers, self.disk_gate), self.gate)

    @property
    def waits_for_disk_from(self) -> int | None:
        """The position of the log behind what its disk has, if it has read more than that."""
        server = self.server
        cluster = server.parts.cluster if server is not None and self.open.is_set() else None
        if cluster is None or cluster.standing.applied.value >= cluster.standing.read.value:
            return None
        return int(cluster.standing.applied.value)

    @property
    def leads(self) -> bool:
        """Whether its process says that it leads, as far as it has read."""
        server = self.server
        cluster = server.parts.cluster if server is not None and self.open.is_set() else None
        return cluster is not None and cluster.standing.took_over.is_set() and cluster.standing.leads

    def show(self, shown: ShardMap, reads: int) -> None:
        """Its process, and each later one, sees a later map."""
        self._shown = shown, reads
        self.map.take(shown, reads)

    # A stopped process

    @property
    def stopped(self) -> bool:
        """Whether its process stands still, and its clock does not."""
        return self._stops > 0

    def stop_process(self) -> None:
        """As SIGSTOP does, until `continue_process` was called as often."""
        self._stops += 1
        if self._stops == 1:
            self.gate.close()
            self._network.stopped[self.address] = trio.Event()
            self._logs.cut(self.name)

    def continue_process(self) -> None:
        """As SIGCONT does."""
        self._stops -= 1
        if not self._stops:
            self.gate.open()
            self._network.stopped.pop(self.address).set()
            self._logs.heal(self.name)

    def crash(self, *, power: bool) -> None:
        while self._stops:
            self.continue_process()  # a process that stands still is killed all the same
        self.disk_gate.open()
        super().crash(power=power)

    # Its server

    def _new_server(self, runtime: Runtime) -> DelayServer:
        self.instance = self._instances.getrandbits(62) + 1
        self.map = ClusterMap(SHARD, self.name)
        self.map.take(*self._shown)
        self.programs[self.instance] = self.reads
        seat = Seat(SHARD, IDENTITY, LogWriter(self.number, self.instance), self.name, self.address)
        engine = self._logs.engine(self.name)
        settings = ClusterSettings(rank=self.number, front_probe=self.probes)
        return DelayServer(
            self.settings,
            runtime=runtime,
            doors=Doors(self.disk, self._connect),
            reread=lambda: self.file,
            membership=Membership(engine, seat, settings, map=self.map, reads=self.reads),
        )

    async def _connect(self, address: str) -> SimulatedTransport:
        await self.gate.passed()
        transport = await self._network.connect(address)
        await self.gate.passed()
        transport.host = self.address
        decoder, life = FrameDecoder(FRAME_BYTES_MAX), self.lives

        def sent(data: bytes) -> None:
            for payload in decoder.feed(data):
                request = decode_request(payload)
                if request.operation == "deliver" and self.lives == life:
                    self.on_deliver(self, DeliverFrame(request.arguments))

        transport.sent = sent
        return transport


def _backed_up(disk: SimulatedDisk, path: str) -> Repository:
    """A place with a backup of a snapshot, which stands at this path."""
    place = Repository(Folder(MemoryFileSystem(BACKUPS_BYTES), "/backups"))
    place.hold()
    try:
        back_up(place, disk, f"{path}/{FILES}", read_listing(disk, path), "simulation", _silent)
    finally:
        place.close()
    return place


def _silent(_done: int, _total: int) -> None:
    """Tells nobody."""


class FollowingClient(Client):
    """A client that knows the addresses of all members, and asks them in turn until one of them serves it."""

    def __init__(self, network: Network, addresses: Sequence[str], name: str, chance: Random) -> None:
        super().__init__(network, chance.choice(addresses), name)
        self._addresses = addresses

    async def request(self, operation: str, arguments: dict[str, object], timeout_s: float = 8.0) -> dict[str, object]:
        """As of a `Client`. What certainly was not done is asked of the next member."""
        timeout_s = max(timeout_s, PULL_S_MAX) if operation == "pull" else timeout_s
        for _ in range(TRIES):
            try:
                result = await super().request(operation, arguments, timeout_s)
                if operation != "status" or result["ready"]:
                    return result
                self._go_on()
            except Lost as error:
                self._go_on()
                if error.sent:
                    raise
            except DelayServerError as error:
                if error.name not in NOT_HERE:
                    raise
                self._go_on()
            await self.sleep(PAUSE_S)
        raise Lost("no member serves", sent=False)

    async def request_all(
        self, operation: str, many: list[dict[str, Any]], timeout_s: float = 8.0
    ) -> list[dict[str, Any] | DelayServerError | None]:
        """As of a `Client`, likewise."""
        for _ in range(TRIES):
            try:
                answers = await super().request_all(operation, many, timeout_s)
                not_here = [isinstance(each, DelayServerError) and each.name in NOT_HERE for each in answers]
                if any(not_here) or None in answers:
                    self._go_on()
                if not all(not_here):
                    return answers
            except Lost:
                self._go_on()
            await self.sleep(PAUSE_S)
        raise Lost("no member serves", sent=False)

    def _go_on(self) -> None:
        self.close()
        self._address = self._addresses[(self._addresses.index(self._address) + 1) % len(self._addresses)]


class Shard(Host):
    """All members, for clients and books that know one server."""

    def __init__(
        self,
        members: Sequence[Member],
        clock: ShardClock,
        network: Network,
        epochs: Callable[[], int],
        note: Callable[..., None],
    ) -> None:
        super().__init__("shard", 1, members[0].settings, clock, network, Random("shard"), note)
        self._members = members
        self._epochs = epochs
        self.up.set()
        self.open.set()

    @property
    def lives(self) -> int:
        """Each epoch begins one, and each end of a process: what it had told and not appended may be gone."""
        return self._epochs() + sum(member.deaths for member in self._members) + 1

    @lives.setter
    def lives(self, _count: int) -> None:
        """Nobody counts them."""

    async def serves(self) -> bool:
        """A client looks itself which member does."""
        await trio.lowlevel.checkpoint()
        return True


class ShardClock(WallClock):
    """What the clocks of all members show, for books that know one server: the latest of their times."""

    def __init__(self, time: SimulatedTime, clocks: Sequence[WallClock]) -> None:
        super().__init__(time)
        self._clocks = clocks

    def now_us(self) -> int:
        return max(clock.now_us() for clock in self._clocks)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    @property
    def lowest_us(self) -> int:
        """The earliest of their times."""
        return min(clock.now_us() for clock in self._clocks)

    @property
    def peak_us(self) -> int:
        return max(clock.peak_us for clock in self._clocks)

    @property
    def step_count(self) -> int:
        return sum(clock.step_count for clock in self._clocks)

    def has_shown(self, from_ms: int, to_ms: int) -> bool:
        return any(clock.has_shown(from_ms, to_ms) for clock in self._clocks)

    def held_us(self, hold_us: int) -> int:
        return max(clock.held_us(hold_us) for clock in self._clocks)

    def shown_since_us(self, seconds: float) -> int:
        return max(clock.shown_since_us(seconds) for clock in self._clocks)
