"""Builds the broker of this server: `broker/`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.redelivery_policy import RedeliveryPolicy
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.broker_reads import BrokerReads
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.publishing import Publishing
from delayserver.broker.service.pulls import PullService
from delayserver.broker.service.shared_broker import SharedBroker
from delayserver.config.settings import redelivery_kept_ms
from delayserver.config.units import parse_delay_levels
from delayserver.runtime.clock import Clock
from delayserver.runtime.workers import Workers
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.receive_parts import ReceiveParts
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts
from delayserver.startup.directory_opening import find_lost_broker
from delayserver.startup.written_records import written_records
from delayserver.state.shard.standing import Standing
from delayserver.state.windows.window_book import WindowBook
from store.errors import StoreError
from store.logs.message_log import MessageLog
from store.records.batches import KIND_KEPT
from store.records.segment import FILE_HEADER_BYTES
from store.shared.payload import version_needed
from store.tables.days import DayTable


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The broker, and the services over it. `shared` is None in a single server."""

    core: Broker
    broker_commit: BrokerCommit
    pulls: PullService
    local_broker: LocalBroker
    publishing: Publishing
    shared: SharedBroker | None


def build_broker(
    ground: Ground, state: StateParts, upkeep: UpkeepParts, receive: ReceiveParts, cluster: ClusterParts | None
) -> BrokerParts:
    """Opens the broker's files, which are the last: takes sequences then. Raises StoreError; the files are closed then."""
    opened, runtime, storage = ground.opened, ground.runtime, ground.settings.storage
    path = ground.path("broker")
    begun = cluster is not None and ground.files.log.end > FILE_HEADER_BYTES
    lost = None if begun else find_lost_broker(ground.outside.doors.fs, path, ground.names)
    if lost is not None:
        runtime.damage.report(lost)
    core = Broker.open(
        ground.outside.doors.fs,
        path,
        opened.directory.server_id,
        runtime.clock.now_us(),
        _limits(ground),
        upkeep.kept_room,
        runtime.clock.monotonic_us(),
        patient=ground.patient,
        shared=cluster is not None,
        begun=begun,
    )
    try:
        # All files are open: from here on the start is not refused, and sequences may be taken.
        opened.sequences.extend()
    except StoreError:
        core.abandon()
        raise
    shared = None
    if cluster is None:
        settle_doubts(core, opened.files.log)
    else:
        positions, propose = state.positions, cluster.proposing.propose
        is_over = partial(_is_over, state.book, opened.files.days, runtime.clock)
        gives_up = partial(_has_kept, cluster.standing)
        shared = SharedBroker(core, propose, positions.replayed, positions.durable, gives_up, is_over, runtime)
        # A publish waits for the log, never for a sync of its own.
        storage = replace(storage, durability="sync", inline_sync_bytes_max=0)
    commit = BrokerCommit(core, opened.believable, runtime, shared)
    of_core, rows_max = core.state, ground.pacing.pulled_rows_max
    reads = BrokerReads(of_core.files.reads, runtime)
    pulls = PullService(core.consuming, of_core.groups, of_core.limits, reads, runtime, rows_max)
    local = LocalBroker(core, commit, reads, pulls, runtime)
    publishing = Publishing(
        local,
        receive.sequences,
        opened.directory.server_id,
        storage,
        receive.commit.refuse_from_now,
        runtime,
    )
    return BrokerParts(core, commit, pulls, local, publishing, shared)


def settle_doubts(core: Broker, log: MessageLog) -> None:
    """Find out which redeliveries were written before the last process ended. Reads the disk, before anything is handed
    out."""
    doubts_from = core.in_doubt.first_offset()
    if doubts_from is not None:
        core.in_doubt.settle(written_records(log, doubts_from))


async def settle_doubts_of_primary(core: Broker, log: MessageLog, workers: Workers) -> None:
    """As `settle_doubts`, about the last primary. Only message_log is read in a thread: tasks of a standby use the broker
    meanwhile."""
    doubts_from = core.in_doubt.first_offset()
    if doubts_from is not None:
        search = core.in_doubt.search(written_records(log, doubts_from))
        core.in_doubt.settle_written(await workers.run(search))


def _has_kept(standing: Standing) -> bool:
    return standing.barrier.value >= version_needed(KIND_KEPT, 1)


def _is_over(book: WindowBook, days: DayTable, clock: Clock, start_ms: int) -> bool:
    passed = start_ms <= clock.now_ms() - book.window_ms and start_ms < days.fine_until_ms
    # A window of the primary may be a part of a whole day here.
    return passed and book.is_settled(days.start_of(start_ms, book.window_ms)) and not days.is_draining(start_ms)


def _limits(ground: Ground) -> BrokerLimits:
    settings = ground.settings
    limits = settings.broker
    return BrokerLimits(
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
        read_ahead_bytes=ground.pacing.read_ahead_bytes,
    )
