"""The operation `route`: the nodes of a broker group, so that a consumer can pull from all of them."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import NotRouted, PublishedElsewhere
from delayserver.runtime.clock import Clock
from delayserver.state.memory.node_health import DRAINING, UP
from delayserver.state.memory.routes import Routes


@dataclass(frozen=True, slots=True)
class RouteNode:
    """One node of a group: its address, its weight in the group's deliveries, and what this server knows of it, since when
    (milliseconds since 1970). `here`: it is the broker of this process. Only the front knows the address at which a client
    reaches it."""

    address: str
    weight: int
    state: str
    since_ms: int
    here: bool


@dataclass(frozen=True, slots=True)
class RoutedGroup:
    """A group and its nodes. `key_node`: the address of the node that gets the next messages of the order key that was asked
    for; None if none was."""

    group: str
    nodes: list[RouteNode]
    key_node: str | None = None


class Routing:
    """Finds the nodes of a group."""

    def __init__(self, routes: Routes, groups: BrokerGroups, own_addresses: frozenset[str], clock: Clock) -> None:
        """`own_addresses`: those that this process listens on. A group may name one instead of the embedded node."""
        self._routes = routes
        self._groups = groups
        self._own_addresses = own_addresses
        self._clock = clock
        self._all_here, self._version = False, -1

    @property
    def all_here(self) -> bool:
        """Whether each group has the embedded node of this process."""
        if self._version != self._groups.version:
            self._version = self._groups.version
            self._all_here = all(any(node.capabilities.here for node in group.nodes) for group in self._groups)
        return self._all_here

    def of_subject(self, subject: str, order_key: str | None = None) -> RoutedGroup:
        """The first group of a subject's route. A subject that matches no pattern goes to the first of all groups. Raises
        NotRouted."""
        return self._route(self._group_of(subject), order_key)

    def require_here(self, subject: str) -> None:
        """Raises PublishedElsewhere if the first group of the subject's route has no node in this process."""
        nodes = self._nodes(self._group_of(subject))
        if all(not node.here and node.address not in self._own_addresses for node in nodes):
            there = ", ".join([node.address for node in nodes])
            raise PublishedElsewhere(f"messages of {shown(subject)} are stored by {there}; publish there, or send")

    def of_group(self, name: str, order_key: str | None = None) -> RoutedGroup:
        """The group of this name. Raises NotRouted."""
        return self._route(self._group(name), order_key)

    def _group_of(self, subject: str) -> BrokerGroup:
        route = self._routes.match(subject)
        return self._group(route.groups[0] if route is not None else self._groups.first.name)

    def _group(self, name: str) -> BrokerGroup:
        group = next((group for group in self._groups if group.name == name), None)
        if group is None:
            raise NotRouted(f"there is no broker group {shown(name)}")
        return group

    def _route(self, group: BrokerGroup, order_key: str | None) -> RoutedGroup:
        """The configuration sees to it that consumers can pull from all nodes of a group, or from none."""
        if not all(node.capabilities.consumable for node in group.nodes):
            there = ", ".join([node.target.address for node in group.nodes])
            raise NotRouted(f"broker group {shown(group.name)} delivers to {there}: consumers cannot pull from there")
        key_node = None if order_key is None else group.node_of_key(order_key.encode()).target.address
        return RoutedGroup(group.name, self._nodes(group), key_node)

    def _nodes(self, group: BrokerGroup) -> list[RouteNode]:
        nodes = []
        now_ms, monotonic_us = self._clock.now_ms(), self._clock.monotonic_us()
        for node in group.nodes:
            health, here = node.health, node.capabilities.here
            state = DRAINING if not health.weight else UP if here else health.state
            since_ms = now_ms - (monotonic_us - health.since_us) // 1000
            nodes.append(RouteNode(node.target.address, health.weight, state, since_ms, here))
        return nodes
