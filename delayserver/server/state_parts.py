"""Builds the state of a server: `state/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delayserver.server.ground import Ground
from delayserver.server.group_memory import GroupMemory, has_one_node
from delayserver.state.counts.balance import Balance
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.due_records import DueRecords
from delayserver.state.memory.fallbacks import Fallbacks
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.internal_groups import INTERNAL_GROUPS, InternalGroup
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.queueing import Queueing
from delayserver.state.memory.read_back import ReadBack
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.routes import Routes
from delayserver.state.memory.schedule_timers import ScheduleTimers
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.digest import Digest
from delayserver.state.shard.shared_tables import SharedTables
from delayserver.state.windows.closed_windows import ClosedWindows
from delayserver.state.windows.drains import Drains
from delayserver.state.windows.retired import Retired
from delayserver.state.windows.window_book import WindowBook
from delayserver.state.windows.windows import Windows
from store.records.segment import FILE_HEADER_BYTES
from wheel.cursors import LoadCursors


@dataclass(frozen=True, slots=True)
class StateParts:
    """What the server knows."""

    windows: Windows
    positions: Positions
    gathering: Gathering
    log_queue: LogQueue
    accepted: AcceptedLog
    balance: Balance
    decided: Decided
    group_memory: GroupMemory
    due: Mapping[InternalGroup, DueRecords]
    residency: Residency
    overflow: Overflow
    queueing: Queueing
    read_back: ReadBack
    tables: SharedTables
    digest: Digest | None
    schedules: ScheduleTimers

    @property
    def book(self) -> WindowBook:
        """The incomplete windows."""
        return self.windows.book

    @property
    def wheel(self) -> GroupWheels:
        """The wheels of all groups."""
        return self.residency.wheel

    @property
    def routes(self) -> Routes:
        """Which groups a subject goes to."""
        return self.residency.wheel.routes


def build_state(ground: Ground) -> StateParts:
    """The codes of new groups are durable then. Raises StoreError and its kinds."""
    settings, opened, runtime = ground.settings, ground.opened, ground.runtime
    windows = _windows(ground)
    replayed_sequence = opened.found.checkpoint.replayed_sequence
    positions = Positions(
        durable=opened.files.log.synced,
        # No file reserves the sequences of a shard: the replay of message_log finds the last one.
        accepted_sequence=opened.sequences.next - 1 if ground.outside.membership is None else replayed_sequence,
        replayed=opened.found.checkpoint.replay_offset if not opened.found.lost else opened.files.log.first,
        replayed_sequence=replayed_sequence,
    )
    log_queue = LogQueue(positions, runtime.clock)
    balance = Balance()
    decided = Decided(
        opened.files.dispatch,
        opened.files.days,
        positions,
        balance.subjects,
        settings.dispatch.outcome_rows_max,
        settings.storage.window_ms,
        runtime,
    )
    memory = GroupMemory(settings, ground.pacing, ground.names, runtime)
    residency = _residency(ground, memory, windows, decided)
    overflow = Overflow(residency, windows, settings.wheel, runtime)
    fallbacks = Fallbacks(residency, overflow)
    queueing = Queueing(residency, overflow, fallbacks, ground.pacing.slice_rows, runtime)
    timeout_ms = settings.dispatch.deliver_timeout_ms
    gathering = Gathering(settings.storage, runtime.clock)
    return StateParts(
        windows=windows,
        positions=positions,
        gathering=gathering,
        log_queue=log_queue,
        accepted=AcceptedLog(log_queue, balance, gathering),
        balance=balance,
        decided=decided,
        group_memory=memory,
        due={group: DueRecords(group.batches_max, timeout_ms) for group in INTERNAL_GROUPS},
        residency=residency,
        overflow=overflow,
        queueing=queueing,
        tables=SharedTables(),
        schedules=ScheduleTimers(),
        digest=_digest(ground, log_queue),
        read_back=ReadBack(residency, overflow, fallbacks, queueing, windows, runtime),
    )


def _digest(ground: Ground, log_queue: LogQueue) -> Digest | None:
    if ground.outside.membership is None:
        return None
    found, log = ground.opened.found, ground.files.log
    begins = log_queue.positions.replayed.value <= FILE_HEADER_BYTES and log.first == FILE_HEADER_BYTES
    return Digest(log_queue, {} if found.lost else found.checkpoint.totals, whole=begins and not log.damages)


def _windows(ground: Ground) -> Windows:
    files, window_ms = ground.files, ground.settings.storage.window_ms
    book = WindowBook(files.schedule, files.dispatch, files.days, window_ms)
    book.open()
    drained = ground.opened.found.checkpoint.coarse_days
    drains = dict(zip(drained.start_ms.tolist(), drained.drain_offset.tolist(), strict=True))
    return Windows(
        book,
        LoadCursors(window_ms, book.start_of),
        Retired(files.ledger, book),
        ClosedWindows(files.ledger, window_ms),
        Drains(files.days, files.schedule, drains),
    )


def _residency(ground: Ground, memory: GroupMemory, windows: Windows, decided: Decided) -> Residency:
    """The holders of index rows: a wheel, a queue and the health of its nodes for each broker group."""
    settings, attempts = ground.settings, ground.opened.attempts
    codes = memory.codes(settings.groups)
    wheels, backlog = ({code: memory.wheel() for code in codes.values()} for _ in range(2))
    routes = Routes(settings.routes, codes, ground.names)
    wheel = GroupWheels(wheels, backlog, routes, memory.start_ms, attempts.horizon.earlier, memory.wheel)
    rows = {
        codes[group.name]: memory.rows(
            group, codes[group.name], alone=has_one_node(group, settings.groups, settings.routes)
        )
        for group in settings.groups
    }
    rows |= {group.code: memory.internal_rows(group) for group in INTERNAL_GROUPS}
    return Residency(wheel, rows, windows, decided, attempts.attempted)
