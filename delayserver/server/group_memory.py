"""The memory of each broker group: a queue, two wheels, and the health of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delayserver.config.pacing import Pacing
from delayserver.config.settings import DispatchSettings, GroupSettings, NodeSettings, RouteSettings, Settings
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.internal_groups import InternalGroup
from delayserver.state.memory.node_health import NodeHealth
from delayserver.state.memory.rows import ROW
from delayserver.targets.node_options import NodeOptions
from store.tables.names import BROKER_GROUP, Names
from wheel.hashed_wheel import HashedWheel

# The task that takes due records has a time of its own, behind which it refuses a batch.
NO_TIMEOUT_MS = 1 << 53


class GroupMemory:
    """Makes it."""

    def __init__(self, settings: Settings, pacing: Pacing, names: Names, runtime: Runtime) -> None:
        self._wheel = settings.wheel
        self._dispatch = pacing.dispatch
        self._names = names
        self._clock = runtime.clock
        self._chance = runtime.chance.random
        self._own = settings.dispatch

    def codes(self, groups: Sequence[GroupSettings]) -> dict[str, int]:
        """The codes of groups by their names; those of new groups are durable then. Raises what `Names.intern` raises."""
        names = [group.name for group in groups]
        return dict(zip(names, self._names.intern(BROKER_GROUP, names).tolist(), strict=True))

    def health(self, node: NodeSettings) -> NodeHealth:
        """The health of a node that was not tried yet."""
        return NodeHealth(node.address, node.weight, self._dispatch, self._chance, self._clock.monotonic_us())

    def rows(self, group: GroupSettings, code: int, *, alone: bool) -> GroupRows:
        """A queue without rows. `alone`: see `GroupRows`."""
        health = [self.health(node) for node in group.nodes]
        return GroupRows(group.name, code, health, self._dispatch, self._clock, alone=alone)

    def internal_settings(self, group: InternalGroup) -> DispatchSettings:
        """How the records of an internal group are dispatched."""
        return replace(
            self._own,
            workers=group.batches_max,
            batch_messages_max=group.records_max,
            dead_letter_attempts=0,
            deliver_timeout_ms=NO_TIMEOUT_MS,
        )

    def internal_rows(self, group: InternalGroup) -> GroupRows:
        """The rows of an internal group, whose only node is the queue of a task of this server."""
        settings = self.internal_settings(group)
        health = NodeHealth(group.subject, 1, settings, self._chance)
        return GroupRows(group.subject, group.code, [health], settings, self._clock, alone=True)

    def wheel(self) -> HashedWheel:
        """A wheel without rows, from now on."""
        wheel = self._wheel
        return HashedWheel(self.start_ms, wheel.tick_ms, wheel.slots, payload_dtype=ROW)

    @property
    def start_ms(self) -> int:
        """Where a wheel begins that is made now."""
        return self._clock.now_ms() // self._wheel.tick_ms * self._wheel.tick_ms


def options_by_address(groups: Sequence[GroupSettings]) -> dict[str, NodeOptions]:
    """The options of all nodes by their addresses."""
    return {node.address: node.options for group in groups for node in group.nodes}


def has_one_node(group: GroupSettings, groups: Sequence[GroupSettings], routes: Sequence[RouteSettings]) -> bool:
    """Whether there is one node on all routes of a group."""
    partners = {name for route in routes if group.name in route.groups for name in route.groups} | {group.name}
    return len({node.address for other in groups if other.name in partners for node in other.nodes}) == 1
