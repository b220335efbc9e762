"""The operation `route`: the nodes of a broker group, so that a consumer can pull from all of them."""

from __future__ import annotations

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import NotRouted, PublishedElsewhere
from delayserver.protocol.schema.node_routes import AskRoute, Node, Route
from delayserver.runtime.clock import Clock
from delayserver.state.memory.node_health import DRAINING, UP
from delayserver.state.memory.routes import Routes


class Routing:
    """Finds the nodes of a group. Only the front knows the address at which a client reaches the node of this process."""

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

    def route(self, asked: AskRoute) -> Route:
        """The group of a name, or the first group of a subject's route. A subject that matches no pattern goes to the first
        of all groups. Raises NotRouted."""
        group = self._group_of(asked.subject) if asked.subject is not None else self._group(asked.group)
        return self._route(group, asked.order_key)

    def require_here(self, subject: str) -> None:
        """Raises PublishedElsewhere if the first group of the subject's route has no node in this process."""
        nodes = self._nodes(self._group_of(subject))
        if all(not node.here and node.address not in self._own_addresses for node in nodes):
            there = ", ".join([node.address for node in nodes])
            raise PublishedElsewhere(f"messages of {shown(subject)} are stored by {there}; publish there, or send")

    def _group_of(self, subject: str) -> BrokerGroup:
        route = self._routes.match(subject)
        return self._group(route.groups[0] if route is not None else self._groups.first.name)

    def _group(self, name: str | None) -> BrokerGroup:
        group = next((group for group in self._groups if group.name == name), None)
        if group is None:
            raise NotRouted(f"there is no broker group {shown(name)}")
        return group

    def _route(self, group: BrokerGroup, order_key: str | None) -> Route:
        """The configuration sees to it that consumers can pull from all nodes of a group, or from none."""
        if not all(node.capabilities.consumable for node in group.nodes):
            there = ", ".join([node.target.address for node in group.nodes])
            raise NotRouted(f"broker group {shown(group.name)} delivers to {there}: consumers cannot pull from there")
        key_node = None if order_key is None else group.node_of_key(order_key.encode()).target.address
        return Route(group.name, self._nodes(group), key_node)

    def _nodes(self, group: BrokerGroup) -> list[Node]:
        nodes = []
        now_ms, monotonic_us = self._clock.now_ms(), self._clock.monotonic_us()
        for node in group.nodes:
            health, here = node.health, node.capabilities.here
            state = DRAINING if not health.weight else UP if here else health.state
            since_ms = now_ms - (monotonic_us - health.since_us) // 1000
            nodes.append(Node(node.target.address, health.weight, state, since_ms, here))
        return nodes
