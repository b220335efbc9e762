"""Builds the parts of a server and hands each what it needs. The one place that knows all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    redelivery_kept_ms,
)
from delayserver.config.units import parse_delay_levels
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.dispatch.complete_windows import CompleteWindows
from delayserver.dispatch.dispatcher import Dispatcher
from delayserver.dispatch.fail_over import FailOver
from delayserver.dispatch.node_probes import NodeProbes
from delayserver.front.front import SERVER
from delayserver.load.loader import Loader
from delayserver.load.refill import Refill
from delayserver.load.window_reader import WindowReader
from delayserver.names.name_desk import NameDesk
from delayserver.net.transport import Connect
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
from delayserver.operations.groups.consumer_groups import ConsumerGroups
from delayserver.operations.groups.consuming import Consuming
from delayserver.operations.groups.dead_letters import DeadLetterOperations
from delayserver.operations.groups.filtering import FilterCompiler
from delayserver.operations.groups.finding import Finding
from delayserver.operations.groups.first_messages import FirstMessages
from delayserver.operations.groups.group_filters import GroupFilters
from delayserver.operations.groups.policies import Policies
from delayserver.operations.groups.queue_reads import QueueReads
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.operations.groups.waiting_keys import WaitingKeyOperations
from delayserver.operations.messages.cancel import Cancel
from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.check_backs import CheckBacks, Pipeline
from delayserver.operations.messages.contents import Contents
from delayserver.operations.messages.due_task import DueTask
from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.lookup import Lookup
from delayserver.operations.messages.message_states import MessageStates
from delayserver.operations.messages.named_messages import Naming
from delayserver.operations.messages.open_transactions import OpenTransactions
from delayserver.operations.messages.repeats import Repeats
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
from delayserver.operations.sending.prepare import Prepare, TermsDesk
from delayserver.operations.sending.publish import Publish
from delayserver.operations.sending.redispatch import Redispatch
from delayserver.operations.sending.redispatch_reading import RedispatchReader
from delayserver.operations.sending.send import Send
from delayserver.outcomes.dispatch_log_writer import DispatchLogWriter
from delayserver.outcomes.outcome_recorder import OutcomeRecorder
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Intake
from delayserver.receive.message_log_writer import MessageLogWriter
from delayserver.replay.day_tier import DayTier
from delayserver.replay.opened_messages import OpenedMessages
from delayserver.replay.placing import Placing
from delayserver.replay.publisher import Publisher
from delayserver.replay.replayer import Replayer
from delayserver.replay.round_counts import RoundCounts
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.replay.rounds import Rounds
from delayserver.replay.rows_to_memory import RowsToMemory
from delayserver.runtime.marks import Bell
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.watchdog import Watchdog
from delayserver.server.group_builder import GroupBuilder
from delayserver.server.group_memory import GroupMemory, has_one_node, options_by_address
from delayserver.server.topology import Topology
from delayserver.startup.opening import Opened, count_accepted, find_lost_broker
from delayserver.startup.pending_subjects import pending_before
from delayserver.startup.written_records import written_records
from delayserver.state.connections.connections import Connections
from delayserver.state.counts.balance import ANY_TIME_MS, Balance
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.due_records import DueRecords
from delayserver.state.memory.fallbacks import Fallbacks
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.internal_groups import INTERNAL_GROUPS, TIMERS
from delayserver.state.memory.order_gate import OrderGate
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.queueing import Queueing
from delayserver.state.memory.read_back import ReadBack
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.routes import Routes
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from delayserver.state.positions.readiness import Readiness
from delayserver.state.windows.drains import Drains
from delayserver.state.windows.retired import Retired
from delayserver.state.windows.window_book import WindowBook
from delayserver.state.windows.windows import Windows
from delayserver.targets.embedded.embedded_node import EmbeddedNode
from delayserver.targets.kinds import ServerIdentity, Surroundings
from delayserver.targets.targets import Targets
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
from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.records.transaction_timer import TIMERS_SUBJECT
from store.tables.names import OWN
from wheel.cursors import LoadCursors


@dataclass(frozen=True, slots=True)
class Outside:
    """The inputs of a server that exist before its data directory is open. `instance` names this process. `given` are
    the settings as the operator gave them; `reread` reads them again, for `reload`."""

    role: str
    instance: str
    fs: FileSystem
    connect: Connect
    given: Settings
    reread: Reread | None
    readiness: Readiness
    replay_room: RoomWait
    servers: Servers
    own_tokens: OwnTokens
    connections: Connections
    watchdog: Watchdog


class Parts:
    """All parts of a server on an open data directory, from the state up to the operations. It starts nothing."""

    def __init__(
        self, opened: Opened, outside: Outside, settings: Settings, runtime: Runtime, *, patient: bool = False
    ) -> None:
        """May run in any thread. Raises StoreError and its kinds. `patient` is that of `DelayServer.open`."""
        self._patient = patient
        self.opened = opened
        self.files = opened.files
        self._outside = outside
        self._settings = settings
        self._pacing = Pacing.of(settings)
        self._runtime = runtime
        self._clock = runtime.clock
        self._build_state(opened)
        self._build_pipeline(opened)
        self._build_decisions(opened)
        self._build_dispatch(opened)
        self._build_front(opened)

    def _build_state(self, opened: Opened) -> None:
        """The state of the server: `state/`."""
        settings, storage, files = self._settings, self._settings.storage, opened.files
        self.book = WindowBook(files.schedule, files.dispatch, files.days, storage.window_ms)
        self.book.open()
        self.retired = Retired(files.ledger, self.book)
        self.cursors = LoadCursors(storage.window_ms, self.book.start_of)
        drained = opened.found.checkpoint.coarse_days
        positions = dict(zip(drained.start_ms.tolist(), drained.drain_offset.tolist(), strict=True))
        self.drains = Drains(files.days, files.schedule, positions)
        self.windows = Windows(self.book, self.cursors, self.retired, self.drains)
        self.positions = Positions(
            durable=files.log.synced,
            accepted_sequence=opened.sequences.next - 1,
            replayed=opened.found.checkpoint.replay_offset if not opened.found.lost else files.log.first,
            replayed_sequence=opened.found.checkpoint.replayed_sequence,
        )
        self.gathering = Gathering(storage, self._clock)
        self.log_queue = LogQueue(self.positions, self._clock)
        self.balance = Balance()
        self.decided = Decided(
            files.dispatch,
            files.days,
            self.positions,
            self.balance.subjects,
            settings.dispatch.outcome_rows_max,
            storage.window_ms,
            self._runtime,
        )
        self.progress = Progress(self.positions, self.balance, self.decided, self.windows, opened.believable)
        self._build_memory(opened)

    def _build_memory(self, opened: Opened) -> None:
        """The holders of index rows: a wheel, a queue and the health of its nodes for each broker group."""
        settings = self._settings
        self.group_memory = memory = GroupMemory(settings, self._pacing, opened.files.names, self._runtime)
        codes = memory.codes(settings.groups)
        self.routes = Routes(settings.routes, codes, opened.files.names)
        wheels, backlog = ({code: memory.wheel() for code in codes.values()} for _ in range(2))
        self.wheel = GroupWheels(
            wheels, backlog, self.routes, memory.start_ms, opened.attempts.horizon.earlier, memory.wheel
        )
        rows = {
            codes[group.name]: memory.rows(
                group, codes[group.name], alone=has_one_node(group, settings.groups, settings.routes)
            )
            for group in settings.groups
        }
        rows |= {group.code: memory.internal_rows(group) for group in INTERNAL_GROUPS}
        timeout_ms = settings.dispatch.deliver_timeout_ms
        self.due = {group: DueRecords(group.batches_max, timeout_ms) for group in INTERNAL_GROUPS}
        self.residency = Residency(self.wheel, rows, self.windows, self.decided, opened.attempts.attempted)
        self.overflow = Overflow(self.residency, self.windows, settings.wheel, self._runtime)
        fallbacks = Fallbacks(self.residency, self.overflow)
        self.queueing = Queueing(self.residency, self.overflow, fallbacks, self._pacing.slice_rows, self._runtime)
        self.read_back = ReadBack(self.residency, self.overflow, fallbacks, self.queueing, self.windows, self._runtime)

    def _build_pipeline(self, opened: Opened) -> None:
        """The stages from the log to memory, and upkeep."""
        settings, storage, files = self._settings, self._settings.storage, opened.files
        self.kept_room = KeptRoom(
            self._outside.fs, opened.directory.path, self.positions, self.drains, storage.free_bytes_min
        )
        accepted = AcceptedLog(self.log_queue, self.balance)
        self.log_writer = MessageLogWriter(
            files.log, opened.sequences, self.gathering, accepted, self.positions, storage, self._runtime
        )
        self.commit = GroupCommit(
            self.gathering, opened.sequences, self.log_writer, accepted, self.positions, storage, self._runtime
        )
        self.placing = Placing(
            files,
            self.windows,
            self.positions,
            self._outside.replay_room,
            storage,
            self._runtime,
            count_skipped=not opened.found.lost,
        )
        self.round_outcomes = RoundOutcomes(self.decided, self.windows, self._runtime)
        self.rows_to_memory = RowsToMemory(
            self.windows,
            self.residency,
            self.overflow,
            self.decided,
            self.round_outcomes,
            settings.wheel,
            self._runtime,
        )
        self.publisher = Publisher(
            # Counts come first: a message is counted before an outcome of it can be. Outcomes come last: those of copies
            # and cancels close messages that this round may have opened, and the holds of cancels end behind them.
            # An index over all messages stands between.
            (
                RoundCounts(self.balance, self.windows, self.round_outcomes),
                OpenedMessages(self.decided, self.round_outcomes, self._runtime),
                self.rows_to_memory,
                self.round_outcomes,
            ),
            self.positions,
        )
        rounds = Rounds(self.placing, self.publisher, self.rows_to_memory)
        self.tier = DayTier(files, self.windows, self.decided, rounds, self.log_queue, storage, self._runtime)
        self.tier.open(patient=self._patient)
        self.replayer = Replayer(files, self.windows, rounds, self.tier, self.log_queue, self._runtime)
        self.window_reader = WindowReader(files.schedule, self.book, opened.attempts.attempted, self._runtime)
        self.loader = Loader(
            self.window_reader,
            self.windows,
            self.residency,
            self.overflow,
            self.decided,
            settings.wheel,
            self._runtime,
        )
        self.refill = Refill(
            self.window_reader,
            self.residency,
            self.read_back,
            self.book,
            self.decided,
            self.positions,
            self._runtime,
        )
        self.outcome_writer = DispatchLogWriter(files.dispatch, self.decided, self._runtime)
        self.recorder = OutcomeRecorder(
            self.decided,
            self.outcome_writer,
            self.book,
            settings.dispatch,
            self._pacing.outcomes_late_ms_max,
            self._runtime,
        )
        self._build_upkeep(opened)
        self._count_totals(opened)

    def _build_upkeep(self, opened: Opened) -> None:
        storage, files = self._settings.storage, opened.files
        coming = OnTheirWay(self.gathering, files.log, self.positions, storage.window_ms, self._runtime)
        self.retention = Retention(files, self.windows, coming, self.decided, storage, opened.believable, self._runtime)
        self.retention.finish_interrupted()
        self.log_retention = LogRetention(files.log, self.positions, storage, self._runtime)
        self.segments_ahead = SegmentsAhead(files.log, self.positions, self.kept_room, storage, self._runtime)
        checkpoint = CheckpointFile(
            self._outside.fs,
            f"{opened.directory.path}/checkpoint",
            opened.sequences,
            opened.attempts.horizon,
            None if opened.found.lost else opened.found.checkpoint,
        )
        self.subject_counting = SubjectCounting(
            files, self.windows, self.decided, self.positions, self.balance.subjects, self._runtime
        )
        self.checkpointing = Checkpointing(
            checkpoint, files, self.progress, opened.attempts.horizon, storage, self._runtime
        )

    def _count_totals(self, opened: Opened) -> None:
        totals = self.retention.retired_totals() - self.tier.moved_already
        for key in opened.files.dispatch.keys():
            totals += opened.files.dispatch.counts(key)
        self.decided.count_durable(totals)
        pending = pending_before(opened.files, opened.found, created=opened.directory.created)
        self.balance.subjects.redeliveries.begin(
            opened.sequences.next - 1, frozenset() if pending is None else pending.ended
        )
        if pending is not None:
            self.balance.subjects.found(pending.subjects, pending.redeliveries)
        counted = opened.found.checkpoint.totals
        # A checkpoint of an older program, or a lost one, does not say it. Then timers may lie anywhere.
        has_timers = opened.files.names.code(OWN, TIMERS_SUBJECT) != 0
        self.balance.timed(counted.get("timers_until_ms", ANY_TIME_MS if has_timers else 0))
        if opened.found.lost:
            self.balance.place(*count_accepted(opened.files))
        else:
            self.balance.place(*[counted.get(name, 0) for name in ("accepted", "internal", "replaced")])

    def _build_dispatch(self, opened: Opened) -> None:
        settings = self._settings
        server_id = opened.directory.server_id
        limits = settings.broker
        lost = find_lost_broker(self._outside.fs, f"{opened.directory.path}/broker", opened.files.names)
        if lost is not None:
            self._runtime.damage.report(lost)
        self.broker = Broker.open(
            self._outside.fs,
            f"{opened.directory.path}/broker",
            server_id,
            self._clock.now_us(),
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
                read_ahead_bytes=self._pacing.read_ahead_bytes,
            ),
            self.kept_room,
            self._clock.monotonic_us(),
            patient=self._patient,
        )
        try:
            # All files are open: from here on the start is not refused, and sequences may be taken.
            opened.sequences.extend()
        except StoreError:
            self.broker.abandon()
            raise
        self._end_doubts(opened)
        self.broker_commit = BrokerCommit(self.broker, opened.believable, self._runtime)
        self.broker_reads = BrokerReads(self.broker.state.files.reads, self._runtime)
        self.pulls = PullService(
            self.broker.consuming,
            self.broker.state.groups,
            self.broker.state.limits,
            self.broker_reads,
            self._runtime,
            self._pacing.pulled_rows_max,
        )
        self.local_broker = LocalBroker(self.broker, self.broker_commit, self.broker_reads, self.pulls, self._runtime)
        self.publishing = Publishing(
            self.local_broker, opened.sequences, server_id, settings.storage, self.commit.storage_failed, self._runtime
        )
        self.targets = Targets(
            options_by_address(settings.groups),
            Surroundings(
                EmbeddedNode(self.local_broker, server_id, self.balance.subjects.redeliveries),
                ServerIdentity(f"{server_id:012x}", self._outside.instance, settings.listen.server_secret),
                opened.files.names.name,
                self._outside.connect,
                settings.listen.frame_bytes_max,
                self._runtime,
            ),
        )
        builder = GroupBuilder(
            opened.files,
            opened.attempts.attempted,
            (self.queueing, self.decided),
            self.targets,
            self._pacing,
            self._runtime,
        )
        self.lateness = builder.lateness
        groups = [builder.build(rows) for rows in self.residency.groups.values() if not rows.is_internal]
        internal = [
            builder.internal(group, self.residency.groups[group.code], due, self.group_memory.internal_settings(group))
            for group, due in self.due.items()
        ]
        fail_over = FailOver(self.queueing, self._runtime)
        self.groups = BrokerGroups(groups, internal, fail_over, NodeProbes(self._runtime))
        self.topology = Topology(self.group_memory, self.residency, self.groups, builder, self.targets, self._runtime)
        self.reload = Reload(
            self.topology, self._outside.servers, self._outside.given, self._outside.reread, self._runtime
        )
        gate = OrderGate(self.windows, self.positions)
        self.dispatcher = Dispatcher(
            self.groups, self.wheel, self.queueing, self.overflow, opened.attempts.horizon, gate, self._runtime
        )
        self.complete_windows = CompleteWindows(self.book, opened.files.days, self.groups, self._runtime)

    def _end_doubts(self, opened: Opened) -> None:
        """Finds out which redeliveries were written before the last process ended."""
        start = self.broker.in_doubt.first_offset()
        if start is not None:
            self.broker.in_doubt.settle(written_records(opened.files.log, start))

    def _build_decisions(self, opened: Opened) -> None:
        """Builds the parts that accept messages, and those that end messages before their delivery."""
        settings = self._settings
        self.names = NameDesk(opened.files.names, settings.message, self.commit.storage_failed)
        self.intake = Intake(
            settings.message,
            f"{opened.directory.server_id:012x}",
            self.names,
            self.retention.oldest_due_ms,
            self.retention.closed,
            self._runtime,
        )
        self.locator = Locator(opened.files.schedule, opened.files.days, settings.storage.window_ms, self._runtime)
        self.cancellation = Cancellation(
            self.commit,
            self.positions,
            self.locator,
            self.decided,
            self.residency,
            self.windows,
            self._runtime,
        )
        self.rescheduling = Rescheduling(self.cancellation, self.locator, self.intake, self._runtime)
        self.check_backs = CheckBacks(
            opened.directory.server_id,
            opened.files.names,
            self.cancellation,
            self.rescheduling,
            Pipeline(self.commit, self.decided, self.kept_room, self.locator),
            self._runtime,
        )
        self.timers = DueTask(self.due[TIMERS], self.check_backs)

    def _build_front(self, opened: Opened) -> None:
        settings = self._settings
        self.states = MessageStates(
            self.cancellation, self.decided, opened.files, self.residency, self.windows, self._runtime
        )
        self.redelivery = Redelivery(
            self.local_broker,
            self.commit,
            self.kept_room,
            opened.sequences,
            opened.files.names,
            self.balance.subjects.redeliveries,
            self._runtime,
        )
        filters = FilterCompiler(self.names, self._runtime)
        self.policies = Policies(self.broker, filters, self.names, self._runtime)
        self.first_messages = FirstMessages(self.local_broker, self.names, settings.broker, self._runtime)
        self.consuming = Consuming(
            self.local_broker,
            self.redelivery,
            GroupFilters(self.local_broker, filters, self.policies),
            self.names,
            self.first_messages,
            self._runtime,
        )
        self.clock_stepped = Bell()
        self.housekeeping = Housekeeping(
            self._outside.fs,
            opened.directory.path,
            opened.files.dispatch.reserve,
            self.kept_room,
            (opened.attempts.horizon.earlier, self.residency.loadable, self.clock_stepped),
            settings.storage,
            self._runtime,
        )
        waiting = WaitingCounts(self.balance, opened.files.names, self._clock)
        directory = opened.directory
        self.tokens = TokenBook(
            self._outside.fs, directory.path, directory.server_id, self._outside.own_tokens, waiting, self._runtime
        )
        self.identity = Identity(f"{opened.directory.server_id:012x}", self._outside.role)
        self.status = Status(
            ProcessReader(
                self.identity,
                self._outside.readiness,
                opened.believable,
                self.housekeeping,
                self._outside.watchdog,
                self._clock,
            ),
            BalanceReader(self.balance, self.decided, self.lateness),
            StorageReader(
                DiskReader(
                    settings,
                    opened.files.schedule,
                    opened.files.dispatch,
                    opened.files.names,
                    self.housekeeping,
                    self._runtime,
                ),
                ProgressReader(self.log_writer, self.positions, self.decided, self.checkpointing),
                WindowsReader(self.book, self.retention, self._clock),
            ),
            DeliveryReader(self.residency, self.loader, self.groups, self._clock),
            BrokerReader(self.broker, self.consuming, self.balance.subjects.redeliveries, self._outside.servers),
            self._outside.connections,
        )
        self.metrics = Metrics(
            self.status,
            self.lateness,
            QueuesReader(
                settings,
                Receiving(self._outside.connections, self.gathering, self.log_queue),
                opened.files,
                self.residency,
                self.decided,
                Serving(self.broker, self.consuming),
            ),
            GroupsReader(self.local_broker, self.balance.subjects.redeliveries, opened.files.names),
            PendingSubjects(self.balance, opened.files.names),
            self._runtime,
        )

    def operations(self, addresses: Iterable[tuple[str, int]]) -> Operations:
        """All operations, for a front at these addresses."""
        opened = self.opened
        names = opened.files.names
        own_addresses = frozenset(f"{host}:{port}" for host, port in addresses)
        routing = Routing(self.routes, self.groups, own_addresses, self._clock)
        reads = QueueReads(self.local_broker, self.names, self.first_messages, self._runtime)
        return Operations(
            identity=self.identity,
            status=self.status,
            metrics=self.metrics,
            routing=routing,
            servers=self._outside.servers,
            tokens=self.tokens,
            consuming=self.consuming,
            subjects=Subjects(opened.files.names),
            publish=Publish(self.identity.server_id, self._admission(), self.intake, routing, self.publishing, names),
            groups=ConsumerGroups(self.local_broker, self.redelivery, self.names),
            reads=reads,
            broadcasting=Broadcasting(self.local_broker, reads, self.names, self._runtime),
            finding=Finding(self.local_broker, reads, self.names),
            dead_letters=DeadLetterOperations(self.local_broker, self.redelivery, self.names, self._clock),
            waiting_keys=WaitingKeyOperations(self.local_broker, self.redelivery, self.names, self._clock),
            policies=self.policies,
            delivering=Delivering(
                self.local_broker,
                self._outside.servers,
                self.names,
                self.commit,
                self._settings.broker.server_clock_ahead_ms_max,
                self._clock,
            ),
            delay=self._build_delay_operations(opened) if self._outside.role == SERVER else None,
        )

    def _admission(self) -> Admission:
        return Admission(self._outside.readiness, self.housekeeping, self._settings.storage.free_bytes_min)

    def _build_delay_operations(self, opened: Opened) -> DelayOperations:
        server_id, names, intake = self.identity.server_id, opened.files.names, self.intake
        admission = self._admission()
        naming = Naming(server_id, intake, self.names, self.cancellation)
        reader = RedispatchReader(opened.files.schedule, opened.files.dispatch, self.decided, self._runtime)
        send = Send(server_id, admission, intake, self.commit, names)
        terms = TermsDesk(self.names, self._settings.transactions, self._settings.message.delay_ms_max)
        return DelayOperations(
            send=send,
            cancel=Cancel(naming, self.cancellation),
            reschedule=Reschedule(admission, naming, intake, self.rescheduling),
            repeats=Repeats(self.cancellation, self.states),
            lookup=Lookup(
                server_id,
                naming,
                self.states,
                Contents(server_id, self.locator, names, self._runtime),
                self.local_broker.recently,
                names,
            ),
            redispatch=Redispatch(
                opened.files, self.book, reader, self.commit, admission, self._outside.servers, self._runtime
            ),
            reload=self.reload,
            pending=Pending(opened.files, self.windows, self.balance),
            prepare=Prepare(send, admission, intake, self.commit, terms, self._clock),
            open_transactions=OpenTransactions(
                opened.files,
                self.windows,
                (self.positions, self.balance),
                self.decided,
                (self.cancellation, self.locator),
                self._runtime,
            ),
            transactions=Transactions(
                admission, naming, intake, self.rescheduling, self.cancellation, self.states, self._runtime
            ),
        )
