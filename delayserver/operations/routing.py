"""The operation `route`: the nodes of a broker group, so that a consumer can pull from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.targets.embedded_node import EMBEDDED
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import NotRouted
from delayserver.state.routes import Routes


@dataclass(frozen=True, slots=True)
class RouteNode:
    """One node of a group: its address, and its weight in the group's deliveries."""

    address: str
    weight: int


@dataclass(frozen=True, slots=True)
class Route:
    """A group and its nodes."""

    group: str
    nodes: list[RouteNode]


class Routing:
    """Finds the nodes of a group."""

    def __init__(self, routes: Routes, groups: Sequence[BrokerGroup], own_address: str) -> None:
        """`own_address`: the address at which clients reach this process and its embedded node."""
        self._routes = routes
        self._groups = groups
        self._own_address = own_address

    def of_subject(self, subject: str) -> Route:
        """The first group of a subject's route. A subject that matches no pattern goes to the first of all groups."""
        route = self._routes.match(subject)
        return self.of_group(route.groups[0] if route is not None else self._groups[0].name)

    def of_group(self, name: str) -> Route:
        """The group of this name. Raises NotRouted."""
        group = next((group for group in self._groups if group.name == name), None)
        if group is None:
            raise NotRouted(f"there is no broker group {shown(name)}")
        nodes = []
        for node in group.nodes:
            address = node.broker.address
            nodes.append(RouteNode(self._own_address if address == EMBEDDED else address, node.health.weight))
        return Route(group.name, nodes)
