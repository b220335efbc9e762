"""The parts of a new configuration that a running server takes over: broker groups, their nodes, weights and routes. All
else needs a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from delayserver.config.settings import GroupSettings, RouteSettings, Settings
from delayserver.config.toml_file import ConfigError

_TAKEN_OVER = ("groups", "routes")


def changes(before: Settings, after: Settings) -> list[str]:
    """The changes from one configuration to another, both valid, a sentence each. Raises ConfigError, which names every
    setting that cannot change while the server runs; then nothing may be changed."""
    fixed = [*_differences(before, after), *_other_options(before, after)]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: cannot change while the server runs, only groups, their nodes and routes can; nothing "
            "was changed. Restart the server to change the rest"
        )
    old, new = ({group.name: group for group in settings.groups} for settings in (before, after))
    return [
        *[f"group {name} is removed" for name in old if name not in new],
        *[f"group {name} is new: {_nodes(group)}" for name, group in new.items() if name not in old],
        *[said for name, group in new.items() if name in old for said in _node_changes(old[name], group)],
        *_route_changes(before, after),
    ]


def _other_options(before: Settings, after: Settings) -> list[str]:
    """A node that stays keeps its target, and so its options."""
    was = {node.address: node.options for group in before.groups for node in group.nodes}
    now = {node.address: node.options for group in after.groups for node in group.nodes}
    return [f"groups.nodes.options of {each}" for each in was if now.get(each, was[each]) != was[each]]


def _node_changes(old: GroupSettings, new: GroupSettings) -> Iterator[str]:
    was = {node.address: node.weight for node in old.nodes}
    now = {node.address: node.weight for node in new.nodes}
    for address in was:
        if address not in now:
            yield f"group {new.name}: {address} is removed"
    for address, weight in now.items():
        if address not in was:
            yield f"group {new.name}: {address} is new, with the weight {weight}"
        elif was[address] != weight:
            drained = ", so it is drained" if not weight else ""
            yield f"group {new.name}: the weight of {address} is {weight}, was {was[address]}{drained}"


def _route_changes(before: Settings, after: Settings) -> Iterator[str]:
    if before.routes != after.routes:
        yield f"the routes are {_routes(after.routes)}, were {_routes(before.routes)}"
    first, was = after.groups[0].name, before.groups[0].name
    if first != was:
        yield f"subjects without a route go to {first}, went to {was}"


def _nodes(group: GroupSettings) -> str:
    return ", ".join([f"{node.address} with the weight {node.weight}" for node in group.nodes])


def _routes(routes: tuple[RouteSettings, ...]) -> str:
    return ", ".join([f"{route.pattern} to {' or '.join(route.groups)}" for route in routes])


def _differences(before: Settings, after: Settings) -> list[str]:
    """Full names of the settings that differ and are not taken over."""
    found = []
    for field in dataclasses.fields(before):
        old: Any = getattr(before, field.name)
        new: Any = getattr(after, field.name)
        if field.name in _TAKEN_OVER or old == new:
            continue
        if dataclasses.is_dataclass(old):
            inner = dataclasses.fields(old)
            found += [
                f"{field.name}.{each.name}" for each in inner if getattr(old, each.name) != getattr(new, each.name)
            ]
        else:
            found.append(field.name)
    return found
