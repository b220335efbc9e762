"""What of a new configuration a running server may take over: the weights of nodes. Everything else needs a restart."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from delayserver.config.settings import GroupSettings, Settings
from delayserver.config.toml_file import ConfigError


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A node of a group gets another weight."""

    group: str
    address: str
    before: int
    weight: int

    def __str__(self) -> str:
        drained = ", so it is drained" if not self.weight else ""
        return f"group {self.group}: the weight of {self.address} is {self.weight}, was {self.before}{drained}"


def weight_changes(before: Settings, after: Settings) -> list[WeightChange]:
    """The changes from one configuration to another, both valid. Raises ConfigError, which names every setting that
    cannot change while the server runs; then nothing may be changed."""
    fixed = _differences(before, after)
    names = [group.name for group in before.groups]
    if names != [group.name for group in after.groups]:
        fixed.append("groups.name")
    else:
        for old, new in zip(before.groups, after.groups, strict=True):
            if _addresses(old) != _addresses(new):
                fixed.append(f"groups.nodes of {old.name}")
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: cannot change while the server runs, only weights of nodes can; nothing was changed. "
            "Restart the server to change the rest"
        )
    return [
        WeightChange(old.name, was.address, was.weight, now.weight)
        for old, new in zip(before.groups, after.groups, strict=True)
        for was, now in zip(old.nodes, new.nodes, strict=True)
        if was.weight != now.weight
    ]


def _addresses(group: GroupSettings) -> list[str]:
    return [node.address for node in group.nodes]


def _differences(before: Settings, after: Settings) -> list[str]:
    """Full names of the settings outside of `groups` that differ."""
    found = []
    for field in dataclasses.fields(before):
        old: Any = getattr(before, field.name)
        new: Any = getattr(after, field.name)
        if field.name == "groups" or old == new:
            continue
        if dataclasses.is_dataclass(old):
            inner = dataclasses.fields(old)
            found += [
                f"{field.name}.{each.name}" for each in inner if getattr(old, each.name) != getattr(new, each.name)
            ]
        else:
            found.append(field.name)
    return found
