"""The operator of a simulated server: changes groups, nodes, weights and routes in its configuration, and has it reload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings, Settings
from tests.simulation.client import Client, DelayServerError, Lost
from tests.simulation.host import Host

# What a refused configuration differs in, so that nothing of it may be taken over.
REFUSED_SHARE = 0.1
EXTRA = GroupSettings("extra", (NodeSettings(),))


class Operator:
    """Works on one server. A restart has the configuration of the first start."""

    def __init__(
        self, client: Client, host: Host, chance: Random, note: Callable[..., None], changed: Callable[[], None]
    ) -> None:
        """`changed` learns that messages may be late: memory is read anew."""
        self._client = client
        self._host = host
        self.chance = chance
        self._note = note
        self._changed = changed

    async def act(self) -> None:
        """Write a configuration, have it taken over or refused, and look at what the server says."""
        chance, host = self.chance, self._host
        if not host.alive or chance.random() < 0.3:
            return
        first = host.settings
        refused = chance.random() < REFUSED_SHARE
        groups, routes = changed(chance, first)
        host.file = replace(first, groups=groups, routes=routes)
        if refused:
            host.file = replace(host.file, shutdown_timeout_ms=first.shutdown_timeout_ms + 1)
        self._changed()
        try:
            changes = (await self._client.request("reload", {}))["changes"]
        except (Lost, DelayServerError) as error:
            self._note("operator", "no reload", why=str(error))
        else:
            assert not refused, f"taken over: {changes}"
            self._note("operator", "reload", of="; ".join(changes))
        self._changed()


def changed(chance: Random, first: Settings) -> tuple[tuple[GroupSettings, ...], tuple[RouteSettings, ...]]:
    """Other groups and routes: weights, a node less, a group less, one more group, another way for a subject."""
    groups, routes = list(first.groups), list(first.routes)
    if len(groups) > 1 and chance.random() < 0.5:
        gone = groups.pop(chance.randrange(1, len(groups))).name  # the nodes do not have all subjects
        left = [replace(route, groups=tuple(name for name in route.groups if name != gone)) for route in routes]
        routes = [route for route in left if route.groups]
    if chance.random() < 0.3:
        groups.insert(chance.randrange(len(groups) + 1), EXTRA)
        place = chance.randrange(len(routes) + 1)
        if place < len(routes):
            routes[place] = replace(routes[place], groups=(EXTRA.name, *routes[place].groups))
        else:
            routes.insert(0, RouteSettings(chance.choice(["remote.*", "bills.*", "*"]), (EXTRA.name,)))
    return tuple(_with_nodes(chance, group) for group in groups), tuple(routes)


def _with_nodes(chance: Random, group: GroupSettings) -> GroupSettings:
    nodes = list(group.nodes)
    if len(nodes) > 1 and chance.random() < 0.4:
        nodes.pop(chance.randrange(len(nodes)))
    weights = [chance.choice([0, 0, 1, 3]) for _ in nodes]
    weights[chance.randrange(len(weights))] = 1
    return GroupSettings(group.name, tuple(map(NodeSettings, [node.address for node in nodes], weights)))
