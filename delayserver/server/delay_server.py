"""The one place that builds real parts and starts the tasks. Everything else is handed what it needs.

`DelayServer` opens a data directory, recovers, serves, and stops cleanly; as role `broker` it serves consumers and other
servers only. One nursery owns all tasks: a crash of one is a crash of the server, never a log line and a silent stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import trio

from delayserver.broker.limits import BrokerLimits
from delayserver.broker.redelivery import RedeliveryPolicy
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.publishing import Publishing
from delayserver.broker.service.pulls import PullService
from delayserver.broker.service.reading import BrokerReads
from delayserver.config.pacing import Pacing
from delayserver.config.settings import (
    Settings,
    for_broker,
    for_frames,
    redelivery_kept_ms,
)
from delayserver.config.units import parse_delay_levels
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.dispatch.broker_node import Node
from delayserver.dispatch.complete_windows import CompleteWindows
from delayserver.dispatch.dispatcher import Dispatcher
from delayserver.dispatch.fail_over import FailOver
from delayserver.dispatch.message_reader import MessageReader
from delayserver.dispatch.targets.targets import Targets
from delayserver.front.front import BROKER, SERVER, Front
from delayserver.front.handlers.table import HandlerTable
from delayserver.load.loader import Loader
from delayserver.load.refill import Refill
from delayserver.load.window_reader import WindowReader
from delayserver.logs.events import EventLogger
from delayserver.net.transport import Connect, Listener, connect_socket
from delayserver.operations.access.tokens import OwnTokens, TokenBook
from delayserver.operations.access.waiting import WaitingCounts
from delayserver.operations.figures.metrics import GroupsReader, Metrics
from delayserver.operations.figures.pending import Pending, PendingSubjects
from delayserver.operations.figures.queues import QueuesReader, Receiving, Serving
from delayserver.operations.figures.status import Status, StorageReader
from delayserver.operations.figures.status_sections import (
    BalanceReader,
    BrokerReader,
    DeliveryReader,
    DiskReader,
    ProcessReader,
    ProgressReader,
    WindowsReader,
)
from delayserver.operations.figures.subjects import Subjects
from delayserver.operations.groups.broadcasting import Broadcasting
from delayserver.operations.groups.consuming import Consuming
from delayserver.operations.groups.dead_letters import DeadLetterOperations
from delayserver.operations.groups.filtering import FilterCompiler
from delayserver.operations.groups.finding import Finding
from delayserver.operations.groups.group_filters import GroupFilters
from delayserver.operations.groups.policies import Policies
from delayserver.operations.groups.positions import QueuePositions
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.operations.messages.cancel import Cancel
from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.check_backs import CheckBacks, Pipeline, TimerVerdicts
from delayserver.operations.messages.contents import Contents
from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.lookup import Lookup
from delayserver.operations.messages.message_states import MessageStates
from delayserver.operations.messages.named_messages import Naming
from delayserver.operations.messages.reschedule import Reschedule
from delayserver.operations.messages.rescheduling import Rescheduling
from delayserver.operations.messages.transactions import Transactions
from delayserver.operations.nodes.delivering import Delivering
from delayserver.operations.nodes.identity import Identity
from delayserver.operations.nodes.reload import Reload, Reread
from delayserver.operations.nodes.routing import Routing
from delayserver.operations.nodes.servers import Servers
from delayserver.operations.operations import DelayOperations, Operations
from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.prepare import Prepare
from delayserver.operations.sending.publish import Publish
from delayserver.operations.sending.redispatch import Redispatch
from delayserver.operations.sending.redispatch_reading import RedispatchReader
from delayserver.operations.sending.send import Send
from delayserver.outcomes.outcome_recorder import OutcomeRecorder
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Intake
from delayserver.replay.day_tier import DayTier
from delayserver.replay.placing import Placing
from delayserver.replay.publisher import Publisher
from delayserver.replay.replayer import Replayer
from delayserver.replay.rounds import Rounds
from delayserver.runtime.fair_turns import FairTurns
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.steps import Steps
from delayserver.runtime.watchdog import Watchdog
from delayserver.server.group_builder import GroupBuilder
from delayserver.server.group_memory import TIMERS_AT_ONCE, GroupMemory, has_one_node
from delayserver.server.topology import Topology
from delayserver.startup.lost_outcomes import LostOutcomes, cancels_in
from delayserver.startup.opening import Opened, count_accepted, count_placed, find_lost_broker, open_directory
from delayserver.startup.orphans import OrphanSearch
from delayserver.startup.pending_subjects import pending_before
from delayserver.startup.replay_ahead import read_ahead
from delayserver.state.connections.connection_memory import ConnectionMemory
from delayserver.state.connections.connections import Connections
from delayserver.state.counts.balance import Balance
from delayserver.state.counts.latency import LatencyHistogram
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.order_gate import OrderGate
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.routes import TIMERS_GROUP, Routes
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from delayserver.state.positions.readiness import Readiness, Stage
from delayserver.state.windows.drains import Drains
from delayserver.state.windows.retired import Retired
from delayserver.state.windows.window_book import WindowBook
from delayserver.state.windows.windows import Windows
from delayserver.upkeep.checkpoint_file import CheckpointFile
from delayserver.upkeep.checkpointing import Checkpointing
from delayserver.upkeep.housekeeping import Housekeeping
from delayserver.upkeep.kept_room import KeptRoom
from delayserver.upkeep.log_retention import LogRetention
from delayserver.upkeep.on_their_way import OnTheirWay
from delayserver.upkeep.progress import Progress
from delayserver.upkeep.retention import Retention
from delayserver.upkeep.segments_ahead import SegmentsAhead
from delayserver.upkeep.subject_counting import SubjectCounting
from store.disk.filesystem import FileSystem, RealFileSystem
from store.errors import DiskFullError, StoreError
from store.records.transaction_timer import TIMER
from wheel.cursors import LoadCursors

events = EventLogger()

Ready = Callable[[str, int], None]

# A directory that was in use opens in the room that its files have kept. One that is new, or of an older version, needs
# some blocks.
OPENING_BYTES = 64 * 1024


class DelayServer:
    """One server on one data directory. `open` recovers, `run` serves until `stop` or cancellation."""

    def __init__(
        self,
        settings: Settings,
        *,
        role: str = SERVER,
        runtime: Runtime | None = None,
        fs: FileSystem | None = None,
        connect: Connect = connect_socket,
        reread: Reread | None = None,
        trusting: bool = False,
    ) -> None:
        """`reread` reads the settings again, for `reload`. `trusting`: no client needs a token, since all of them belong to
        this program."""
        self._trusting = trusting
        self._given, self._reread = settings, reread
        if role == BROKER:
            # The delay pipeline of a lone broker carries its own redeliveries, to itself.
            settings = for_broker(settings)
        self.settings = for_frames(settings)
        self.pacing = Pacing.of(self.settings)
        self.role = role
        self.runtime = runtime or Runtime.on()
        self.clock, self.turns, self.damage = self.runtime.clock, self.runtime.turns, self.runtime.damage
        self.fs: FileSystem = fs or RealFileSystem()
        self._connect = connect
        path = self.settings.storage.data_dir
        self.opening_room = RoomWait(self.fs, path, "the start of the server", self.clock)
        self.replay_room = RoomWait(self.fs, path, "the replay of accepted messages", self.clock)
        self.readiness = Readiness((self.opening_room, self.replay_room))
        # One for each process. A node uses it to tell two processes with one server id apart.
        self._instance = f"{self.runtime.chance.getrandbits(64):016x}"
        self.servers = Servers(self.settings.listen, self.runtime)
        self.own_tokens = OwnTokens(self.runtime)
        self.stopping = self.readiness.stopping
        self._starting = trio.CancelScope()
        self.is_open = False
        self.address = ("", 0)
        self.fair_turns = FairTurns(self.turns, self.clock)
        self.watchdog = Watchdog(self.clock, self.settings.stall_log_ms)
        listen = self.settings.listen
        memory = ConnectionMemory(listen.memory_bytes_max, listen.memory_bytes_each, listen.unsent_bytes_max)
        self.connections = Connections(memory)
        self.front = Front(
            listen,
            role,
            self.readiness,
            self.connections,
            self.servers,
            self.fair_turns,
            self.runtime,
        )
        self.handlers = self.front.handlers

    # -- building

    def open(self) -> None:
        """Lock and recover the data directory, build all parts; for any thread. Raises StoreError and its kinds: all is
        closed then, and after a DiskFullError it can be called again."""
        holder = f"process {os.getpid()} (delayserver {self.role})"
        self.opened = open_directory(self.fs, self.settings, self.runtime, holder, self.role)
        try:
            self._build_state(self.opened)
            self._build_pipeline(self.opened)
            self._build_decisions(self.opened)
            self._build_dispatch(self.opened)
            self._build_front(self.opened)
        except StoreError:
            self.opened.close()
            raise
        self.is_open = True

    def _build_state(self, opened: Opened) -> None:
        """The state of the server: `state/`."""
        settings, storage, files = self.settings, self.settings.storage, opened.files
        self.book = WindowBook(files.schedule, files.dispatch, files.days, storage.window_ms)
        self.book.open()
        self.retired = Retired(files.ledger, self.book, self.damage)
        self.cursors = LoadCursors(storage.window_ms, self.book.start_of)
        drained = opened.checkpoint.coarse_days
        positions = dict(zip(drained.start_ms.tolist(), drained.drain_offset.tolist(), strict=True))
        self.drains = Drains(files.days, files.schedule, positions)
        self.windows = Windows(self.book, self.cursors, self.retired, self.drains)
        self.positions = Positions(
            durable=files.log.synced,
            accepted_sequence=opened.sequences.next - 1,
            replayed=opened.checkpoint.replay_offset if not opened.checkpoint_lost else files.log.first,
            replayed_sequence=opened.checkpoint.replayed_sequence,
        )
        self.gathering = Gathering(storage)
        self.log_queue = LogQueue(self.positions, self.clock)
        self.balance = Balance()
        self.decided = Decided(
            files.dispatch,
            files.days,
            self.positions,
            self.balance.subjects,
            settings.dispatch.outcome_rows_max,
            storage.window_ms,
            self.runtime,
        )
        self.progress = Progress(self.positions, self.balance, self.decided, self.windows, opened.believable)
        self._build_memory(opened)

    def _build_memory(self, opened: Opened) -> None:
        """The holders of index rows: a wheel, a queue and the health of its nodes for each broker group."""
        settings = self.settings
        self.group_memory = memory = GroupMemory(settings, self.pacing, opened.names, self.runtime)
        codes = memory.codes(settings.groups)
        self.routes = Routes(settings.routes, codes, opened.names)
        wheels, backlog = ({code: memory.wheel() for code in (*codes.values(), TIMERS_GROUP)} for _ in range(2))
        self.wheel = GroupWheels(wheels, backlog, self.routes, memory.start_ms, opened.horizon.earlier, memory.wheel)
        rows = {
            codes[group.name]: memory.rows(
                group, codes[group.name], alone=has_one_node(group, settings.groups, settings.routes)
            )
            for group in settings.groups
        }
        rows[TIMERS_GROUP] = memory.timer_rows()
        self.residency = Residency(
            self.wheel, rows, self.windows, self.decided, opened.attempted, settings.wheel, self.runtime
        )

    def _build_pipeline(self, opened: Opened) -> None:
        """The stages from the log to memory, and upkeep."""
        settings, storage, files = self.settings, self.settings.storage, opened.files
        self.kept_room = KeptRoom(self.fs, opened.directory.path, self.positions, self.drains, storage.free_bytes_min)
        self.commit = GroupCommit(
            files.log, opened.sequences, self.gathering, self.log_queue, self.balance, storage, self.runtime
        )
        self.placing = Placing(
            files,
            self.windows,
            self.positions,
            self.replay_room,
            storage,
            self.runtime,
            count_skipped=not opened.checkpoint_lost,
        )
        self.publisher = Publisher(
            self.positions, self.balance, self.windows, self.residency, self.decided, settings.wheel, self.runtime
        )
        rounds = Rounds(self.placing, self.publisher)
        self.tier = DayTier(files, self.windows, self.decided, rounds, self.log_queue, storage, self.runtime)
        self.tier.open()
        self.replayer = Replayer(files, self.windows, rounds, self.tier, self.log_queue, self.runtime)
        self.window_reader = WindowReader(files.schedule, self.book, opened.attempted, self.runtime)
        self.loader = Loader(
            self.window_reader,
            self.book,
            self.residency,
            self.cursors,
            self.decided,
            settings.wheel,
            self.runtime,
        )
        self.refill = Refill(self.window_reader, self.residency, self.book, self.decided, self.positions, self.runtime)
        self.recorder = OutcomeRecorder(
            self.decided, files.dispatch, self.book, settings.dispatch, self.pacing.outcomes_late_ms_max, self.runtime
        )
        self._build_upkeep(opened)
        self._count_totals(opened)

    def _build_upkeep(self, opened: Opened) -> None:
        storage, files = self.settings.storage, opened.files
        coming = OnTheirWay(self.gathering, files.log, self.positions, storage.window_ms, self.runtime)
        self.retention = Retention(files, self.windows, coming, self.decided, storage, opened.believable, self.runtime)
        self.retention.finish_interrupted()
        self.log_retention = LogRetention(files.log, self.positions, storage, self.runtime)
        self.segments_ahead = SegmentsAhead(files.log, self.positions, self.kept_room, storage, self.runtime)
        checkpoint = CheckpointFile(
            self.fs,
            f"{opened.directory.path}/checkpoint",
            opened.sequences,
            opened.horizon,
            None if opened.checkpoint_lost else opened.checkpoint,
        )
        self.subject_counting = SubjectCounting(
            files, self.windows, self.decided, self.positions, self.balance.subjects, self.runtime
        )
        self.checkpointing = Checkpointing(checkpoint, files, self.progress, opened.horizon, storage, self.runtime)

    def _count_totals(self, opened: Opened) -> None:
        totals = self.retention.retired_totals() - self.tier.moved_already
        for key in opened.dispatch.keys():
            totals += opened.dispatch.counts(key)
        self.decided.count_durable(totals)
        pending = pending_before(opened)
        if pending is not None:
            self.balance.subjects.found(pending)
        if opened.checkpoint_lost:
            self.balance.place(*count_accepted(opened))
        else:
            self.balance.place(*[opened.checkpoint.totals.get(name, 0) for name in ("accepted", "internal")])

    def _build_dispatch(self, opened: Opened) -> None:
        settings = self.settings
        server_id = opened.directory.server_id
        limits = settings.broker
        lost = find_lost_broker(self.fs, opened)
        if lost is not None:
            self.damage.report(lost)
        self.broker = Broker.open(
            self.fs,
            f"{opened.directory.path}/broker",
            server_id,
            self.clock.now_us(),
            BrokerLimits(
                segment_bytes=limits.segment_bytes,
                cache_bytes_max=limits.cache_bytes_max,
                ack_timeout_ms_default=limits.ack_timeout_ms,
                retention_ms=limits.retention_ms,
                unconsumed_retention_ms=limits.unconsumed_retention_ms,
                lag_bytes_max=limits.lag_bytes_max,
                lag_ms_max=limits.lag_ms_max,
                groups_max=limits.groups_max,
                waiting_pulls_max=limits.waiting_pulls_max,
                mailbox_pulls_max=limits.mailbox_pulls_max,
                pull_messages_max=limits.pull_messages_max,
                redelivery=RedeliveryPolicy(limits.redelivery_first_ms, limits.redelivery_cap_ms),
                delay_levels_ms=parse_delay_levels(settings.message.delay_levels),
                redelivery_bytes_max=limits.redelivery_bytes_max,
                redelivery_kept_ms=redelivery_kept_ms(settings),
                read_ahead_bytes=self.pacing.read_ahead_bytes,
            ),
            self.kept_room,
            self.clock.monotonic_us(),
        )
        self.broker_commit = BrokerCommit(self.broker, opened.believable, self.runtime)
        self.broker_reads = BrokerReads(self.broker.reads, self.runtime)
        self.pulls = PullService(self.broker, self.broker_reads, self.runtime, self.pacing.pulled_rows_max)
        self.local_broker = LocalBroker(self.broker, self.broker_commit, self.broker_reads, self.pulls, self.runtime)
        self.publishing = Publishing(
            self.local_broker, opened.sequences, server_id, settings.storage, self.commit.storage_failed, self.runtime
        )
        self.targets = Targets(
            self.local_broker, server_id, self._instance, settings.listen, opened.names.name, self._connect
        )
        builder = GroupBuilder(opened, self.residency, self.decided, self.targets, self.pacing, self.runtime)
        self.lateness = builder.lateness
        groups = [builder.build(rows) for code, rows in self.residency.groups.items() if code != TIMERS_GROUP]
        fail_over = FailOver(self.residency, self.pacing.slice_rows, self.runtime)
        self.groups = BrokerGroups(groups, self._build_timers(opened), fail_over)
        self.topology = Topology(self.group_memory, self.residency, self.groups, builder, self.targets, self.runtime)
        self.reload = Reload(self.topology, self.servers, self._given, self._reread, self.runtime)
        gate = OrderGate(self.windows, self.positions)
        self.dispatcher = Dispatcher(
            self.groups, self.residency, opened.horizon, gate, self.pacing.slice_rows, self.runtime
        )
        self.complete_windows = CompleteWindows(self.book, opened.days, self.groups, self.runtime)

    def _build_timers(self, opened: Opened) -> BrokerGroup:
        """The group of the timers of transactions, whose only node is a part of this server."""
        self.check_backs = CheckBacks(
            opened.directory.server_id,
            opened.names,
            self.cancellation,
            self.rescheduling,
            Pipeline(self.commit, self.decided, self.kept_room, self.locator),
            self.runtime,
        )
        rows, settings = self.residency.groups[TIMERS_GROUP], self.group_memory.timer_settings
        verdicts = TimerVerdicts(rows, self.decided, opened.attempted, LatencyHistogram(), settings, self.runtime)
        reader = MessageReader(
            opened.schedule, opened.directory.server_id, TIMERS_AT_ONCE * TIMER.itemsize, self.runtime
        )
        nodes = [Node(self.check_backs, health) for health in rows.nodes]
        return BrokerGroup(rows, nodes, reader, self.residency, verdicts, settings, self.runtime)

    def _build_decisions(self, opened: Opened) -> None:
        """Builds the parts that accept messages, and those that end messages before their delivery."""
        settings = self.settings
        self.intake = Intake(
            settings.message,
            f"{opened.directory.server_id:012x}",
            opened.names,
            self.retention.oldest_due_ms,
            self.retention.closed,
            self.commit.storage_failed,
            self.runtime,
        )
        self.locator = Locator(opened.schedule, opened.days, settings.storage.window_ms, self.runtime)
        self.cancellation = Cancellation(
            self.commit,
            self.positions,
            self.locator,
            self.decided,
            self.residency,
            self.windows,
            self.runtime,
        )
        self.rescheduling = Rescheduling(self.cancellation, self.locator, self.intake, self.runtime)

    def _build_front(self, opened: Opened) -> None:
        settings = self.settings
        self.states = MessageStates(
            self.cancellation, self.decided, opened.files, self.residency, self.windows, self.runtime
        )
        self.redelivery = Redelivery(
            self.local_broker, self.commit, self.kept_room, opened.sequences, opened.names, self.clock
        )
        filters = FilterCompiler(self.intake, self.runtime)
        self.policies = Policies(self.broker, filters, self.intake, opened.names, self.runtime)
        self.consuming = Consuming(
            self.local_broker,
            self.redelivery,
            GroupFilters(self.local_broker, filters, self.policies),
            self.intake,
            opened.names,
            settings.broker,
            self.runtime,
        )
        self.housekeeping = Housekeeping(
            self.fs,
            opened.directory.path,
            opened.dispatch.reserve,
            self.kept_room,
            (opened.horizon.earlier, self.residency.loadable),
            settings.storage,
            self.runtime,
        )
        waiting = WaitingCounts(self.balance, opened.names, self.clock)
        directory = opened.directory
        self.tokens = TokenBook(self.fs, directory.path, directory.server_id, self.own_tokens, waiting, self.runtime)
        self.identity = Identity(f"{opened.directory.server_id:012x}", self.role)
        self.status = Status(
            ProcessReader(
                self.identity, self.readiness, opened.believable, self.housekeeping, self.watchdog, self.clock
            ),
            BalanceReader(self.balance, self.decided, self.lateness),
            StorageReader(
                DiskReader(settings, opened.schedule, opened.dispatch, opened.names, self.housekeeping, self.runtime),
                ProgressReader(self.commit, self.positions, self.decided, self.checkpointing),
                WindowsReader(self.book, self.retention, self.clock),
            ),
            DeliveryReader(self.residency, self.loader, self.groups, self.clock),
            BrokerReader(self.broker, self.consuming, self.servers),
            self.connections,
        )
        self.metrics = Metrics(
            self.status,
            self.lateness,
            QueuesReader(
                settings,
                Receiving(self.connections, self.gathering, self.log_queue),
                opened.files,
                self.residency,
                self.decided,
                Serving(self.broker, self.consuming),
            ),
            GroupsReader(self.local_broker, opened.names),
            PendingSubjects(self.balance, opened.names),
            self.runtime,
        )

    def _build_operations(self, opened: Opened) -> Operations:
        """All parts are there, and so is the address."""
        host, port = self.address
        names = opened.names
        routing = Routing(self.routes, self.groups, f"{host}:{port}", self.clock)
        looking = QueuePositions(self.local_broker, self.intake, opened.names, self.settings.broker, self.runtime)
        return Operations(
            identity=self.identity,
            status=self.status,
            metrics=self.metrics,
            routing=routing,
            servers=self.servers,
            tokens=self.tokens,
            consuming=self.consuming,
            subjects=Subjects(opened.names),
            publish=Publish(self.identity.server_id, self._admission(), self.intake, routing, self.publishing, names),
            positions=looking,
            broadcasting=Broadcasting(
                self.local_broker, looking, self.connections.broadcasts, self.intake, names, self.runtime
            ),
            finding=Finding(self.local_broker, looking, self.intake, opened.names),
            dead_letters=DeadLetterOperations(
                self.local_broker, self.redelivery, self.intake, opened.names, self.clock
            ),
            policies=self.policies,
            delivering=Delivering(
                self.local_broker,
                self.servers,
                self.intake,
                self.commit,
                self.settings.broker.server_clock_ahead_ms_max,
                self.clock,
            ),
            delay=self._build_delay_operations(opened) if self.role == SERVER else None,
        )

    def _admission(self) -> Admission:
        return Admission(self.readiness, self.housekeeping, self.settings.storage.free_bytes_min)

    def _build_delay_operations(self, opened: Opened) -> DelayOperations:
        server_id, names, intake = self.identity.server_id, opened.names, self.intake
        admission = self._admission()
        naming = Naming(server_id, intake, self.cancellation, names)
        reader = RedispatchReader(opened.schedule, opened.dispatch, self.decided, self.runtime)
        send = Send(server_id, admission, intake, self.commit, names)
        terms = self.settings.transactions, self.settings.message.delay_ms_max
        return DelayOperations(
            send=send,
            cancel=Cancel(naming, self.cancellation),
            reschedule=Reschedule(admission, naming, intake, self.rescheduling),
            lookup=Lookup(
                server_id,
                naming,
                self.states,
                Contents(server_id, self.locator, names, self.runtime),
                self.local_broker.recently,
                names,
            ),
            redispatch=Redispatch(opened.files, self.book, reader, self.commit, admission, self.servers, self.runtime),
            reload=self.reload,
            pending=Pending(opened.files, self.windows, self.balance),
            prepare=Prepare(send, admission, intake, self.commit, terms, self.clock),
            transactions=Transactions(
                admission, naming, intake, self.rescheduling, self.cancellation, self.states, self.runtime
            ),
        )

    # -- running

    async def run(
        self, listener: Listener, ready: Ready | None = None, *, opened: Callable[[], None] | None = None
    ) -> None:
        """Open the data directory (unless `open` did), recover, serve until `stop`. Requests are answered from the first
        moment on, as `not_ready` until it is. `opened` is called when the directory is open, `ready` when all is served.

        Raises what `open` raises but for a full disk, which is waited for, and StoreError when a sync failed; a restart
        recovers."""
        with self.watchdog.watching():
            await self._run(listener, ready, opened)

    async def _run(self, listener: Listener, ready: Ready | None, opened: Callable[[], None] | None) -> None:
        self.address = listener.address
        failure: StoreError | OSError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.front.accept, listener, nursery)
            with self._starting:
                try:
                    await self._open_when_there_is_room()
                except (StoreError, OSError) as error:  # for the caller as it is, not in a group
                    failure = error
                else:
                    self.operations = self._build_operations(self.opened)
                    self.front.opened(
                        Steps((self.commit, self.publishing)),
                        HandlerTable(self.operations, self.settings, self.clock),
                        self.tokens,
                        trusting=self._trusting,
                    )
                    if opened is not None:
                        opened()
                    await self._start(nursery)
            if self.readiness.ready:
                if ready is not None:
                    ready(*self.address)
                host, port = self.address
                events.info("ready", "ready on {host} port {port}", host=host, port=port, role=self.role)
                await self.stopping.wait()
            if failure is None:
                events.info("stopping", "stopping; what is in flight is settled first")
                listener.close()
                await self._finish()
                events.info("stopped", "stopped")
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _open_when_there_is_room(self) -> None:
        while not self.is_open:
            try:
                # A stop does not wait for it: it is as safe as a kill, which may come at any moment of a start.
                await self.runtime.workers.run(self.open, abandon_on_cancel=True)
            except DiskFullError as error:
                self.opening_room.full(OPENING_BYTES)
                events.info("start_waits_for_room", "the start waits for room: {reason}", reason=str(error))
                await self.clock.sleep_ms(self.opening_room.pause_ms)
        self.opening_room.found()

    async def _start(self, nursery: trio.Nursery) -> None:
        """Replay, then start all that serves."""
        self.commit.refuse(self.readiness.refusal())
        for task in (self.commit.run, self.replayer.run, self.recorder.run, self.local_broker.run, self.redelivery.run,
                     self.publishing.run, self.targets.run, self.reload.run, self.tokens.run):  # fmt: skip
            nursery.start_soon(task)
        if not self._trusting:
            nursery.start_soon(self.front.guard)
        self._enter(Stage.REPLAYING)
        found, end = self.positions.accepted_sequence.value, self.positions.durable.value
        await self.replay_room.end_when_blocked(partial(self.positions.replayed.reached, end))
        if self.positions.replayed.value < end and self._may_deliver_before_replay():
            async with trio.open_nursery() as horizon:
                horizon.start_soon(self.checkpointing.run_horizon)
                await self._deliver_meanwhile(nursery)
                await self._recover(found)
                horizon.cancel_scope.cancel()
        else:
            await self._recover(found)
            self._start_delivering(nursery)
        for task in (self.commit.warm, self.tier.run, self.checkpointing.run, self.retention.run, self.log_retention.run,
                     self.complete_windows.run, self.segments_ahead.run, self.subject_counting.run):  # fmt: skip
            nursery.start_soon(task)
        self.commit.accept()
        self._enter(Stage.READY)

    def _may_deliver_before_replay(self) -> bool:
        """Not without a checkpoint: then the files are counted when the replay is complete. Not where a file of outcomes
        lost some: their cancels are restored when the replay is complete."""
        lost = self.opened.dispatch.lost.values()
        return not self.opened.checkpoint_lost and all(loss.searched for loss in lost)

    async def _deliver_meanwhile(self, nursery: trio.Nursery) -> None:
        """The replay waits for room: deliver what is placed already. Cancels that are not replayed yet are held first."""
        log, position = self.opened.log, self.opened.checkpoint.replay_offset
        read = partial(read_ahead, log, max(position, log.first), log.synced)
        ahead = await self.runtime.workers.run(read, abandon_on_cancel=True)
        self.decided.holds.hold_at_start(ahead.cancelled)
        self.balance.found(self.opened.checkpoint.totals.get("accepted", 0) + ahead.accepted)
        self._start_delivering(nursery)
        self._enter(Stage.DELIVERING)

    def _start_delivering(self, nursery: trio.Nursery) -> None:
        for task in (
            self.loader.run,
            self.refill.run,
            self.dispatcher.run,
            self.groups.run,
            self.housekeeping.run,
        ):
            nursery.start_soon(task)

    def _enter(self, stage: Stage) -> None:
        self.readiness.enter(stage)
        self.front.enter(stage)

    async def _recover(self, found: int) -> None:
        """Replay what the checkpoint does not cover before anything may be loaded, or with its cancels held: a cancel
        among it must count. `found`: the highest sequence at the start."""
        await self.positions.replayed.reached(self.positions.durable.value)
        if not self.opened.checkpoint_lost:
            behind = count_placed(self.opened, self.positions.replayed_sequence.value)
            self.balance.place(*behind)
            if any(behind):
                self.balance.subjects.doubt()
        self.positions.skip_unused(found)
        await self._restore_outcomes()
        await self.publisher.finish_recovery()
        await self.recorder.flush()
        search = OrphanSearch(self.opened, self.book, self.settings.storage.window_ms, self.runtime)
        uncounted = await search.find(self.retired.has, everywhere=self.replayer.met_damage)
        self.decided.leave_out(uncounted.outcomes)
        # Behind damage in message_log, schedule files may have messages that no round has counted.
        if len(uncounted.outcomes) or uncounted.accepted or self.replayer.met_damage:
            self.balance.subjects.doubt()
        self.balance.place(uncounted.accepted, uncounted.internal)
        self.balance.found(self.balance.placed)
        self.balance.subjects.replayed()
        self.decided.holds.release_start()
        self.book.open()
        self.residency.loadable.ring()

    async def _restore_outcomes(self) -> None:
        """Restores lost outcomes from message_log. A window or day whose outcomes stay unknown is held back."""
        opened, window_ms = self.opened, self.settings.storage.window_ms
        lost = LostOutcomes(
            opened.dispatch, opened.days, self.decided, self.publisher.record_missing_cancels, window_ms
        )
        wanted = lost.wanted()
        if not wanted:
            return
        search = partial(cancels_in, opened.log, wanted, window_ms, opened.checkpoint.replay_offset)
        found = await self.runtime.workers.run(search)
        for key in await lost.restore(found):
            if key.coarse:
                self.tier.outcomes_are_back(key.start_ms)

    # -- stopping

    def stop(self) -> None:
        """Begin a clean stop; of a server that is not ready yet, end its start."""
        self.stopping.set()
        self._starting.cancel()

    async def _finish(self) -> None:
        """Settle what is in flight, then write a clean end, so that the next start has nothing to recover. Past the bound,
        or without room, the next start recovers instead."""
        with trio.move_on_after(self.settings.shutdown_timeout_ms / 1000) as scope:
            try:
                await (self._settle() if self.readiness.ready else self._leave())
            except DiskFullError as error:
                events.warning(
                    "clean_end_failed",
                    "no room to write a clean end: {reason}; the next start will recover",
                    reason=str(error),
                )
        if scope.cancelled_caught:
            events.warning(
                "clean_end_timed_out",
                "not everything was settled in time; the next start will recover",
                timeout_ms=self.settings.shutdown_timeout_ms,
            )

    async def _settle(self) -> None:
        await self.commit.stop()
        self.groups.stop()
        replayed, accepted = self.positions.replayed_sequence, self.positions.accepted_sequence.value
        await self.replay_room.end_when_blocked(partial(replayed.reached, accepted))
        await self._settle_attempts()
        if replayed.value < accepted:
            raise DiskFullError(self.replay_room.text)
        await self.checkpointing.write(clean=True)
        self.handlers.close()
        self.segments_ahead.drop()
        await self.local_broker.close()
        if self._attempts_settled():
            self.opened.sequences.close_clean()

    async def _leave(self) -> None:
        """A stop in the middle of a start: there is nothing to write down but what was delivered meanwhile."""
        events.warning(
            "stopped_before_ready",
            "stopped before it was ready ({reason}); the next start begins again",
            reason=self.readiness.reason,
        )
        if self.readiness.stage == Stage.DELIVERING:
            self.groups.stop()
            await self._settle_attempts()

    async def _settle_attempts(self) -> None:
        while any(group.running for group in self.residency.groups.values()):
            await self.clock.sleep_ms(5)
        await self.recorder.flush()
        await self.broker_commit.durable()

    def _attempts_settled(self) -> bool:
        """Whether no attempt has an unknown result; otherwise the next start must take the end for a crash, and ask."""
        attempted = self.opened.attempted
        if any(day.start_ms < attempted.due_before_ms for day in self.opened.days.draining()):
            return False  # what a crash took from its minutes waits in the file of the day
        return not attempted.any_unknown and not any(True for _ in self.book.incomplete_before(attempted.due_before_ms))

    def close(self) -> None:
        """Close all files."""
        if self.is_open:
            self.opened.close()
