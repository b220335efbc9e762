"""Builds what reads the figures of a server: `operations/figures/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.operations.figures.member_reader import MemberReader, Outlook
from delayserver.operations.figures.metrics import GroupsReader, Metrics
from delayserver.operations.figures.pending import PendingBySubject
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
from delayserver.operations.nodes.server_identity import Identity
from delayserver.operations.nodes.snapshots import Snapshots
from delayserver.server.broker_parts import BrokerParts
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.dispatch_parts import DispatchParts
from delayserver.server.ground import Ground
from delayserver.server.group_parts import GroupParts
from delayserver.server.load_parts import LoadParts
from delayserver.server.receive_parts import ReceiveParts
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts
from delayserver.state.shard.cluster_map import ClusterMap


@dataclass(frozen=True, slots=True)
class FigureParts:
    """The readers of figures, who the server is, and the snapshots of its directory."""

    identity: Identity
    status: Status
    metrics: Metrics
    snapshots: Snapshots


def build_figures(
    ground: Ground,
    state: StateParts,
    load: LoadParts,
    upkeep: UpkeepParts,
    receive: ReceiveParts,
    broker: BrokerParts,
    dispatch: DispatchParts,
    groups: GroupParts,
    cluster: ClusterParts | None,
) -> FigureParts:
    """One reader a section of `status`, and one a family of `/metrics`."""
    opened, files, outside = ground.opened, ground.files, ground.outside
    settings, runtime, clock = ground.settings, ground.runtime, ground.runtime.clock
    housekeeping, redeliveries = upkeep.housekeeping, state.balance.subjects.redeliveries
    logs = files.log, *broker.core.state.files.logs
    snapshots = Snapshots(
        ground.outside.doors.fs,
        ground.opened.directory.path,
        lambda: {path: length for log in logs for path, length in log.lengths.items()},
        outside.servers,
        runtime,
    )
    member = None
    shards = ClusterMap() if outside.membership is None else outside.membership.map
    if cluster is not None and state.digest is not None:
        member = MemberReader(
            cluster.standing,
            cluster.leading,
            cluster.proposals,
            Outlook(cluster.health, shards.fronts, runtime.damage),
            state.digest,
            clock,
        )
    identity = Identity(ground.server_id, outside.role, shards)
    status = Status(
        ProcessReader(identity, outside.readiness, opened.believable, housekeeping, outside.watchdog, clock),
        BalanceReader(state.balance, state.decided, dispatch.lateness),
        StorageReader(
            DiskReader(settings, files.schedule, files.dispatch, files.names, housekeeping, runtime),
            ProgressReader(
                receive.appender,
                state.positions,
                state.decided,
                upkeep.checkpointing,
                snapshots,
                member,
            ),
            WindowsReader(state.book, upkeep.retention, clock),
            member,
        ),
        DeliveryReader(state.residency, load.loader, dispatch.groups, clock),
        BrokerReader(broker.core, groups.consuming, redeliveries, outside.servers),
        outside.connections,
    )
    metrics = Metrics(
        status,
        dispatch.lateness,
        QueuesReader(
            settings,
            Receiving(outside.connections, state.gathering, state.log_queue),
            files,
            state.residency,
            state.decided,
            Serving(broker.core, groups.consuming),
        ),
        GroupsReader(broker.local_broker, redeliveries, files.names),
        PendingBySubject(state.balance, files.names),
        runtime,
    )
    return FigureParts(identity, status, metrics, snapshots)
