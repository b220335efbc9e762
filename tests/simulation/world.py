"""The world of one seed: lets it live through workload and faults, lets time pass, and asks the model for its verdict."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import trio

from delayserver.front.front import BROKER
from delayserver.operations.nodes.server_fence import HOLD_MS
from delayserver.protocol.figure_fields import as_map
from delayserver.targets.remote_node import PAUSE_S_MAX
from tests.simulation import settings as settings_of
from tests.simulation.actors import REMOTE_SUBJECTS, SUBJECTS, TIMES_AT_ONCE, Consumer, Producer, look_up
from tests.simulation.bounds import Bounds
from tests.simulation.client import Client, DelayServerError, Lost
from tests.simulation.clocks import SimulatedTime, WallClock
from tests.simulation.counting import Counting
from tests.simulation.damage import Damage
from tests.simulation.delays import Delaying
from tests.simulation.failures import SimulationFailure
from tests.simulation.files import check_files
from tests.simulation.filters import FILTERED_GROUP, FILTERED_SHARE, FILTERS
from tests.simulation.giving_up import GivingUp
from tests.simulation.host import Host
from tests.simulation.keyed import EMBEDDED, REMOTE, KeyedAhead
from tests.simulation.model import ACCEPTED, Model, Sent
from tests.simulation.moving import Moving
from tests.simulation.network import UNREAD_BYTES_MAX, Network, Weather
from tests.simulation.one_way import POSTS_AT_ONCE, OneWayProducer
from tests.simulation.operator import Operator
from tests.simulation.ordering import Ordering
from tests.simulation.publishing import Publishing
from tests.simulation.rude import REQUESTS_MAX, Rude
from tests.simulation.scheduling import Scheduling
from tests.simulation.skipping import Skipping, drawn_policy
from tests.simulation.threads import SimulatedWorkers
from tests.simulation.timeliness import LATE_US_MAX, Timeliness
from tests.simulation.trace import Trace
from tests.simulation.transactions import Books, Dealer
from tests.simulation.workload import Workload

# A seed that needs more simulated hops than this to deliver everything is stuck.
HOPS_MAX = 400
# Asked for after a start: a lookup is the dearest of the requests.
LOOKUPS_MAX = 8
# Starts after which the files are counted (at the end they always are), and seeds without damage whose directory is
# checked as a whole at the end: each costs as much as a start.
COUNTED_SHARE = 0.3
CHECKED_SHARE = 0.5
# Seeds in which bits flip; the others keep the strict balance.
FLIPPING_SHARE = 0.125
# Of the others, seeds in which files are cut or go. Without flipped bits their verdict is stricter.
CUTTING_SHARE = 0.125
# Seeds with transactions.
DEALING_SHARE = 0.6
# Seeds in which a group fails and gives messages up.
GIVING_UP_SHARE = 0.4
# Seeds in which producers publish, in which they publish with order keys, and in which a group moves about.
PUBLISHING_SHARE = 0.5
ORDERING_SHARE = 0.3
# Of the seeds with order keys, those in which an operator skips messages for which a key waits.
SKIPPING_SHARE = 0.3
# Seeds with delayed messages that have order keys, also with damage.
KEYED_SHARE = 0.35
MOVING_SHARE = 0.4
# Seeds in which a group counts its attempts.
COUNTING_SHARE = 0.25
# Seeds in which the client of the library sends with delays, while the clock is stepped by hours.
DELAYING_SHARE = 0.2
# Seeds in which a producer sends without replies.
ONE_WAY_SHARE = 0.3
# Seeds in which the broker of the server keeps only so much for a group that lags.
LAG_BOUND_SHARE = 0.15
# Seeds with schedules.
SCHEDULING_SHARE = 0.15
# What may happen to a node until the next fault.
NODE_FAULTS = (
    "down", "crash", "slow", "silent", "unreachable", "full", "sync fails", "hung", "hung", "twin", "well", "well",
)  # fmt: skip
# The most messages of one request.
ROWS_AT_ONCE = 40
# Clients that behave badly at the same time.
RUDE_MAX = 3
# How exact the sleeps of a host are: most seeds have coarse ones, and cost half.
TIMER_US = (1, 100_000, 250_000, 250_000)
DAY_US = 86_400_000_000
# How many faults a seed meets, with the work around them: mostly few, so that many worlds are seen, and some long lives.
EPISODES = (4, 5, 5, 6, 7, 7, 8, 8, 10, 15)


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, time: SimulatedTime, trace: Trace) -> None:
        self.chance = Random(f"{seed}:world")
        self.time = time
        self.note = trace.note
        offset_us = self.chance.randrange(86_400) * 1_000_000
        self.clock = WallClock(time, offset_us)
        trace.wall_us = self.clock.now_us
        self.network = Network(time, Random(f"{seed}:network"), self.note)
        self.nodes = [
            Host(
                name,
                1,
                settings_of.node_settings(self.chance),
                WallClock(time, offset_us + self.chance.randrange(-300, 300) * 1000),
                self.network,
                Random(f"{seed}:{name}"),
                self.note,
                role=BROKER,
            )
            for name in (("node-a", "node-b") if self.chance.random() < 0.4 else ())
        ]
        if self.nodes:
            groups, routes = settings_of.with_nodes(self.chance, [node.address for node in self.nodes])
        else:
            groups, routes = settings_of.embedded_only(self.chance)
        settings = settings_of.server_settings(self.chance, groups, routes)
        self.flipping = Random(f"{seed}:damage").random() < FLIPPING_SHARE
        self.cutting = Random(f"{seed}:cuts")
        self.cuts = not self.flipping and self.cutting.random() < CUTTING_SHARE
        bounds = Random(f"{seed}:lag bounds")
        if bounds.random() < LAG_BOUND_SHARE:
            settings = settings_of.with_lag_bound(bounds, settings)
        self.host = Host("server", 1, settings, self.clock, self.network, Random(f"{seed}:host"), self.note)
        for host in (self.host, *self.nodes):
            if self.chance.random() < 0.5:
                host.workers = SimulatedWorkers(Random(f"{seed}:{host.name}:workers"), time)
            host.clock.granularity_us = self.chance.choice(TIMER_US)
        self.damage = Damage(self.host.disk, Random(f"{seed}:flips"), settings.storage.window_ms, self.note)
        self.host.on_reports = self.damage.check_reports
        self.model = Model(self.note, self.damage, self.clock, settings.storage)
        dispatch = settings.dispatch
        self.timely = Timeliness(self.clock, dispatch.deliver_timeout_ms + dispatch.backoff_ms_max, self._well)
        self.host.on_no_checkpoint = self.model.without_checkpoint
        self.model.life = lambda: self.host.lives
        self.model.well_for_us = self.timely.well_for_us
        self.host.on_change = self.timely.changed
        for node in self.nodes:
            node.on_change = self.timely.fault
        self.groups = ["one"] if self.chance.random() < 0.6 else ["one", "two"]
        rude_groups = list(self.groups)  # a rude client names no filter
        filtering = Random(f"{seed}:filter")
        if filtering.random() < FILTERED_SHARE:
            self.groups.append(FILTERED_GROUP)
            self.model.filters[FILTERED_GROUP] = filtering.choice(FILTERS)
        own = {self.host.address}
        remote = own | {node.address for node in self.nodes}  # the operator may lead them to the server's own broker
        brokers = {subject: remote if subject in REMOTE_SUBJECTS else own for subject in SUBJECTS}
        self.producers = [
            Producer(
                Client(self.network, self.host.address, f"producer-{index}"),
                self.model,
                self.clock,
                Random(f"{seed}:producer:{index}"),
                self.note,
                self.chance.choice([3, 10, ROWS_AT_ONCE]),
                brokers,
            )
            for index in range(2)
        ]
        self.consumers = [
            Consumer(
                Client(self.network, host.address, f"{host.name}/{subject}/{group}"),
                self.model,
                host,
                self.clock,
                Random(f"{seed}:consumer:{host.name}:{subject}:{group}"),
                self.note,
                subject,
                group,
                self.timely,
                self._look_at_bounds,
            )
            for host in (self.host, *self.nodes)
            for subject in (SUBJECTS if host is self.host else REMOTE_SUBJECTS)
            for group in self.groups
        ]
        giving_up, publishing = self._giving_up(seed), self._publishing(seed)
        self.skipping: Skipping | None = None
        ordering, moving, keyed = self._ordering(seed), self._moving(seed), self._keyed(seed)
        counting = self._counting(seed)
        self.delaying = self._delaying(seed)
        scheduling = self._scheduling(seed)
        some = (giving_up, publishing, self.skipping, ordering, moving, keyed, counting, self.delaying, scheduling)
        self.workloads: list[Workload] = [each for each in some if each is not None]
        self.one_way = self._one_way(seed, brokers)
        operator = Client(self.network, self.host.address, "operator")
        self.operator = Operator(operator, self.host, Random(f"{seed}:operator"), self.note, self.timely.changed)
        self.checker = Client(self.network, self.host.address, "checker")
        self.looked_late = False
        # Nodes to which another process with the server's id delivers, or did so a moment ago.
        self.twins: set[str] = set()
        # Answers of servers that were not ready, by the stage of their start.
        self.waits: Counter[str] = Counter()
        self.looks = 0
        self.days_ahead = 0
        self.audits = Random(f"{seed}:audits")
        rude = Random(f"{seed}:rude")
        self.network.unread_bytes_max = rude.choice([UNREAD_BYTES_MAX, 8 * 1024, 1024])
        self.rude_share = rude.choice([0.0, 0.3, 0.8])
        self.rude = Rude(
            self.network, self.host.address, rude, self.note, SUBJECTS, rude_groups, self.model.pulled_unseen
        )
        self.dealer = self._make_dealer(seed)
        clients = len(self.producers) + len(self.consumers) + 8
        rows_at_once = ROWS_AT_ONCE * len(self.producers)
        clients += 3 if counting is not None else 0
        clients += 1 if self.delaying is not None else 0
        clients += 2 if scheduling is not None else 0
        clients += 1 if self.skipping is not None else 0
        if self.one_way is not None:
            clients += 1
            rows_at_once += ROWS_AT_ONCE * POSTS_AT_ONCE
        self.bounds = Bounds(rows_at_once, clients + RUDE_MAX * REQUESTS_MAX)

    def _make_dealer(self, seed: int) -> Dealer | None:
        chance = Random(f"{seed}:deals")
        if chance.random() >= DEALING_SHARE:
            return None
        books = Books(self.model, self.host, self.note)
        self.model.deals.append(books.range_of)
        self.model.others_due.append(books.due_times_ms)
        self.model.timers_ahead_ms.append(books.timers_ahead_ms)
        self.model.hits.append(books.rows_hit)
        clients = [Client(self.network, self.host.address, f"dealer-{role}") for role in ("one", "two", "three")]
        return Dealer(clients, self.host, books, chance, self.note)

    def _moving(self, seed: int) -> Moving | None:
        """Seeks, removals and reads."""
        chance = Random(f"{seed}:moving")
        if chance.random() >= MOVING_SHARE:
            return None
        clients = [Client(self.network, self.host.address, name) for name in ("moving", "listening")]
        return Moving(clients, self.host, self.damage, chance, self.note)

    def _giving_up(self, seed: int) -> GivingUp | None:
        chance = Random(f"{seed}:giving up")
        if chance.random() >= GIVING_UP_SHARE:
            return None
        client = Client(self.network, self.host.address, "giving-up")
        return GivingUp(client, self.model, self.host, chance, self.note)

    def _publishing(self, seed: int) -> Publishing | None:
        chance = Random(f"{seed}:publishing")
        if chance.random() >= PUBLISHING_SHARE:
            return None
        address = self.host.address
        producers = [Client(self.network, address, f"publisher-{number}") for number in range(chance.choice([1, 2]))]
        readers = Client(self.network, address, "readers")
        return Publishing(producers, readers, self.host, self.damage, chance, self.note)

    def _ordering(self, seed: int) -> Ordering | None:
        chance = Random(f"{seed}:ordering")
        if chance.random() >= ORDERING_SHARE:
            return None
        clients = [Client(self.network, self.host.address, name) for name in ("orderer", "worker-0", "worker-1")]
        asks = Random(f"{seed}:giving keys up")
        policy: dict[str, Any] | None = None
        if asks.random() < 0.5:
            policy = {"attempts": asks.choice([1, 2, 8]), "failed_key": asks.choice(["skip", "wait"]), "first_ms": 100}
        skips = self._skips(seed)
        if skips is not None:
            policy = drawn_policy(skips)
        exact = skips is not None
        ordering = Ordering(clients[0], clients[1:], self.host, self.damage, chance, self.note, policy, exact=exact)
        if skips is not None:
            operator = Client(self.network, self.host.address, "skipper")
            self.skipping = Skipping(operator, ordering, self.host, skips, self.note)
        return ordering

    def _skips(self, seed: int) -> Random | None:
        """Its books need files that lose nothing, and a broker that lets go of nothing."""
        # The number is one for which the seeds that notice mistakes stay as they are (`test_mistakes.py`).
        chance = Random(f"{seed}:skipping 239")
        if chance.random() >= SKIPPING_SHARE or self.flipping or self.cuts or self.host.may_let_go:
            return None
        return chance

    def _keyed(self, seed: int) -> KeyedAhead | None:
        """Where a loss of power may lose what was answered, nothing says in which order the rest comes again."""
        # The number is one for which the seeds that notice mistakes stay as they are (`test_mistakes.py`).
        if Random(f"{seed}:keys 59").random() >= KEYED_SHARE:
            return None
        chance = Random(f"{seed}:due order")
        chance.random()
        if self.host.settings.storage.durability != "sync":
            return None
        places = [(host.name, host.address, REMOTE) for host in (self.host, *self.nodes) if self.nodes]
        places.append((self.host.name, self.host.address, EMBEDDED))
        consumers = [(Client(self.network, address, f"{name}/keyed"), subject) for name, address, subject in places]
        producer = Client(self.network, self.host.address, "keyed")
        keyed = KeyedAhead(producer, consumers, self.host, self.damage, chance, self.note)
        self.model.deals.append(keyed.range_of)
        self.model.others_due.append(keyed.due_times_ms)
        self.model.hits.append(keyed.rows_hit)
        return keyed

    def _counting(self, seed: int) -> Counting | None:
        """Exact books need files that lose nothing, and a broker that lets go of nothing."""
        # The number is one for which the seeds that notice mistakes stay as they are (`test_mistakes.py`).
        chance = Random(f"{seed}:counting 322")
        if chance.random() >= COUNTING_SHARE or self.flipping or self.cuts or self.host.may_let_go:
            return None
        clients = [Client(self.network, self.host.address, name) for name in ("counted", "counter-0", "counter-1")]
        return Counting(clients, self.host, self.time, chance, self.note)

    def _delaying(self, seed: int) -> Delaying | None:
        """Its books need files that lose nothing of what was answered."""
        # The number is one for which the seeds that notice mistakes stay as they are (`test_mistakes.py`).
        chance = Random(f"{seed}:delays 113")
        files_lose = self.flipping or self.cuts or self.host.settings.storage.durability != "sync"
        if chance.random() >= DELAYING_SHARE or files_lose:
            return None
        delaying = Delaying(self.network, self.host, chance, self.note, self._step)
        self.model.deals.append(delaying.range_of)
        self.model.others_due.append(delaying.due_times_ms)
        return delaying

    def _scheduling(self, seed: int) -> Scheduling | None:
        """Its books need files that lose nothing of what was answered, and a broker that lets go of nothing."""
        # The number is one for which the seeds that notice mistakes stay as they are (`test_mistakes.py`).
        chance = Random(f"{seed}:schedules 455")
        files_lose = self.flipping or self.cuts or self.host.settings.storage.durability != "sync"
        if chance.random() >= SCHEDULING_SHARE or files_lose or self.host.may_let_go:
            return None
        clients = [Client(self.network, self.host.address, name) for name in ("scheduler", "ticker")]
        scheduling = Scheduling(clients, self.host, self.time, chance, self.note)
        self.model.deals.append(scheduling.range_of)
        self.model.others_due.append(scheduling.due_times_ms)
        self.model.timers_ahead_ms.append(scheduling.timers_ahead_ms)
        return scheduling

    def _step(self, seconds: float) -> None:
        self.note("fault", "clock step", seconds=round(seconds, 3))
        self.model.disturbed = True
        self.clock.step(int(seconds * 1e6))
        self.timely.changed()

    def _one_way(self, seed: int, brokers: dict[str, set[str]]) -> OneWayProducer | None:
        # The number is one for which nearly all seeds that notice mistakes stay as they are (`test_mistakes.py`).
        if Random(f"{seed}:one way 12572").random() >= ONE_WAY_SHARE:
            return None
        client, chance = Client(self.network, self.host.address, "one-way"), Random(f"{seed}:one-way producer")
        producer = OneWayProducer(client, self.model, self.clock, chance, self.note, chance.choice([3, 10]), brokers)
        self.model.deals.append(producer.range_of)
        return producer

    def _well(self, subject: str) -> bool:
        """Whether nothing keeps a message of this subject from its broker, as far as the world knows."""
        host = self.host
        if not host.alive or host.disk.capacity_bytes is not None or subject not in REMOTE_SUBJECTS or not self.nodes:
            return host.alive and host.disk.capacity_bytes is None
        network = self.network
        return network.weather == Weather() and not any(
            not node.alive
            or network.hung_until_s.get(node.address, 0.0) > self.time.now_s
            or self._is_behind(node)
            or node.address in self.twins
            or node.disk.capacity_bytes is not None
            or node.address in network.silent | network.unreachable | network.slow_s.keys()
            for node in self.nodes
        )

    def _is_behind(self, node: Host) -> bool:
        """Whether what is due by the server's clock is not due by the node's, which then refuses it."""
        return self.clock.now_ms() - node.clock.now_ms() > node.settings.broker.server_clock_ahead_ms_max

    def _look_at_bounds(self) -> None:
        self.looks += 1
        if self.looks % 2:
            return
        for host in (self.host, *self.nodes):
            self.bounds.look(host, self.note)

    # What a result tells

    @property
    def crashes(self) -> int:
        """How often the server did."""
        return self.host.crashes

    @property
    def lives(self) -> int:
        """How often the server started."""
        return self.host.lives

    # -- the script

    async def main(self) -> None:
        """A life from the first start to the final verdict."""
        async with trio.open_nursery() as nursery:
            for host in (self.host, *self.nodes):
                nursery.start_soon(host.run)
            self._start_nodes()
            await self._start()
            for consumer in self.consumers:
                nursery.start_soon(consumer.run)
            if self.dealer is not None:
                nursery.start_soon(self.dealer.consume)
                nursery.start_soon(self.dealer.answer)
            for workload in self.workloads:
                workload.start(nursery)
            for _ in range(self.chance.choice(EPISODES)):
                await self._episode()
            await self._calm_down()
            if self.one_way is not None:
                await self.one_way.settle()
            await self._deliver_all()
            if self.dealer is not None:
                await self.dealer.finish(self._leap)
            for workload in self.workloads:
                await workload.settle(self._leap)
            await self._verdict()
            nursery.cancel_scope.cancel()

    async def _start(self) -> None:
        """Start the server, until it is up: a crash may hit recovery as well."""
        for attempt in range(20):
            self.host.start()
            if self.host.disk.capacity_bytes is not None:
                await self._start_on_a_full_disk()
            await self.host.up_or_down()
            if self.host.alive:
                break
            if not self.host.died_of:  # stopped while it waited for room
                continue
            if self.damage.restore(self.host.died_of):
                continue
            if self.host.died_of != "crash":
                raise SimulationFailure(f"the server does not start: {self.host.died_of}")
            self.note("world", "crashed while it started", attempt=attempt)
        else:
            raise SimulationFailure("the server does not come up")
        await self._after_start()

    async def _start_on_a_full_disk(self) -> None:
        """Let time pass, and ask; then there is room, or somebody stops it before."""
        chance, host = self.chance, self.host
        for _ in range(chance.randrange(1, 4)):
            await self.time.sleep(chance.choice([0.1, 1.0, 3.0]))
            await self._ask_who_waits()
            due_ms = self.model.next_due_ms(self.clock.now_ms())
            if due_ms is not None and chance.random() < 0.5:
                self._leap(max(due_ms / 1000 - self.clock.now_us() / 1e6, 0))
                await self.time.sleep(1.0)
        if not host.alive and chance.random() < 0.3:
            self.note("fault", "stop while starting")
            host.stop()
            await self.time.sleep(0.1)
        self.note("world", "room on the disk")
        host.disk.capacity_bytes = None
        self.timely.fault()

    async def _ask_who_waits(self) -> None:
        """A server that is not ready answers, and says what it waits for."""
        host = self.host
        if host.server is None or host.disk.dead or host.alive:
            return
        stage = host.server.readiness.stage
        try:
            status = await self.checker.request("status", {}, 5)
        except DelayServerError as error:
            self.note("checker", "refused", error=error.name)
            return
        except Lost as error:
            self.note("checker", "no answer", why=str(error))
            return
        self.note("checker", "waits", stage=stage.name, reason=status["waits_for"][:40])
        if not status["ready"] and not status["waits_for"] and not host.server.stopping.is_set():
            raise SimulationFailure(f"not ready, and it does not say why: {status}")
        self.waits[stage.name] += 1

    async def _after_start(self) -> None:
        """The first questions to a server that came back: who are you, and do you still know everything?"""
        server_id = f"{self.host.server.parts.opened.directory.server_id:012x}" if self.host.server else ""
        if self.model.server_id and server_id and server_id != self.model.server_id:
            raise SimulationFailure(f"the server id changed from {self.model.server_id} to {server_id}")
        self.model.server_id = self.model.server_id or server_id
        if self.host.server is not None:
            self.damage.check_reports(
                [*self.host.server.damage.corruption, *self.host.server.parts.broker.core.state.damages.texts]
            )
        self._compare_files()
        await self._ask_for_all()

    def _compare_files(self) -> None:
        """In one step, so that nothing moves in between: the server's counts and what its files hold."""
        server = self.host.server
        if self.damage.flips or self.audits.random() >= COUNTED_SHARE:
            return
        if (
            server is not None
            and self.host.alive
            and not self.host.disk.dead
            and not server.parts.state.positions.lag_bytes
            # A thread may have written outcomes that are not counted yet.
            and not server.parts.state.decided.writes.locked()
        ):
            check_files(self.host, as_map(server.parts.figures.status.now()))

    async def _ask_for_all(self) -> None:
        asked = self.model.asking()
        try:
            status = await self.checker.request("status", {})
        except (Lost, DelayServerError) as error:
            self.note("checker", "no answer", why=str(error))
            return
        self.model.check_status(status, asked, self.clock.peak_us // 1000)
        self.note("checker", "status", **{name: status[name] for name in BALANCE})
        self.model.check_running(status)
        rows = [row for row in self.model.rows.values() if row.state == ACCEPTED and row.receipt]
        # Segments that no consumer has read yet are the ones that can be lost; of the others a few.
        waiting = [row for row in rows if not self.model.identity(row).arrived_tokens]
        some = self.chance.sample(waiting, min(len(waiting), LOOKUPS_MAX))
        rows = some + self.chance.sample(rows, min(len(rows), 5))
        if rows:
            try:
                await look_up(self.checker, self.model, self.clock, rows)
            except (Lost, DelayServerError) as error:
                self.note("checker", "no answer", why=str(error))

    async def _episode(self) -> None:
        """Some requests, a fault, and time that passes."""
        chance = self.chance
        async with trio.open_nursery() as nursery:
            for producer in self.producers:
                if chance.random() < 0.8:
                    nursery.start_soon(self._requests, producer, chance.randrange(1, 5))
            if self.dealer is not None:
                nursery.start_soon(self.dealer.act)
            if self.one_way is not None:
                nursery.start_soon(self.one_way.act)
            if chance.random() < self.rude_share:
                for _ in range(chance.choice([1, 1, RUDE_MAX])):
                    nursery.start_soon(self.rude.act)
            nursery.start_soon(self._fault)
            nursery.start_soon(self._operate)
            if self.skipping is not None and self.skipping.chance.random() < 0.3:
                nursery.start_soon(self._crash_behind, self.skipping)
            for node in self.nodes:
                nursery.start_soon(self._node_fault, node)
            await self.time.sleep(chance.choice([0.01, 0.3, 1.5]))
        self._flip(0.25)
        await self._recover()
        if self.days_ahead:
            await self._send_where_it_was(self.days_ahead)
            self.days_ahead = 0
        await self._pass_time()
        await self._recover()

    async def _requests(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            if not self.host.alive:
                return
            await producer.act()
            self._look_at_bounds()
            await self.time.sleep(producer_pause(self.chance))

    async def _fault(self) -> None:
        chance, host = self.chance, self.host
        kind = chance.random()
        await self.time.sleep(chance.choice([0, 0.02, 0.5]) * chance.random())
        if not host.alive:
            return
        power = chance.random() < 0.75
        if kind < 0.26:
            operations = int(10 ** (chance.random() * 2.3))
            self.note("fault", "crash", after_operations=operations, power=power)
            self.model.disturbed = True
            host.crash_after(operations, power=power)
        elif kind < 0.38:
            self.note("fault", "crash now", power=power)
            self.model.disturbed = True
            host.crash(power=power)
        elif kind < 0.44:
            self.note("fault", "clean stop")
            host.stop()
        elif kind < 0.50:
            part = chance.choice(["message_log", "schedule_log", "dispatch_log", "broker", "checkpoint", "/data"])
            if host.synced:
                self.note("fault", "sync fails", part=part)
                self.model.disturbed = True
                host.disk.fail_next_sync(part)
                host.disk_refuses()
        elif kind < 0.59:
            self.network.weather = Weather(
                delay_s_max=chance.choice([0, 0.005, 1.0]),
                split=chance.choice([0, 0.5]),
                drop=chance.choice([0, 0.02, 0.2]),
                short_write=chance.choice([0, 0.3]),
            )
            self.model.disturbed = True
            self.timely.fault()
            self.note("fault", "weather", weather=self.network.weather)
        elif kind < 0.66:
            step_s = chance.choice([-1, 1]) * 10 ** (chance.random() * 4.5)
            self._step(step_s)
        elif kind < 0.72:
            room = chance.choice([0, 10, 100, 300]) * 1024
            self.note("fault", "disk fills up", room_bytes=room)
            self.model.disturbed = True
            host.disk.capacity_bytes = host.disk.used_bytes + room
            host.disk_refuses()
            self.timely.fault()
        elif kind < 0.77:
            await self._far_ahead(chance.choice([1, 3, 10]), chance.choice([3, 12, 12]))

    async def _crash_behind(self, skipping: Skipping) -> None:
        """The server ends as soon as an operator hears that a message is skipped."""
        with trio.move_on_after(4):
            await skipping.answered.wait()
            if not self.host.alive:
                return
            power = skipping.chance.random() < 0.75
            self.note("fault", "crash behind a skip", power=power)
            self.model.disturbed = True
            self.host.crash(power=power)

    async def _far_ahead(self, days: int, seconds: int) -> None:
        """The clock is ahead by days, for seconds; then it is right again, whatever became of the server."""
        self.note("fault", "clock far ahead", days=days, seconds=seconds)
        self.model.disturbed = True
        self.clock.step(days * DAY_US)
        self.timely.changed()
        await self.time.sleep(seconds)
        self.note("fault", "clock right again")
        self.clock.step(-days * DAY_US)
        self.timely.changed()
        self.days_ahead = days

    async def _send_where_it_was(self, days: int) -> None:
        """Send for the days that a clock far ahead has seen: beside messages that are due there, and for any other time."""
        from_ms, to_ms = self.clock.now_ms(), self.clock.now_ms() + days * DAY_US // 1000
        due_ms = {row.due_ms for row in self.model.rows.values() if row.due_ms is not None}
        known = sorted(time for time in due_ms if from_ms < time < to_ms)
        times = self.chance.sample(known, min(len(known), 2 * TIMES_AT_ONCE))
        times += [self.chance.randrange(from_ms, to_ms) for _ in range(TIMES_AT_ONCE)]
        await self.producers[0].send_within(times)

    def _flip(self, share: float) -> None:
        """In some seeds bits flip, while the server is down and while it runs."""
        if self.flipping and self.clock.monotonic_us() and self.chance.random() < share:
            self.model.disturbed = True
            for _ in range(self.chance.choice([1, 1, 3])):
                self.damage.flip()

    def _cut(self) -> None:
        """In some seeds files of a server that is down are cut or go."""
        if self.cuts and self.cutting.random() < 0.5:
            self.model.disturbed = True
            for _ in range(self.cutting.choice([1, 1, 3])):
                self.damage.cut()

    def _start_nodes(self) -> None:
        for node in self.nodes:
            if not node.alive and node.lives == node.deaths:
                node.start()

    async def _node_fault(self, node: Host) -> None:
        """Down, slow, accepts and then fails, cannot write; until the next fault."""
        chance, network = self.chance, self.network
        await self.time.sleep(chance.choice([0, 0.02, 0.5]) * chance.random())
        if chance.random() < 0.5:
            return
        self._heal(node)
        kind = chance.choice(NODE_FAULTS)
        self.note("fault", f"{node.name} {kind}")
        self.model.disturbed = True
        self.timely.fault()
        if kind == "down" and node.alive:
            node.crash(power=chance.random() < 0.5)
            return
        if kind == "crash" and node.alive:
            node.crash_after(int(10 ** (chance.random() * 2)), power=chance.random() < 0.75)
        elif kind == "slow":
            network.slow_s[node.address] = chance.choice([0.3, 2.0, 15.0])
        elif kind == "silent":
            network.silent.add(node.address)
        elif kind == "unreachable":
            network.unreachable.add(node.address)
        elif kind == "hung":
            until_s = self.time.now_s + chance.choice([0.7, 4.0, 15.0])
            network.hung_until_s[node.address] = until_s
            self.time.at(until_s, self.timely.fault)
        elif kind == "twin":
            await self._twin(node)
        elif kind == "full":
            node.disk.capacity_bytes = node.disk.used_bytes
        elif kind == "sync fails" and node.synced:
            node.disk.fail_next_sync("broker")
        self._start_nodes()

    async def _operate(self) -> None:
        await self.time.sleep(self.operator.chance.choice([0, 0.02, 0.5, 1.5]) * self.operator.chance.random())
        await self.operator.act()

    async def _twin(self, node: Host) -> None:
        """For a while another process with the server's id delivers to a node, as on a copy of its data directory. Only to a
        subject that nobody reads: what its messages would do to those of the server is not to be foreseen."""
        if node.address in self.twins or not self.model.server_id:
            return
        self.twins.add(node.address)
        client = Client(self.network, node.address, "twin")
        try:
            instance = f"{self.chance.getrandbits(64):016x}"
            who = {"server_id": self.model.server_id, "instance": instance}
            await client.request("hello", {"versions": [1], **who})
            await client.request("deliver", twin_delivery(self.model.server_id, node.clock.now_ms()))
            await self.time.sleep(self.chance.choice([0.1, 2.0, 20.0]))
        except (Lost, DelayServerError) as error:
            self.note("twin", "no answer", why=str(error))
        finally:
            client.close()
            # The node waits for it to come back, and then the server for the end of its own pause.
            away_s = HOLD_MS / 1000 + PAUSE_S_MAX + 1
            self.time.at(self.time.now_s + away_s, partial(self._forget_twin, node.address))

    def _forget_twin(self, address: str) -> None:
        self.twins.discard(address)
        self.timely.fault()

    def _heal(self, node: Host) -> None:
        self.network.slow_s.pop(node.address, None)
        self.network.silent.discard(node.address)
        self.network.unreachable.discard(node.address)
        self.network.hung_until_s.pop(node.address, None)
        node.disk.capacity_bytes = None
        self.timely.fault()

    async def _recover(self) -> None:
        """Let a crash that was asked for come, and start again what is down."""
        host = self.host
        if host.alive and host.server is not None and host.server.parts.receive.commit.refusal is not None:
            self.note("world", "accepts nothing more", refusal=str(host.server.parts.receive.commit.refusal)[:80])
            await self.time.sleep(0.2)
            if host.alive and not host.server.stopping.is_set():
                host.crash(power=self.chance.random() < 0.5)
        if host.alive and host.server is not None and host.server.stopping.is_set():
            await host.down.wait()
        if host.alive:
            return
        await host.down.wait()
        if host.died_of.startswith(("CorruptionError", "FormatError")) and not self.damage.restore(host.died_of):
            raise SimulationFailure(f"damage ended the server, instead of what it holds: {host.died_of}")
        if self.chance.random() < 0.5:
            self._leap(10 ** (self.chance.random() * 5.6))  # up to four days
        self._flip(0.5)
        self._cut()
        was_full = host.disk.capacity_bytes is not None
        host.disk.capacity_bytes = None
        if self.chance.random() < (0.7 if was_full else 0.2):
            room = self.chance.choice([0, 8, 40]) * 1024
            self.note("fault", "start on a full disk", room_bytes=room)
            self.model.disturbed = True
            host.disk.capacity_bytes = host.disk.used_bytes + room
            host.disk_refuses()
        self.timely.fault()
        if self.chance.random() < 0.25:
            operations = int(10 ** (self.chance.random() * 2))
            power = self.chance.random() < 0.75
            self.note("fault", "crash while starting", after_operations=operations, power=power)
            self.model.disturbed = True
            host.crash_after(operations, power=power)
        await self._start()

    def _leap(self, seconds: float) -> None:
        self.note("world", "time leaps", seconds=round(seconds, 3))
        self.model.disturbed = True
        self.time.leap(seconds)
        self.timely.changed()

    async def _pass_time(self) -> None:
        chance = self.chance
        kind = chance.random()
        if kind < 0.4:
            due_ms = self.model.next_due_ms(self.clock.now_ms())
            if due_ms is not None:
                before_s = chance.choice([0.0, 0.05, 1.0, 80.0])
                self._leap(max(due_ms / 1000 - self.clock.now_us() / 1e6 - before_s, 0))
            await self.time.sleep(chance.choice([0.2, 1.5]))
        elif kind < 0.65:
            self._leap(10 ** (chance.random() * 4.6))
            await self.time.sleep(0.6)
        elif kind < 0.72:
            step_s = 10 ** (chance.random() * 4.6)
            self.note("world", "suspended", seconds=round(step_s, 3))
            self.model.disturbed = True
            self.clock.step(int(step_s * 1e6))
            self.timely.changed()
            await self.time.sleep(0.6)
        else:
            await self.time.sleep(chance.choice([0.1, 1.0, 4.0]))

    # -- the end

    async def _calm_down(self) -> None:
        """No more faults from here on."""
        self.note("world", "calm")
        if self.delaying is not None:
            self.delaying.calm()
        self.network.weather = Weather()
        self.host.disk.capacity_bytes = None
        self.timely.fault()
        self.host.disk.no_more_faults()
        for node in self.nodes:
            self._heal(node)
            node.disk.no_more_faults()
            if self._is_behind(node):
                self.note("world", f"the clock of {node.name} is set right")
                node.clock.step(self.clock.now_us() - node.clock.now_us())
        for consumer in self.consumers:
            consumer.careful = True
        if self.dealer is not None:
            self.dealer.careful = True
        await self.time.sleep(1)
        self._start_nodes()
        await self._recover()
        self.host.disk.no_more_faults()
        self.checker.close()  # its connection may have broken in the weather before

    async def _deliver_all(self) -> None:
        """Hop from due time to due time until all that was accepted has arrived."""
        for _ in range(HOPS_MAX):
            waiting = self.model.open_identities(self.groups)
            due = [copy.due_ms for identity in waiting for copy in identity.copies if copy.due_ms is not None]
            if not waiting:
                break
            if not self.host.alive:
                await self._recover()
            # Some due times at once: a message that the server got too late is late, and must come all the same.
            due = sorted(due)[: self.chance.choice((1, 2, 4, 8, 16))]
            ahead_s = due[-1] / 1000 - self.clock.now_us() / 1e6 if due else 0
            if ahead_s > 0:
                self._leap(ahead_s + self.chance.choice([0, 0, 1, 600]))
            await self.time.sleep(0.7)
            if ahead_s < -1:
                # Overdue: what waits for a back-off or a lease gets its time, but not for ever.
                self._leap(25)
                await self.time.sleep(0.7)
                await self._check_stuck(ahead_s)
        else:
            raise SimulationFailure(f"still not delivered: {self._open_text()}")

    async def _check_stuck(self, ahead_s: float) -> None:
        """Ask for what is overdue: it may be expired or a cancel of unknown result; else it is lost after a while."""
        overdue = [
            (identity, copy)
            for identity in self.model.open_identities(self.groups)
            for copy in identity.copies
            if copy.state == ACCEPTED and copy.due_ms is not None and copy.due_ms < self.clock.now_ms() - 1000
        ]
        if overdue:
            await self._look_up_waiting([copy for _, copy in overdue])
        await self._check_late()
        for identity, copy in overdue:
            identity.patience -= 1
            if identity.patience < 0 and identity in self.model.open_identities(self.groups):
                if self.clock.peak_us > self.clock.now_us():
                    # A lease that ended while the clock was ahead: its messages come again when that time has come.
                    self._leap((self.clock.peak_us - self.clock.now_us()) / 1e6 + 1)
                    return
                self.model.fail("lost: accepted, due, and it does not arrive", copy)

    async def _check_late(self) -> None:
        """In fine time nothing that is due stays where it is: asked once, of those that no consumer has seen yet."""
        now_ms = self.clock.now_ms()
        unseen = [
            (identity, copy)
            for identity in self.model.open_identities(self.groups)
            for copy in identity.copies
            if not identity.arrived and copy.state == ACCEPTED and copy.due_ms is not None and copy.due_ms < now_ms
        ]
        if not unseen or self.looked_late:
            return
        self.looked_late = True
        until_s = self.time.now_s + self.timely.pause_us / 1e6 + 2 * LATE_US_MAX / 1e6
        while self.time.now_s < until_s and not all(identity.arrived for identity, _ in unseen):
            await self.time.sleep(0.5)
        await self._look_up_waiting([copy for _, copy in unseen])
        for identity, copy in unseen:
            waits = identity.last_answer in ("pending", "in_flight", "retrying")
            if not identity.arrived and waits and self.timely.well_for_us(copy.subject) > LATE_US_MAX:
                self.model.fail("overdue in a world that is well, and it is not dispatched", copy)

    async def _look_up_waiting(self, rows: list[Sent]) -> None:
        """Ask what the server says of them. Where a record beside one of them is damaged, it may not be able to say."""
        rows = [row for row in rows if row.receipt]  # a one-way send tells none
        if not rows:
            return
        try:
            await look_up(self.checker, self.model, self.clock, rows)
        except DelayServerError as error:
            if not self.damage.flips:
                raise
            self.note("checker", "no answer", why=str(error))

    def _open_text(self) -> str:
        return "; ".join(str(identity.copies) for identity in self.model.open_identities(self.groups)[:3])

    async def _verdict(self) -> None:
        """The books must balance: with the server's own counts, and with what lies in the files."""
        # Rows of unknown fate and rows behind a maybe-cancel get their time too.
        last = max([row.due_ms for row in self.model.rows.values() if row.due_ms is not None], default=0)
        ahead_s = last / 1000 - self.clock.now_us() / 1e6
        if ahead_s > 0:
            self._leap(ahead_s + 1)
        await self.time.sleep(2)
        status = await self.checker.request("status", {})
        if status["pending"]:
            # What nobody answered may have been sent with a delay, so the books do not know when it is due.
            self._leap(settings_of.DELAY_MS_MAX / 1000)
            await self.time.sleep(2)
            status = await self.checker.request("status", {})
        if self.model.waits_for_leases(status):
            self._leap(25)
            await self.time.sleep(2)
            status = await self.checker.request("status", {})
        self.note("checker", "status", **{name: status[name] for name in BALANCE})
        assert self.host.server is not None
        if not self.damage.flips:
            check_files(self.host, status)
        self.model.check_balance(status)
        self.host.stop()
        await self.host.down.wait()
        for identity in self.model.identities.values():
            flips = self.model.damaged(identity)
            if (
                flips
                and identity.accepted
                and not (identity.arrived or identity.cancel_possible or identity.may_expire)
            ):
                self.damage.excused.append((flips, f"lost: {identity.copies[0].brief()}"))
        if self.damage.flips or self.audits.random() < CHECKED_SHARE:
            self.damage.verdict()


BALANCE = (
    "accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back", "pending", "early",
)  # fmt: skip


def twin_delivery(server_id: str, now_ms: int) -> dict[str, Any]:
    """The arguments of a `deliver` of one message that no consumer pulls."""
    times = {"due_ms": now_ms, "accepted_us": now_ms * 1000, "dispatched_us": now_ms * 1000, "expires_ms": 0}
    names = {"subjects": ["nobody.reads"], "subject_index": 0, "target_groups": [], "target_group_index": 0}
    blobs = {"message_ids": b"", "message_id_length": 0, "properties": b"", "properties_length": 0}
    row = {
        "count": 1,
        "sequence": (1 << 48) - 1,
        "redelivery": 0,
        "origin_sequence": 0,
        "bodies": b"t",
        "body_length": 1,
    }
    return {"server_id": server_id, "window_ms": now_ms, "uncertain": False, **times, **names, **blobs, **row}


def producer_pause(chance: Random) -> float:
    """Between two requests of one producer."""
    return chance.choice([0.0, 0.001, 0.02, 0.3]) * chance.random()
