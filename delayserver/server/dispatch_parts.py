"""Builds the stage that delivers due messages to targets: `dispatch/` and `targets/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.dispatch.complete_windows import CompleteWindows
from delayserver.dispatch.dispatcher import Dispatcher
from delayserver.dispatch.fail_over import FailOver
from delayserver.dispatch.node_probes import NodeProbes
from delayserver.operations.nodes.reload import Reload
from delayserver.server.broker_parts import BrokerParts
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.group_builder import GroupBuilder
from delayserver.server.group_memory import options_by_address
from delayserver.server.state_parts import StateParts
from delayserver.server.topology import Topology
from delayserver.state.counts.latency import Lateness
from delayserver.state.memory.order_gate import OrderGate
from delayserver.targets.embedded.embedded_node import EmbeddedNode
from delayserver.targets.kinds import ServerIdentity, Surroundings
from delayserver.targets.targets import Targets


@dataclass(frozen=True, slots=True)
class DispatchParts:
    """The stage of dispatch."""

    targets: Targets
    lateness: Lateness
    groups: BrokerGroups
    topology: Topology
    reload: Reload
    dispatcher: Dispatcher
    complete_windows: CompleteWindows


def build_dispatch(
    ground: Ground, state: StateParts, broker: BrokerParts, cluster: ClusterParts | None
) -> DispatchParts:
    """`broker` is the target of scheme `embedded`. A member of a cluster attempts what its beats allow."""
    opened, outside, pacing, runtime = ground.opened, ground.outside, ground.pacing, ground.runtime
    residency, memory = state.residency, state.group_memory
    targets = _targets(ground, state, broker, cluster)
    horizon = opened.attempts.horizon if cluster is None else cluster.horizon
    attempts = opened.attempts.attempted, horizon
    builder = GroupBuilder(opened.files, attempts, (state.queueing, state.decided), targets, pacing, runtime)
    groups = BrokerGroups(
        [builder.build(rows) for rows in residency.groups.values() if not rows.is_internal],
        [
            builder.internal(group, residency.groups[group.code], due, memory.internal_settings(group))
            for group, due in state.due.items()
        ],
        FailOver(state.queueing, runtime),
        NodeProbes(runtime),
    )
    topology = Topology(memory, residency, groups, builder, targets, runtime)
    gate = OrderGate(state.windows, state.positions)
    return DispatchParts(
        targets=targets,
        lateness=builder.lateness,
        groups=groups,
        topology=topology,
        reload=Reload(topology, outside.servers, outside.given, outside.reread, runtime, follows=cluster is not None),
        dispatcher=Dispatcher(groups, state.wheel, state.queueing, state.overflow, horizon, gate, runtime),
        complete_windows=CompleteWindows(state.book, opened.files.days, groups, runtime),
    )


def _targets(ground: Ground, state: StateParts, broker: BrokerParts, cluster: ClusterParts | None) -> Targets:
    settings, server_id = ground.settings, ground.opened.directory.server_id
    embedded = EmbeddedNode(broker.local_broker, server_id, state.balance.subjects.redeliveries)
    surroundings = Surroundings(
        embedded,
        ServerIdentity(ground.server_id, ground.outside.instance, settings.listen.server_secret),
        ground.names.name,
        ground.outside.doors.connect,
        settings.listen.frame_bytes_max,
        settings.dispatch.deliver_timeout_ms,
        ground.runtime,
        None if cluster is None else cluster.leading.is_held,
    )
    return Targets(options_by_address(settings.groups), surroundings)
