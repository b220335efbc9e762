"""What a running server may take over from a configuration, and what it refuses by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayserver.config.reloading import WeightChange, weight_changes
from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings, Settings
from delayserver.config.toml_file import ConfigError, check_settings


def settings(*weights: int) -> Settings:
    nodes = tuple(NodeSettings(f"n:{number}", weight) for number, weight in enumerate(weights, 1))
    return Settings(groups=(GroupSettings("east", nodes),), routes=(RouteSettings("*", ("east",)),))


def test_only_the_weights_that_differ_are_changes() -> None:
    changes = weight_changes(settings(1, 2, 3), settings(1, 0, 4))
    assert changes == [WeightChange("east", "n:2", 2, 0), WeightChange("east", "n:3", 3, 4)]
    assert str(changes[0]) == "group east: the weight of n:2 is 0, was 2, so it is drained"
    assert weight_changes(settings(1, 2), settings(1, 2)) == []


def test_whatever_else_differs_is_named_all_at_once() -> None:
    before = settings(1, 1)
    after = settings(1, 5)
    after = replace(
        after,
        storage=replace(after.storage, window_ms=30_000, durability="os"),
        routes=(RouteSettings("a", ("east",)),),
        shutdown_timeout_ms=1,
    )
    with pytest.raises(ConfigError) as raised:
        weight_changes(before, after)
    for name in ("storage.window_ms", "storage.durability", "routes", "shutdown_timeout_ms"):
        assert name in str(raised.value)
    with pytest.raises(ConfigError, match=r"groups\.nodes of east: cannot change while the server runs"):
        weight_changes(settings(1, 1), settings(1, 1, 1))
    with pytest.raises(ConfigError, match=r"groups\.name"):
        weight_changes(settings(1), replace(settings(1), groups=(GroupSettings("west"),)))


def test_a_group_without_a_node_that_takes_messages_is_no_configuration() -> None:
    check_settings(settings(0, 1))
    with pytest.raises(ConfigError, match="all nodes of 'east' have the weight 0"):
        check_settings(settings(0, 0))
