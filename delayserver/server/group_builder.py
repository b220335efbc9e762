"""Builds the broker groups, at the start and when a reload brings a new one."""

from __future__ import annotations

from collections.abc import Sequence

from delayserver.config.pacing import Pacing
from delayserver.config.settings import DispatchSettings
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_node import BrokerNode
from delayserver.dispatch.internal_node import InternalNode
from delayserver.dispatch.message_reader import MessageReader
from delayserver.dispatch.verdicts import Verdicts
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.latency import LatencyHistogram, Lateness
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.memory.attempt_horizon import Horizon
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.due_records import DueRecords
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.internal_groups import InternalGroup
from delayserver.state.memory.node_health import NodeHealth
from delayserver.state.memory.queueing import Queueing
from delayserver.targets.kinds import Capabilities
from delayserver.targets.targets import Targets


class GroupBuilder:
    """Knows what all groups share."""

    def __init__(
        self,
        files: Files,
        attempts: tuple[Attempted, Horizon],
        rows: tuple[Queueing, Decided],
        targets: Targets,
        pacing: Pacing,
        runtime: Runtime,
    ) -> None:
        self._files = files
        self._attempted, self._horizon = attempts
        self._queueing, self._decided = rows
        self._targets = targets
        self._pacing = pacing
        self._runtime = runtime
        self.lateness = Lateness()

    def build(self, rows: GroupRows) -> BrokerGroup:
        """The group whose rows these are."""
        settings = self._pacing.dispatch
        lateness = self.lateness.of(rows.name)
        verdicts = self._verdicts(rows, lateness, settings)
        reader = MessageReader(
            self._files.schedule, self._files.server_id, self._pacing.read_early_bytes_max, self._runtime
        )
        nodes = self.nodes(rows.nodes)
        return BrokerGroup(rows, nodes, reader, self._queueing, verdicts, settings, self._runtime)

    def internal(
        self, group: InternalGroup, rows: GroupRows, due: DueRecords, settings: DispatchSettings
    ) -> BrokerGroup:
        """An internal group, whose due records go into the queue `due`."""
        verdicts = self._verdicts(rows, LatencyHistogram(), settings)
        ahead_bytes_max = group.records_max * group.record_bytes
        reader = MessageReader(self._files.schedule, self._files.server_id, ahead_bytes_max, self._runtime)
        nodes = [
            BrokerNode(InternalNode(health.address, due), health, Capabilities(idempotent=True))
            for health in rows.nodes
        ]
        return BrokerGroup(rows, nodes, reader, self._queueing, verdicts, settings, self._runtime)

    def _verdicts(self, rows: GroupRows, lateness: LatencyHistogram, settings: DispatchSettings) -> Verdicts:
        return Verdicts(rows, self._decided, self._attempted, self._horizon, lateness, settings, self._runtime)

    def nodes(self, health: Sequence[NodeHealth]) -> list[BrokerNode]:
        """The nodes whose health this is."""
        return [
            BrokerNode(self._targets.at(each.address), each, self._targets.capabilities(each.address))
            for each in health
        ]
