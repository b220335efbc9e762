"""What a running server may take over from a configuration, and what it refuses by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayserver.config.reloading import changes
from delayserver.config.settings import GroupSettings, NodeSettings, RouteSettings, Settings
from delayserver.config.toml_file import ConfigError, check_settings


def settings(*weights: int) -> Settings:
    nodes = tuple(NodeSettings(f"n:{number}", weight) for number, weight in enumerate(weights, 1))
    return Settings(groups=(GroupSettings("east", nodes),), routes=(RouteSettings("*", ("east",)),))


def test_a_sentence_names_each_weight_that_differs() -> None:
    assert changes(settings(1, 2, 3), settings(1, 0, 4)) == [
        "group east: the weight of n:2 is 0, was 2, so it is drained",
        "group east: the weight of n:3 is 4, was 3",
    ]
    assert changes(settings(1, 2), settings(1, 2)) == []


def test_a_sentence_names_each_group_node_and_route_that_comes_or_goes() -> None:
    west = GroupSettings("west", (NodeSettings("w:1", 2), NodeSettings("w:2")))
    before = settings(1, 2)
    after = replace(
        settings(1),
        groups=(west, *settings(1).groups),
        routes=(RouteSettings("a.*", ("west", "east")), RouteSettings("*", ("east",))),
    )
    assert changes(before, after) == [
        "group west is new: w:1 with the weight 2, w:2 with the weight 1",
        "group east: n:2 is removed",
        "the routes are a.* to west or east, * to east, were * to east",
        "subjects without a route go to west, went to east",
    ]
    assert changes(after, before) == [
        "group west is removed",
        "group east: n:2 is new, with the weight 2",
        "the routes are * to east, were a.* to west or east, * to east",
        "subjects without a route go to east, went to west",
    ]


def test_a_reload_names_all_settings_that_cannot_change_at_once() -> None:
    before, after = settings(1, 1), settings(1, 5)
    after = replace(after, storage=replace(after.storage, window_ms=30_000, durability="os"), shutdown_timeout_ms=1)
    with pytest.raises(ConfigError) as raised:
        changes(before, after)
    for name in ("storage.window_ms", "storage.durability", "shutdown_timeout_ms"):
        assert name in str(raised.value)


def test_a_group_without_a_node_that_takes_messages_is_no_configuration() -> None:
    check_settings(settings(0, 1))
    with pytest.raises(ConfigError, match="all nodes of 'east' have the weight 0"):
        check_settings(settings(0, 0))


def test_a_group_that_has_a_node_twice_is_no_configuration() -> None:
    twice = GroupSettings("east", (NodeSettings("n:1"), NodeSettings("n:2"), NodeSettings("n:1")))
    with pytest.raises(ConfigError, match="'east' has 'n:1' twice"):
        check_settings(replace(settings(1), groups=(twice,)))
