"""The world of one seed with a shard of three members: whole servers, each with its disk and clock, on one simulated log.

They deliver to nodes of their own. Clients know all members, and follow the one that leads. Members are killed, lose power,
stand still, are cut off from the log or from clients. In some seeds they ask each other's fronts. The log is late, repeats
records and stands still.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings, Settings
from delayserver.front.front import BROKER
from delayserver.state.shard.fronts import MemberFront
from tests.simulation import settings as settings_of
from tests.simulation.actors import REMOTE_SUBJECTS, SUBJECTS, Consumer, Producer, look_up
from tests.simulation.bounds import Bounds
from tests.simulation.client import Client, DelayServerError, Lost
from tests.simulation.clocks import SimulatedTime, WallClock
from tests.simulation.damage import Damage
from tests.simulation.failures import SimulationFailure
from tests.simulation.files import SUBJECT, count_files
from tests.simulation.giving_up import GivingUp
from tests.simulation.host import Host, SimulatedDisk
from tests.simulation.log import LogShard, SimulatedLogs, drawn_faults
from tests.simulation.members import IDENTITY, SHARD, FollowingClient, Member, Shard, ShardClock
from tests.simulation.model import ACCEPTED, Model, Sending, Sent
from tests.simulation.network import Network, Weather
from tests.simulation.ordering import Ordering
from tests.simulation.publishing import PAUSES_S, Publishing
from tests.simulation.rot import Rotting
from tests.simulation.shard_judge import HANGS_S, ShardJudge
from tests.simulation.threads import SimulatedWorkers
from tests.simulation.timeliness import Timeliness
from tests.simulation.trace import Trace
from tests.simulation.transactions import Books, Dealer
from tests.simulation.versions import STOPPED, Versions
from tests.simulation.workload import Workload
from tests.simulation.world import BALANCE, TIMER_US, producer_pause

MEMBERS = ("a", "b", "c")
NODES = ("node-a", "node-b")
# How far the clocks of members are apart.
APART_MS = (0, 0, 300, 5_000, 3_600_000, 43_200_000)
# How many faults a seed meets, with the work around them.
EPISODES = (4, 5, 6, 8, 12)
HOPS_MAX = 300
# Seeds in which messages go to the broker in the members; of those, what else it is asked for.
EMBEDDED_SHARE = 0.7
DEALING_SHARE, PUBLISHING_SHARE, GIVING_UP_SHARE, ORDERING_SHARE = 0.4, 0.5, 0.3, 0.3
# Seeds in which members ask each other's fronts.
PROBING_SHARE = 0.3
# A fault of so long makes a primary hand over. The map shows what members say within some time.
UNREACHED_S = 40.0
MAP_S = 0.5
# How quickly clients publish and read what was published. Each record costs three members all their steps, so mostly not as
# quickly as with one server: a seed has as many faults, and fewer requests between them.
PACES = ((PAUSES_S, 0.0), ((0.01, 2.0, 6.0), 2.0), ((0.01, 2.0, 6.0), 6.0))
# With a log that answers and a member that runs, somebody leads within this time.
LEADER_S_MAX = 60.0
# At the end all members are at the end of the log within this time.
EQUAL_S_MAX = 30.0
# Before the barrier each member gives up by its own clock. So in most of the time nothing goes by age.
KEPT_MS = 400 * 86_400_000
FAULTS = (
    "kill", "kill", "power", "power", "crash", "crash", "stop", "stop", "cut", "cut", "stall", "unreachable",
    "clean stop", "clock", "weather", "node", "none", "trim", "trim", "lost", "full",
    "hang", "hang",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OneShard:
    """A shard of a world: its log, its members and its judge."""

    log: LogShard
    members: list[Member]
    judge: ShardJudge

    @property
    def leader(self) -> Member | None:
        """The member that serves; None: none does now."""
        serving = (each for each in self.members if each.alive and not each.stopped and not each.disk.dead)
        return next(serving, None)

    def epochs(self) -> int:
        """How often somebody has taken it over by now."""
        self.judge.look()
        return len(self.judge.epochs)


class ShardModel(Model):
    """The books, where several servers with clocks of their own take turns."""

    shard_clock: ShardClock

    def asking_to_send(self, rows: list[Sent]) -> Sending:
        return replace(super().asking_to_send(rows), asked_us=self.shard_clock.lowest_us)


class ShardProducer(Producer):
    """A producer that does not know whose clock counts."""

    _clock: ShardClock

    def _check_delay(self, row: Sent, delay_ms: int, asked_ms: int) -> None:
        apart_ms = self._clock.now_ms() - self._clock.lowest_us // 1000
        super()._check_delay(row, delay_ms, asked_ms - apart_ms - 1)

    async def _redispatch(self) -> None:
        """No operator brings messages again: then nothing would explain a copy."""
        await self._look_up()


class ClusterWorld:
    """Everything of one seed. The script and the faults are for any number of shards; what is built here has one."""

    def __init__(self, seed: int, time: SimulatedTime, trace: Trace) -> None:
        self.chance = Random(f"{seed}:cluster")
        self.time = time
        self.note = trace.note
        self.network = Network(time, Random(f"{seed}:network"), self.note)
        self.logs = SimulatedLogs(time, Random(f"{seed}:log"), drawn_faults(Random(f"{seed}:log faults")))
        # What a fault may be, and how many of them a seed meets.
        self.faults: tuple[str, ...] = FAULTS
        self.episodes: tuple[int, ...] = EPISODES
        self.nodes: list[Host] = []
        self.members: list[Member] = []
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        # In seeds of this kind members ask each other's fronts.
        self.probing, self.probes = Random(f"{seed}:fronts"), False
        self.calm = False
        self.shards: list[OneShard] = []
        self.workloads: list[Workload] = []
        self.dealer: Dealer | None = None
        # None: no disk of a member is damaged.
        self.rotting: Rotting | None = None
        self._build(seed, trace)

    def _build(self, seed: int, trace: Trace) -> None:
        """Make the members, the nodes, the clients and their books."""
        chance, time = self.chance, self.time
        log = self.logs.make(SHARD)
        offset_us = chance.randrange(86_400) * 1_000_000
        apart_ms = chance.choice(APART_MS)
        clocks = [WallClock(time, offset_us + chance.randrange(-apart_ms, apart_ms + 1) * 1000) for _ in MEMBERS]
        self.clock = ShardClock(time, clocks)
        trace.wall_us = self.clock.now_us
        names = NODES[: chance.choice([1, 1, 2])]
        self.nodes = [self._node(seed, name, offset_us) for name in names]
        remote = GroupSettings("remote", tuple(NodeSettings(node.address) for node in self.nodes))
        self.embedded = Random(f"{seed}:embedded").random() < EMBEDDED_SHARE
        settings = settings_of.server_settings(chance, *self._groups(remote))
        storage = replace(settings.storage, durability="sync")
        settings = replace(settings, storage=storage)
        self.members = [self._member(seed, number, settings, clock) for number, clock in enumerate(clocks)]
        judge = ShardJudge(log, self.members, time, self.note)
        self.shards = [OneShard(log, self.members, judge)]
        for member in self.members:
            member.on_deliver = judge.delivers
        self.versions = Versions(self.members, time, Random(f"{seed}:versions"), self.note)
        damage = Damage(self.members[0].disk, Random(f"{seed}:flips"), storage.window_ms, self.note)
        self.model = ShardModel(self.note, damage, self.clock, storage)
        self.model.shard_clock = self.clock
        self.model.server_id = f"{IDENTITY.server_id:012x}"
        self.model.life = self._life
        # Whoever leads after a takeover hands over again what may have been.
        self.model.disturbed = True
        self.timely = Timeliness(self.clock, 0, lambda _: False)
        addresses = [member.address for member in self.members]
        self.whole = Shard(self.members, self.clock, self.network, self._life, self.note)
        own = {subject for subject in SUBJECTS if self.embedded and subject not in REMOTE_SUBJECTS}
        remotes = {node.address for node in self.nodes}
        brokers = {subject: {*addresses} if subject in own else remotes for subject in SUBJECTS}
        self.producers = [
            ShardProducer(
                self._client(seed, f"producer-{number}"),
                self.model,
                self.clock,
                Random(f"{seed}:producer:{number}"),
                self.note,
                chance.choice([3, 10, 40]),
                brokers,
            )
            for number in range(2)
        ]
        self.consumers = [
            Consumer(
                FollowingClient(self.network, [node.address], f"{node.name}/{subject}", chance),
                self.model,
                node,
                self.clock,
                Random(f"{seed}:consumer:{node.name}:{subject}"),
                self.note,
                subject,
                "one",
                self.timely,
                self._look_at_bounds,
            )
            for node in self.nodes
            for subject in SUBJECTS
            if subject not in own
        ]
        self.consumers += [
            Consumer(
                self._client(seed, f"shard/{subject}"),
                self.model,
                self.whole,
                self.clock,
                Random(f"{seed}:consumer:shard:{subject}"),
                self.note,
                subject,
                "one",
                self.timely,
                self._look_at_bounds,
            )
            for subject in sorted(own)
        ]
        self.dealer = self._dealer(seed)
        self.workloads = self._workloads(seed)
        self.checker: Client = FollowingClient(self.network, addresses, "checker", chance)
        self.probes = self.probing.random() < PROBING_SHARE
        for member in self.members:
            member.probes = self.probes
        self.bounds = Bounds(40 * len(self.producers), 24, MEMBERS)
        self.rotting = Rotting(Random(f"{seed}:rot"), self.members, storage.window_ms, self.time, self.note)

    def _groups(self, remote: GroupSettings) -> tuple[tuple[GroupSettings, ...], tuple[RouteSettings, ...]]:
        """Where messages go: in most seeds also to the broker in the members."""
        if not self.embedded:
            return (remote,), (RouteSettings("*", ("remote",)),)
        default = GroupSettings("default", (NodeSettings(),))
        return (default, remote), (RouteSettings("remote.*", ("remote",)), RouteSettings("*", ("default",)))

    def _client(self, seed: int, name: str) -> FollowingClient:
        addresses = [member.address for member in self.members]
        return FollowingClient(self.network, addresses, name, Random(f"{seed}:follows:{name}"))

    def _dealer(self, seed: int) -> Dealer | None:
        chance = Random(f"{seed}:deals")
        if not self.embedded or chance.random() >= DEALING_SHARE:
            return None
        books = Books(self.model, self.whole, self.note)
        self.model.deals.append(books.range_of)
        self.model.others_due.append(books.due_times_ms)
        self.model.timers_ahead_ms.append(books.timers_ahead_ms)
        clients: list[Client] = [self._client(seed, f"dealer-{role}") for role in ("one", "two", "three")]
        return Dealer(clients, self.whole, books, chance, self.note)

    def _workloads(self, seed: int) -> list[Workload]:
        """What else the broker in the members is asked for."""
        found: list[Workload] = []
        if not self.embedded:
            return found
        damage = self.model.damage
        chance = Random(f"{seed}:publishing")
        if chance.random() < PUBLISHING_SHARE:
            producers: list[Client] = [self._client(seed, f"publisher-{number}") for number in range(2)]
            readers = self._client(seed, "readers")
            pauses_s, rest_s = chance.choice(PACES)
            found.append(Publishing(producers, readers, self.whole, damage, chance, self.note, pauses_s, rest_s))
        chance = Random(f"{seed}:giving up")
        if chance.random() < GIVING_UP_SHARE:
            found.append(GivingUp(self._client(seed, "giving-up"), self.model, self.whole, chance, self.note))
        chance = Random(f"{seed}:ordering")
        if chance.random() < ORDERING_SHARE:
            workers: list[Client] = [self._client(seed, f"worker-{number}") for number in range(2)]
            orderer = self._client(seed, "orderer")
            policy = {"attempts": chance.choice([1, 2, 8]), "failed_key": "skip", "first_ms": 100}
            found.append(
                Ordering(
                    orderer, workers, self.whole, damage, chance, self.note, policy if chance.random() < 0.5 else None
                )
            )
        return found

    def _node(self, seed: int, name: str, offset_us: int) -> Host:
        chance = Random(f"{seed}:settings of {name}")
        settings = settings_of.node_settings(chance)
        # The clock of a member may be ahead by all that the members are apart.
        broker = replace(settings.broker, server_clock_ahead_ms_max=KEPT_MS)
        clock = WallClock(self.time, offset_us + chance.randrange(-300, 300) * 1000)
        return Host(
            name, 1, replace(settings, broker=broker), clock, self.network, Random(f"{seed}:{name}"), self.note, BROKER
        )

    def _member(self, seed: int, number: int, settings: Settings, clock: WallClock) -> Member:
        name = MEMBERS[number]
        chance = Random(f"{seed}:{name}:workers")
        member = Member(
            name, number, settings, clock, self.network, self.logs, Random(f"{seed}:host {name}"), self.note
        )
        if chance.random() < 0.5:
            member.workers = SimulatedWorkers(chance, self.time)
        clock.granularity_us = chance.choice(TIMER_US)
        return member

    def _life(self) -> int:
        """Who leads by the logs: what it said of a message stands as long."""
        return sum(shard.epochs() for shard in self.shards)

    def _shard_of(self, member: Member) -> OneShard:
        (shard,) = [each for each in self.shards if member in each.members]
        return shard

    def _look_at_bounds(self) -> None:
        self.versions.look()
        for host in (*self.members, *self.nodes):
            self.bounds.look(host, self.note)

    # What a result tells

    @property
    def crashes(self) -> int:
        return sum(member.crashes for member in self.members)

    @property
    def lives(self) -> int:
        return sum(member.lives for member in self.members)

    # -- the script

    async def main(self) -> None:
        """From the first start to the verdict."""
        async with trio.open_nursery() as nursery:
            for host in (*self.members, *self.nodes):
                nursery.start_soon(host.run)
                nursery.start_soon(self._tend, host)
            if self.rotting is not None and self.rotting.strikes:
                for member in self.members:
                    nursery.start_soon(self.rotting.look_after, member)
            await self._leader()
            for consumer in self.consumers:
                nursery.start_soon(consumer.run)
            if self.dealer is not None:
                nursery.start_soon(self.dealer.consume)
                nursery.start_soon(self.dealer.answer)
            for workload in self.workloads:
                workload.start(nursery)
            if self.probes:
                nursery.start_soon(self._show_fronts)
            for _ in range(self.chance.choice(self.episodes)):
                await self._episode()
            await self._calm_down()
            if self.probes:
                await self._cut_off_from_clients()
            await self._deliver_all()
            if self.dealer is not None:
                await self.dealer.finish(self._leap)
            for workload in self.workloads:
                await workload.settle(self._leap)
            await self._verdict()
            nursery.cancel_scope.cancel()

    async def _show_fronts(self) -> None:
        """The map: members that reach the log learn what the others said last, and say whom they reach."""
        said = {member.name: MemberFront(member.name, member.address) for member in self.members}
        while True:
            reaching = [
                member
                for member in self.members
                if self.logs.reaches(member.name) and member.open.is_set() and not member.disk.dead
            ]
            for member in reaching:
                fronts = member.map.fronts
                said[member.name] = replace(said[member.name], reach=fronts.own, unfit=fronts.damaged)
            for member in reaching:
                member.map.fronts.take(list(said.values()))
                member.map.fronts.check_invariants()
            await self.time.sleep(MAP_S)

    async def _cut_off_from_clients(self) -> None:
        """Where only the primary is unreachable another member leads, and where all are it stays."""
        await self.time.sleep(UNREACHED_S)
        leader, epochs = await self._leader(), self._life()
        everywhere = self.probing.random() < 0.5
        self.note("world", "cut off from clients", member=leader.name, everywhere=everywhere)
        self.network.unreachable |= {each.address for each in (self.members if everywhere else [leader])}
        await self.time.sleep(UNREACHED_S)
        if everywhere and self._life() != epochs:
            raise SimulationFailure("a primary hands over where nobody reaches any member")
        if not everywhere and (self._life() == epochs or leader.leads):
            raise SimulationFailure("a primary that no client reaches goes on leading")
        self.network.unreachable.clear()
        await self._leader()

    async def _tend(self, host: Host) -> None:
        """Start a host again and again, some time after each death."""
        while True:
            while isinstance(host, Member) and host.lost:
                fellows = self._shard_of(host).members
                others = [each for each in fellows if each.open.is_set() and not each.disk.dead]
                if self.rotting is not None:
                    others = [each for each in others if not self.rotting.is_rotten(each)]
                other = self.chance.choice(others) if others else None
                if other is not None and await host.begin_from(other, self.clock.now_us()):
                    self.note("world", "begins with a backup", host=host.name, other=other.name)
                else:
                    await self.time.sleep(0.5)
            older = False
            if isinstance(host, Member):
                if self.rotting is not None and not self.calm:
                    self.rotting.strike(host)
                await self._announce(host)
                older = not host.reads
            host.start()
            await host.down.wait()
            self.note("world", "is down", host=host.name, died_of=host.died_of[:80])
            name = host.died_of.partition(":")[0]
            if self.rotting is not None and isinstance(host, Member) and self.rotting.has_named(host):
                continue
            if name not in ("", "crash", "LeadershipLost", "AppendFailed", "DiskFullError") and not (
                older and name == STOPPED
            ):
                raise SimulationFailure(f"{host.name} died of {host.died_of}")
            await self.time.sleep(0 if self.calm else self.chance.choice([0.0, 0.5, 3.0, 20.0]) * self.chance.random())

    async def _announce(self, member: Member) -> None:
        """A process of a member is about to start: the map learns of it."""
        self.versions.next_life(member, calm=self.calm)

    async def _leader(self) -> Member:
        """The member that leads the first shard, as soon as each shard has one."""
        until_s = self.time.now_s + LEADER_S_MAX
        while True:
            leaders = [shard.leader for shard in self.shards]
            if leaders[0] is not None and None not in leaders:
                return leaders[0]
            if self.time.now_s > until_s:
                raise SimulationFailure("nobody leads")
            await self.time.sleep(0.25)

    async def _episode(self) -> None:
        """Some requests, faults, and time that passes."""
        chance = self.chance
        async with trio.open_nursery() as nursery:
            for producer in self.producers:
                nursery.start_soon(self._requests, producer, chance.randrange(1, 6))
            if self.dealer is not None:
                nursery.start_soon(self.dealer.act)
            for _ in range(chance.choice([1, 1, 2])):
                nursery.start_soon(self._fault)
            await self.time.sleep(chance.choice([0.01, 0.3, 1.5]))
        await self._pass_time()
        if chance.random() < 0.5:
            await self._ask_for_all()

    async def _requests(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            await producer.act()
            self._look_at_bounds()
            await self.time.sleep(producer_pause(self.chance))

    async def _fault(self) -> None:
        chance = self.chance
        await self.time.sleep(chance.choice([0, 0.02, 0.5, 2.0]) * chance.random())
        leading = [member for member in self.members if member.leads]
        member = chance.choice(leading if leading and chance.random() < 0.7 else self.members)
        kind = chance.choice(self.faults)
        self.note("fault", kind, member=member.name, leads=member.leads)
        if kind in ("kill", "power") and member.open.is_set():
            member.crash(power=kind == "power")
        elif kind == "crash" and member.open.is_set():
            member.crash_after(int(10 ** (chance.random() * 2.3)), power=chance.random() < 0.75)
        elif kind == "clean stop" and not member.stopped:
            member.stop()
        elif kind == "stop" and member.open.is_set():
            member.stop_process()
            life = member.lives
            self.time.at(self.time.now_s + chance.choice([0.3, 2.0, 6.0, 30.0]), lambda: self._continue(member, life))
        elif kind == "cut":
            self.logs.cut_for(member.name, chance.choice([0.5, 3.0, 12.0]))
        elif kind == "stall":
            self.logs.stall_for(chance.choice([0.5, 3.0, 20.0]))
        elif kind == "unreachable":
            self.network.unreachable.add(member.address)
            long_s = self.probing.choice([10, UNREACHED_S]) if self.probes else 10
            self.time.at(self.time.now_s + long_s, lambda: self.network.unreachable.discard(member.address))
        elif kind == "clock":
            member.clock.step(int(chance.choice([-1, 1]) * 10 ** (chance.random() * 3.5) * 1e6))
        elif kind == "weather":
            self.network.weather = Weather(
                delay_s_max=chance.choice([0, 0.005, 0.5]),
                split=chance.choice([0, 0.5]),
                drop=chance.choice([0, 0.02, 0.1]),
                short_write=chance.choice([0, 0.3]),
            )
        elif kind == "trim":
            shard = self._shard_of(member)
            shard.log.trim(min(each.kept for each in shard.members))
        elif kind == "lost" and member.open.is_set() and not any(map(self._is_bad, self._shard_of(member).members)):
            member.lost = True
            member.crash(power=False)
        elif kind == "full":
            member.disk.capacity_bytes = member.disk.used_bytes + chance.choice([0, 40, 400]) * 1024
            disk = member.disk
            self.time.at(self.time.now_s + chance.choice([1, 10, 60]), partial(self._has_room, disk))
        elif kind == "hang" and member.open.is_set():
            await self._hang(member)
        elif kind == "node":
            self._node_fault(chance.choice(self.nodes))

    def _is_bad(self, member: Member) -> bool:
        """Whether it has lost its machine, or something on its disk."""
        return member.lost or (self.rotting is not None and self.rotting.is_rotten(member))

    async def _hang(self, member: Member) -> None:
        """No sync of a member comes back for a while, and all else of it goes on."""
        member.disk_gate.close()
        life = member.lives
        hangs_s = self.chance.choice([1.0, 4.0, 15.0, 60.0])
        self.time.at(self.time.now_s + hangs_s, lambda: self._go_on(member, life))
        if hangs_s >= 2 * HANGS_S:
            await self._shard_of(member).judge.watch_hanging(member)

    @staticmethod
    def _go_on(member: Member, life: int) -> None:
        if member.lives == life:
            member.disk_gate.open()

    def _continue(self, member: Member, life: int) -> None:
        if member.stopped and member.lives == life:
            member.continue_process()

    @staticmethod
    def _has_room(disk: SimulatedDisk) -> None:
        disk.capacity_bytes = None

    def _node_fault(self, node: Host) -> None:
        chance, network = self.chance, self.network
        if not node.alive:
            return
        if chance.random() < 0.5:
            node.crash(power=chance.random() < 0.5)
        else:
            network.silent.add(node.address)
            self.time.at(self.time.now_s + chance.choice([0.5, 5.0]), lambda: network.silent.discard(node.address))

    def _leap(self, seconds: float) -> None:
        self.note("world", "time leaps", seconds=round(seconds, 3))
        self.checker.close()  # a server ends connections on which nothing comes
        self.time.leap(seconds)

    async def _pass_time(self) -> None:
        chance = self.chance
        if chance.random() < 0.5:
            due_ms = self.model.next_due_ms(self.clock.now_ms())
            if due_ms is not None:
                before_s = chance.choice([0.0, 0.05, 1.0, 4.0])
                self._leap(max(due_ms / 1000 - self.clock.now_us() / 1e6 - before_s, 0))
        await self.time.sleep(chance.choice([0.2, 1.5, 4.0, 8.0]))

    async def _ask_for_all(self) -> None:
        """Somebody leads, and knows everything still."""
        await self._leader()
        asked = self.model.asking()
        try:
            status = await self.checker.request("status", {})
            self.note("checker", "status", **{name: status[name] for name in BALANCE})
            self.model.check_status(status, asked, self.clock.peak_us // 1000)
            rows = [row for row in self.model.rows.values() if row.state == ACCEPTED and row.receipt]
            rows = self.chance.sample(rows, min(len(rows), 12))
            if rows:
                await self._look_up(rows)
        except (Lost, DelayServerError) as error:
            self.note("checker", "no answer", why=str(error))

    async def _look_up(self, rows: list[Sent]) -> None:
        await look_up(self.checker, self.model, self.clock, rows)

    # -- the end

    async def _calm_down(self) -> None:
        """No more faults from here on."""
        self.note("world", "calm")
        self.calm = True
        if self.rotting is not None:
            self.rotting.calm = True
        self.logs.faults.clear()
        self.network.weather = Weather()
        self.network.unreachable.clear()
        self.network.silent.clear()
        for member in self.members:
            while member.stopped:
                member.continue_process()
            member.disk_gate.open()
        if not self.versions.stays:
            self.versions.upgrade_all()
        for host in (*self.members, *self.nodes):
            host.disk.capacity_bytes = None
            host.disk.no_more_faults()
        for consumer in self.consumers:
            consumer.careful = True
        if self.dealer is not None:
            self.dealer.careful = True
        self.checker.close()
        # A log that stands still, or a member that is cut off, is so to the end.
        while not all(self.logs.reaches(member.name) for member in self.members):
            await self.time.sleep(0.25)
        await self.time.sleep(3)
        for host in (*self.members, *self.nodes):
            host.disk.no_more_faults()
        await self._leader()

    async def _deliver_all(self) -> None:
        """Hop from due time to due time until all that was accepted has arrived."""
        for _ in range(HOPS_MAX):
            waiting = self.model.open_identities(["one"])
            due = sorted(copy.due_ms for identity in waiting for copy in identity.copies if copy.due_ms is not None)
            if not waiting:
                return
            due = due[: self.chance.choice((1, 4, 16))]
            ahead_s = due[-1] / 1000 - self.clock.lowest_us / 1e6
            if ahead_s > 0:
                self._leap(ahead_s + self.chance.choice([0, 1, 600]))
            await self._arrive(due[-1])
            if ahead_s < -1:
                # Overdue: what waits for a back-off or a lease gets its time, but not for ever.
                self._leap(25)
                await self._arrive(due[-1])
                await self._check_stuck()
        raise SimulationFailure("still not delivered")

    async def _arrive(self, due_ms: int) -> None:
        """Return when all has arrived that is due by then, or after 3 s."""
        until_s = self.time.now_s + 3
        while self.time.now_s < until_s:
            await self.time.sleep(0.25)
            copies = [copy for identity in self.model.open_identities(["one"]) for copy in identity.copies]
            if not any(copy.due_ms is not None and copy.due_ms <= due_ms for copy in copies):
                return

    async def _check_stuck(self) -> None:
        now_ms = self.clock.lowest_us // 1000
        for identity in self.model.open_identities(["one"]):
            for copy in identity.copies:
                if copy.state == ACCEPTED and copy.due_ms is not None and copy.due_ms < now_ms - 1000:
                    await self._look_up([copy])
                    identity.patience -= 1
                    if identity.patience < 0 and identity in self.model.open_identities(["one"]):
                        self.model.fail("lost: accepted, due, and it does not arrive", copy)

    async def _verdict(self) -> None:
        """The books balance, and all members have the same."""
        self._leap(settings_of.DELAY_MS_MAX / 1000)
        await self.time.sleep(10)
        if self.versions.stays:
            self._life()
            self.versions.upgrade_all()
            await self.time.sleep(20)
        await self._leader()
        status: Any = await self.checker.request("status", {})
        if self.model.waits_for_leases(status):
            self._leap(25)
            await self.time.sleep(5)
            status = await self.checker.request("status", {})
        self.note("checker", "status", **{name: status[name] for name in BALANCE})
        self.model.check_balance(status)
        self._judge_logs()
        await self._equal()

    def _judge_logs(self) -> None:
        """The logs have all that was accepted."""
        self.shards[0].judge.verdict({row.sequence for row in self.model.rows.values() if row.state == ACCEPTED})

    async def _equal(self) -> None:
        """Members at equal positions have equal state."""
        until_s = self.time.now_s + EQUAL_S_MAX
        while not all(self._at_the_end(member) for member in self.members):
            if self.time.now_s > until_s:
                places = {member.name: self._at_the_end(member) for member in self.members}
                raise SimulationFailure(f"members do not come to the end of the log: {places}")
            await self.time.sleep(0.05)
        for shard in self.shards:
            self._have_the_same(shard)

    def _have_the_same(self, shard: OneShard) -> None:
        kept = {member.name: _given_up(member) for member in shard.members}
        if len({*kept.values()}) > 1:
            raise SimulationFailure(f"members keep other messages of the broker: {kept}")
        if not shard.judge.version:
            raise SimulationFailure("all members read a higher version, and the log does not have it")
        first: Counter[str] | None = None
        for member in shard.members:
            counts = count_files(member)
            counts = Counter({name: count for name, count in counts.items() if not name.startswith(SUBJECT)})
            if first is None:
                first = counts
            elif counts != first:
                other = shard.members[0].name
                raise SimulationFailure(f"member {member.name} has {dict(counts)}, member {other} {dict(first)}")

    def _at_the_end(self, member: Member) -> bool:
        """Whether it has taken all that the log has, and written it, now."""
        if member.server is None or not member.open.is_set() or member.disk.dead:
            return False
        parts = member.server.parts
        state, cluster = parts.state, parts.cluster
        assert cluster is not None
        return (
            cluster.standing.applied.value >= self._shard_of(member).log.end
            and state.positions.replayed.value >= state.positions.durable.value
            and not state.decided.rows_waiting
            and not state.decided.writes.locked()
        )


def _given_up(member: Member) -> object:
    """From where the log keeps what the broker of a member has stored."""
    assert member.server is not None
    return member.server.parts.broker.core.state.given_up.first
