"""The readers of the sections of `status`. Each knows the few parts that it reads. `protocol/figures.py` has the fields."""

from __future__ import annotations

from collections.abc import Iterable

from delayserver.broker.service.broker import Broker
from delayserver.config.settings import Settings
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.load.loader import Loader
from delayserver.operations.figures.member_reader import MemberReader
from delayserver.operations.groups.consuming import Consuming
from delayserver.operations.nodes.server_identity import Identity
from delayserver.operations.nodes.servers import Servers
from delayserver.operations.nodes.snapshots import Snapshots
from delayserver.protocol.errors import DuplicateServerId
from delayserver.protocol.figures import (
    BalanceStatus,
    BrokerStatus,
    ClockStatus,
    DiskStatus,
    EventLoopStatus,
    GroupStatus,
    NodeStatus,
    ProcessStatus,
    ProgressStatus,
    WheelStatus,
    WindowsStatus,
)
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.clock import Clock
from delayserver.runtime.log_appender import LogAppender
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.watchdog import Watchdog
from delayserver.state.counts.balance import Balance
from delayserver.state.counts.latency import Lateness
from delayserver.state.counts.redeliveries import Redeliveries
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.node_health import DRAINING
from delayserver.state.memory.residency import Residency
from delayserver.state.positions.positions import Positions
from delayserver.state.positions.readiness import Readiness
from delayserver.state.windows.window_book import WindowBook
from delayserver.upkeep.checkpointing import Checkpointing
from delayserver.upkeep.housekeeping import Housekeeping
from delayserver.upkeep.retention import Retention
from store.logs.dispatch_log import DispatchLog
from store.logs.schedule_log import ScheduleLog
from store.tables.names import SUBJECT, TAG, Names

# Sentences about damage in a reply, the first ones. Later ones usually have the same cause.
DAMAGES_TOLD_MAX = 100

# How a message may end.
ENDS = (
    Outcome.DELIVERED, Outcome.CANCELLED, Outcome.DEAD_LETTERED, Outcome.EXPIRED, Outcome.DEDUPLICATED,
    Outcome.ROLLED_BACK,
)  # fmt: skip


# -- the process


class ProcessReader:
    """Reads the progress of the start, the clocks and the event loop."""

    def __init__(
        self,
        identity: Identity,
        readiness: Readiness,
        believable: BelievableClock,
        housekeeping: Housekeeping,
        watchdog: Watchdog,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._watchdog = watchdog
        self._readiness = readiness
        self._believable = believable
        self._housekeeping = housekeeping
        self._clock = clock
        self._started_us = clock.monotonic_us()

    def process(self) -> ProcessStatus:
        """The section of this moment."""
        return ProcessStatus(
            ready=self._readiness.serves,
            waits_for=self._readiness.reason,
            role=self._identity.role,
            server_id=self._identity.server_id,
            version=self._identity.version,
            uptime_s=(self._clock.monotonic_us() - self._started_us) // 1_000_000,
        )

    def event_loop(self) -> EventLoopStatus:
        """The section of this moment."""
        watchdog = self._watchdog
        return EventLoopStatus(watchdog.longest_ms, watchdog.longest_of_minute_ms, watchdog.long_stalls)

    def clock(self) -> ClockStatus:
        """The section of this moment."""
        return ClockStatus(
            server_us=self._clock.now_us(),
            believable_us=self._believable.now_us(),
            steps=self._housekeeping.clock_steps,
            step_last_ms=self._housekeeping.clock_step_last_ms,
        )


# -- the balance


class BalanceReader:
    """Counts messages by rule 3."""

    def __init__(self, balance: Balance, decided: Decided, lateness: Lateness) -> None:
        self._balance = balance
        self._decided = decided
        self._lateness = lateness

    def read(self) -> BalanceStatus:
        """The balance of this moment."""
        totals = self._decided.durable_totals.tolist()
        ends = {outcome.label: totals[outcome] for outcome in ENDS}
        accepted, lateness = self._balance.accepted, self._lateness.whole()
        return BalanceStatus(
            accepted=accepted,
            **ends,
            pending=accepted - sum(ends.values()),
            replaced=self._balance.replaced,
            early=lateness.early,
            lateness_ms=lateness.summary_ms(),
        )


# -- the storage


class DiskReader:
    """Reads the disk and the open files. `damage` is the report of all damage so far."""

    def __init__(
        self,
        settings: Settings,
        schedule: ScheduleLog,
        dispatch: DispatchLog,
        names: Names,
        housekeeping: Housekeeping,
        runtime: Runtime,
    ) -> None:
        self._settings = settings
        self._schedule = schedule
        self._dispatch = dispatch
        self._names = names
        self._housekeeping = housekeeping
        self.damage = runtime.damage

    def read(self) -> DiskStatus:
        """The section of this moment."""
        return DiskStatus(
            durability=self._settings.storage.durability,
            disk_free_bytes=self._housekeeping.free_bytes,
            disk_low=self._housekeeping.disk_low,
            disk_errors=self.damage.refused,
            disk_error_last=self.damage.refused_last,
            open_files=self._schedule.open_file_count() + self._dispatch.open_file_count(),
            subjects=self._names.count(SUBJECT),
            subjects_max=self._settings.message.subjects_max,
            tags=self._names.count(TAG),
            tags_max=self._settings.message.tags_max,
        )


class ProgressReader:
    """Reads the progress of the stages."""

    def __init__(
        self,
        appender: LogAppender,
        positions: Positions,
        decided: Decided,
        checkpointing: Checkpointing,
        snapshots: Snapshots,
        member: MemberReader | None,
    ) -> None:
        """`member` is None for a server without a cluster."""
        self._appender = appender
        self._positions = positions
        self._decided = decided
        self._checkpointing = checkpointing
        self._snapshots = snapshots
        self._member = member

    def read(self) -> ProgressStatus:
        """The section of this moment."""
        return ProgressStatus(
            replay_lag_bytes=self._positions.lag_bytes,
            group_commits=self._appender.groups,
            commit_us_max=self._appender.sync_us_max,
            checkpoints=self._checkpointing.written,
            outcomes_waiting=self._decided.rows_waiting,
            last_backup_ms=self._snapshots.last_backup_ms,
            log_position=None if self._member is None else self._member.log_position,
        )


class WindowsReader:
    """Reads the incomplete windows, and the windows that retention has closed."""

    def __init__(self, book: WindowBook, retention: Retention, clock: Clock) -> None:
        self._book = book
        self._retention = retention
        self._clock = clock

    def read(self) -> WindowsStatus:
        """The section of this moment."""
        return WindowsStatus(
            oldest_due_ms=self._retention.oldest_due_ms(),
            retired_windows_ahead=self._retention.closed.count_from(self._clock.now_ms()),
            oldest_incomplete_window_ms=self._book.oldest_incomplete_ms,
            incomplete_windows=len(self._book),
        )


# -- deliveries


class DeliveryReader:
    """Reads the wheel and the broker groups."""

    def __init__(self, residency: Residency, loader: Loader, groups: Iterable[BrokerGroup], clock: Clock) -> None:
        self._residency = residency
        self._loader = loader
        self._groups = groups
        self._clock = clock

    def wheel(self) -> WheelStatus:
        """The section of this moment."""
        wheel, evictions = self._residency.wheel, self._residency.evictions
        return WheelStatus(len(wheel), wheel.nbytes, wheel.next_due_ms(), self._loader.loads, evictions)

    def groups(self) -> dict[str, GroupStatus]:
        """The groups by their names."""
        now_us = self._clock.monotonic_us()
        return {group.name: _group(group, now_us) for group in self._groups}

    def duplicates(self) -> list[str]:
        """One sentence for each node that reports another process with this server's id."""
        targets = {node.target.address: node.target for group in self._groups for node in group.nodes}
        return [
            f"another process with the id of this server delivers to {address}: stop one of the two"
            for address, target in targets.items()
            if target.problem == DuplicateServerId.error
        ]


def _group(group: BrokerGroup, now_us: int) -> GroupStatus:
    rows, counters = group.rows, group.rows.counters
    return GroupStatus(
        waiting=len(rows.queue),
        in_flight=rows.rows_in_flight,
        delivered=counters.delivered,
        attempts_failed=counters.attempts_failed,
        duplicates_suppressed=counters.duplicates_suppressed,
        failed_over=counters.failed_over,
        uncertain_failovers=counters.uncertain_failovers,
        maybe_delivered_twice=counters.maybe_delivered_twice,
        dropped_from_memory=counters.dropped_from_memory,
        nodes=[
            NodeStatus(
                address=node.target.address,
                weight=node.health.weight,
                state=node.health.state if node.health.weight else DRAINING,
                circuit="open" if node.health.open_circuit else "closed",
                retry_in_ms=max(node.health.closed_until_us - now_us, 0) // 1000,
                failures=node.health.failures_total,
                last_error=node.health.last_error,
                problem=node.target.problem,
            )
            for node in group.nodes
        ],
    )


# -- the broker


class BrokerReader:
    """Reads the broker of this process, its consumers, and the servers that deliver to it."""

    def __init__(self, broker: Broker, consuming: Consuming, redeliveries: Redeliveries, servers: Servers) -> None:
        self._broker = broker
        self._redeliveries = redeliveries
        self._consuming = consuming
        self._servers = servers

    def read(self) -> BrokerStatus:
        """The counts of the broker, and those of its consumers."""
        own = self._broker.status() | {"damages": self._broker.state.damages.texts[:DAMAGES_TOLD_MAX]}
        return BrokerStatus(
            **own,
            waiting_pulls=self._consuming.waiting_pulls,
            given_back=self._consuming.given_back,
            redeliveries_waiting=self._redeliveries.total(),
            duplicate_servers=self._servers.duplicates(),
        )

    def duplicates(self) -> list[str]:
        """One sentence for each server id with which two processes deliver to this node now."""
        return [
            f"two processes with the server id {found['server_id']} deliver to this one: stop one of the two"
            for found in self._servers.duplicates()
            if found["now"]
        ]
