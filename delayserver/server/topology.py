"""Gives a running server other broker groups, nodes, weights and routes.

Everything that can fail comes first. Then one step of the event loop changes all: from it on no message goes the old way,
but for the batches that nodes have already. The change is over when those are settled, and what left is gone.

If a known subject goes another way, everything that waits leaves memory: wheels, queues, and the notes of spilled
windows. The cursors go back, and a load brings each message for the groups of now. Memory is emptied, not sorted
anew, because a restart goes the same way, and so the way is proven. It costs the time of one load, once a reload. A
message in flight stays; if its attempt fails, it goes to a group that its route leads to.

The last released key of a group that left stays known, because `was_released` asks for it. A route keeps its
number as long as the process lives, because spilled windows are noted by it. The pacing does not change: a server
that starts with one group takes larger steps than one with several, until its restart. A node of weight 0 gets no
batch, and does not count when its group decides whether it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from delayserver.config.settings import GroupSettings, NodeSettings, Settings
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.dispatch.broker_node import BrokerNode
from delayserver.runtime.runtime import Runtime
from delayserver.server.group_builder import GroupBuilder
from delayserver.server.group_memory import GroupMemory, options_by_address
from delayserver.state.memory.node_health import NodeHealth
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.routes import Routes
from delayserver.targets.targets import Targets


class Topology:
    """Changes it. One change at a time."""

    def __init__(
        self,
        memory: GroupMemory,
        residency: Residency,
        groups: BrokerGroups,
        builder: GroupBuilder,
        targets: Targets,
        runtime: Runtime,
    ) -> None:
        self._memory = memory
        self._residency = residency
        self._groups = groups
        self._builder = builder
        self._targets = targets
        self._workers = runtime.workers

    async def change(self, after: Settings) -> None:
        """Take over the groups and routes of settings that are valid. Returns when nothing of the old ones is in use.

        Raises TableFullError, DiskFullError: nothing was changed."""
        codes = self._memory.codes(after.groups)
        wheel = self._residency.wheel
        # It looks at every name there is, so it may take a second.
        matched = partial(Routes, after.routes, codes, wheel.routes.names, wheel.routes)
        routes = await self._workers.run(matched)
        self._targets.learn(options_by_address(after.groups))
        before = {group.name: group for group in self._groups}
        kept = [before[group.name] if group.name in before else self._add(group, codes) for group in after.groups]
        leaving = [group for name, group in before.items() if name not in codes]
        left = [
            node for group, settings in zip(kept, after.groups, strict=True) for node in self._renew(group, settings)
        ]
        # Those that leave are in no route; they stay here until they hold nothing.
        self._groups.change([*kept, *leaving])
        for group in (*kept, *leaving):
            group.rows.may_be_elsewhere()
        if wheel.routes.adopt(routes):
            self._residency.reroute()
        for group in leaving:
            group.stop()
        while any(group.rows.running for group in leaving) or any(node.health.in_flight for node in left):
            for group in leaving:
                await group.rows.ended.reached(group.rows.begun)
            for node in left:
                await node.health.settled.reached(node.health.taken)
        self._remove(kept, leaving)

    def _add(self, settings: GroupSettings, codes: dict[str, int]) -> BrokerGroup:
        code = codes[settings.name]
        rows = self._memory.rows(settings, code, alone=False)
        self._residency.wheel.add_group(code, self._memory.wheel(), self._memory.wheel())
        self._residency.add_group(rows)
        return self._builder.build(rows)

    def _renew(self, group: BrokerGroup, settings: GroupSettings) -> list[BrokerNode]:
        """Give a group the nodes of the settings; returns those that leave."""
        known = {node.address: node for node in group.rows.nodes}
        health = [self._health(known, node) for node in settings.nodes]
        left = [node for node in group.nodes if node.health not in health]
        if left or len(health) > len(known):
            staying = {node.health.address: node for node in group.nodes}
            new = self._builder.nodes([each for each in health if each.address not in known])
            staying.update({node.health.address: node for node in new})
            group.change_nodes([staying[each.address] for each in health])
        return left

    def _health(self, known: dict[str, NodeHealth], node: NodeSettings) -> NodeHealth:
        health = known.get(node.address)
        if health is None:
            return self._memory.health(node)
        if health.weight != node.weight:
            health.weigh(node.weight)
        return health

    def _remove(self, kept: Sequence[BrokerGroup], leaving: Sequence[BrokerGroup]) -> None:
        self._groups.change([*kept])
        for group in leaving:
            self._residency.remove_group(group.rows)
            self._residency.wheel.remove_group(group.rows.code)
        self._targets.keep({node.health.address for group in kept for node in group.nodes})
