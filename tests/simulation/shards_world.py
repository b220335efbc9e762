"""The world of one seed with two or three shards of two or three members each, and a map of them.

Producers and consumers are clients of all shards by the library. Members join by the map, read it while they run, and write
there that they lead. A shard may be added meanwhile, and drained again. A whole shard is away for a while.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings
from delayserver.members.founding import add_shard
from delayserver.members.member_map import MemberMap, ShardState
from delayserver.protocol.schema.shard_map import DRAINING
from delayserver.runtime.shared_log import SharedLogError
from store.shared.envelope import ShardIdentity
from tests.simulation import settings as settings_of
from tests.simulation.actors import SUBJECTS
from tests.simulation.bounds import Bounds
from tests.simulation.clocks import WallClock
from tests.simulation.cluster_world import APART_MS, ClusterWorld, OneShard
from tests.simulation.damage import Damage
from tests.simulation.members import FollowingClient, Member, ShardClock
from tests.simulation.model import Sent
from tests.simulation.shard_judge import ShardJudge
from tests.simulation.shard_maps import CLUSTER_ID, MappedMember, engines_of, found
from tests.simulation.shards_actors import (
    ShardPlace,
    ShardsConsumer,
    ShardsModel,
    ShardsProducer,
    look_up_at_shards,
)
from tests.simulation.shards_client import ShardsClient
from tests.simulation.threads import SimulatedWorkers
from tests.simulation.timeliness import Timeliness
from tests.simulation.trace import Trace
from tests.simulation.versions import Versions
from tests.simulation.world import BALANCE, TIMER_US

# How many shards a cluster is founded with, and whether one is added later.
LAYOUTS: Final = ((2, False), (2, False), (2, True), (1, True))
MEMBERS: Final = (2, 2, 3)
LETTERS: Final = "abc"
# Fewer faults and smaller requests than with one shard: a shard costs its members all their steps.
EPISODES: Final = (2, 3, 4)
ROWS_MAX: Final = (3, 8)
FAULTS: Final = (
    "kill", "power", "crash", "stop", "cut", "stall", "unreachable", "clean stop", "clock", "weather", "none", "trim",
    "lost", "full", "hang",
)  # fmt: skip
SERVER_IDS: Final = (5, 6)
DRAINED_SHARE: Final = 0.6
# Episodes in which a whole shard goes away.
AWAY_SHARE: Final = 0.4
AWAY_S: Final = (3.0, 15.0, 40.0)


class ShardsWorld(ClusterWorld):
    """Everything of one seed."""

    model: ShardsModel

    def _build(self, seed: int, trace: Trace) -> None:
        chance, time = self.chance, self.time
        self.faults, self.episodes = FAULTS, EPISODES
        self.nodes = []
        layout = Random(f"{seed}:shards")
        founded, self.adds = layout.choice(LAYOUTS)
        counts = [layout.choice(MEMBERS) for _ in range(founded + self.adds)]
        self.drains = self.adds and layout.random() < DRAINED_SHARE
        ids = [f"{each:012x}" for each in SERVER_IDS[:founded]]
        found(self.logs, ids)
        offset_us = chance.randrange(86_400) * 1_000_000
        apart_ms = chance.choice(APART_MS)
        clocks = [
            WallClock(time, offset_us + chance.randrange(-apart_ms, apart_ms + 1) * 1000) for _ in range(sum(counts))
        ]
        self.clock = ShardClock(time, clocks)
        trace.wall_us = self.clock.now_us
        default = GroupSettings("default", (NodeSettings(),))
        settings = settings_of.server_settings(chance, (default,), (RouteSettings("*", ("default",)),))
        storage = replace(settings.storage, durability="sync")
        settings = replace(settings, storage=storage)
        left = iter(clocks)
        # Those of all shards, also of one that is added later.
        self.all_members = [
            [self._mapped_member(seed, shard, number, settings, next(left)) for number in range(count)]
            for shard, count in enumerate(counts)
        ]
        # Those of the shards that are there.
        self.members = []
        damage = Damage(self.all_members[0][0].disk, Random(f"{seed}:flips"), storage.window_ms, self.note)
        self.model = ShardsModel(self.note, damage, self.clock, storage)
        self.model.shard_clock = self.clock
        self.model.life = self._life
        # Whoever leads after a takeover hands over again what may have been.
        self.model.disturbed = True
        self.model.places = {}
        self.model.refusing = self._refusing
        self.timely = Timeliness(self.clock, 0, lambda _: False)
        self.places: list[ShardPlace] = []
        for shard, server_id in enumerate(ids):
            self._there_is(shard, server_id)
        self.versions = Versions(self.members, time, Random(f"{seed}:versions"), self.note, mixed_share=0.0)
        addresses = [member.address for member in self.members]
        brokers = {member.address for members in self.all_members for member in members}
        names = ["producer-0", "producer-1", "checker", *(f"consumer-{subject}" for subject in SUBJECTS)]
        self.clients = {name: self._shards_client(seed, name, addresses) for name in names}
        self.producers = [
            ShardsProducer(
                self.clients[f"producer-{number}"],
                self.model,
                self.clock,
                Random(f"{seed}:producer:{number}"),
                self.note,
                chance.choice(ROWS_MAX),
                dict.fromkeys(SUBJECTS, brokers),
            )
            for number in range(2)
        ]
        self.consumers = [
            ShardsConsumer(
                self.clients[f"consumer-{subject}"],
                self.model,
                self.places[0],
                self.clock,
                Random(f"{seed}:consumer:{subject}"),
                self.note,
                subject,
                "one",
                self.timely,
                self._look_at_bounds,
            )
            for subject in SUBJECTS
        ]
        self.checker = Checker(self.clients["checker"], self)
        self.bounds = Bounds(max(ROWS_MAX) * len(self.producers), 24, [each.name for each in self._everyone()])
        self.spread = Random(f"{seed}:spread")
        # The shard that is away, if one is.
        self.away: OneShard | None = None
        # The version of the map from which on the added shard drains; 0: it does not.
        self.draining = 0
        self._tasks: trio.Nursery | None = None

    def _everyone(self) -> list[MappedMember]:
        return [member for members in self.all_members for member in members]

    def _shards_client(self, seed: int, name: str, addresses: list[str]) -> ShardsClient:
        """It is given some of the addresses, and learns the others."""
        chance = Random(f"{seed}:client:{name}")
        return ShardsClient(self.network, chance.sample(addresses, chance.randint(1, len(addresses))), name, chance)

    def _mapped_member(self, seed: int, shard: int, number: int, settings: Any, clock: WallClock) -> MappedMember:
        name = f"{LETTERS[number]}{shard}"
        chance = Random(f"{seed}:{name}:workers")
        host_chance = Random(f"{seed}:host {name}")
        member = MappedMember(name, shard, settings, clock, self.network, self.logs, host_chance, self.note)
        if chance.random() < 0.5:
            member.workers = SimulatedWorkers(chance, self.time)
        clock.granularity_us = chance.choice(TIMER_US)
        return member

    def _there_is(self, shard: int, server_id: str) -> None:
        """The map has this shard from now on."""
        members: list[Member] = [*self.all_members[shard]]
        identity = ShardIdentity(CLUSTER_ID, int(server_id, 16))
        log = self.logs.shards[shard]
        one = OneShard(log, members, ShardJudge(log, members, self.time, self.note, identity))
        self.shards.append(one)
        self.members += members
        place = ShardPlace(shard, one, self.clock, self.network, self.note)
        self.places.append(place)
        self.model.places[server_id] = place

    # -- the script

    async def main(self) -> None:
        async with trio.open_nursery() as self._tasks:
            for client in self.clients.values():
                await self._tasks.start(client.hold)
            await super().main()
            self._tasks.cancel_scope.cancel()

    async def _announce(self, member: Member) -> None:
        assert isinstance(member, MappedMember)
        while True:
            if self.away is None or member not in self.away.members:
                try:
                    await member.join()
                    return
                except SharedLogError as error:
                    self.note("world", "does not join", member=member.name, why=str(error)[:80])
            await self.time.sleep(0.5)

    async def _episode(self) -> None:
        if self.adds:
            self.adds = False
            await self._add_shard()
        elif self.drains and not self.draining and self.spread.random() < 0.5:
            await self._drain_shard()
        if self.spread.random() < AWAY_SHARE:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._one_away, self.spread.choice(AWAY_S))
                await super()._episode()
        else:
            await super()._episode()

    async def _add_shard(self) -> None:
        """As an operator does, who then starts its members."""
        assert self._tasks is not None
        map_ = await self._operate_on_map(lambda: add_shard(engines_of(self.logs, "operator"), self.spread))
        shard = len(map_.shards) - 1
        self.note("world", "adds a shard", shard=shard, server_id=map_.shards[shard])
        self._there_is(shard, map_.shards[shard])
        for member in self.all_members[shard]:
            self._tasks.start_soon(member.run)
            self._tasks.start_soon(self._tend, member)

    async def _drain_shard(self) -> None:
        """The added shard takes no new messages from now on."""
        note = ShardState(len(self.shards) - 1, DRAINING)
        self.draining = (await self._operate_on_map(lambda: engines_of(self.logs, "operator").note(note))).version
        self.note("world", "drains a shard", shard=note.shard, version=self.draining)

    async def _operate_on_map(self, act: Any) -> MemberMap:
        """An operator repeats a command until it is done."""
        while True:
            try:
                map_: MemberMap = await act()
                return map_
            except SharedLogError as error:
                self.note("operator", "again", why=str(error)[:80])
                await self.time.sleep(1.0)

    def _refusing(self) -> set[str]:
        """The shard that is drained, when all who choose shards know it."""
        if not self.draining:
            return set()
        members = [member for member in self.shards[-1].members if member.open.is_set()]
        knows = [member.map.version.value for member in members] + [
            client.library.map_version for client in self.clients.values()
        ]
        return {self.shards[-1].judge.server_id} if min(knows) >= self.draining else set()

    async def _one_away(self, seconds: float) -> None:
        """A whole shard is away for a while: its members are dead, or cut off from its log."""
        shard = self.spread.choice(self.shards)
        dead = self.spread.random() < 0.5
        self.note("world", "a shard is away", members=[member.name for member in shard.members], dead=dead)
        self.away = shard
        for member in shard.members:
            if dead and member.open.is_set():
                member.crash(power=False)
            elif not dead:
                self.logs.cut_for(member.name, seconds)
        await self.time.sleep(seconds)
        self.away = None

    async def _look_up(self, rows: list[Sent]) -> None:
        await look_up_at_shards(self.clients["checker"], self.model, self.clock, rows)

    # -- the end

    def _judge_logs(self) -> None:
        for place, shard in zip(self.places, self.shards, strict=True):
            shard.judge.verdict(self.model.of_shard(place.number))


class Checker(ShardsClient):
    """Asks all shards for their status, and the library for the rest."""

    def __init__(self, client: ShardsClient, world: ShardsWorld) -> None:
        super().__init__(world.network, [world.members[0].address], "checker", Random("checker"))
        self.library = client.library
        self._world = world
        self._of: dict[int, FollowingClient] = {}

    async def request(self, operation: str, arguments: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        if operation != "status":
            return await super().request(operation, arguments, timeout_s)
        added = dict.fromkeys(BALANCE, 0)
        for number, shard in enumerate(self._world.shards):
            if number not in self._of:
                addresses = [member.address for member in shard.members]
                self._of[number] = FollowingClient(self._network, addresses, f"checker-{number}", Random(number))
            status: Any = await self._of[number].request("status", {})
            for name in BALANCE:
                added[name] += status[name]
        return dict(added)

    def close(self) -> None:
        for client in self._of.values():
            client.close()
