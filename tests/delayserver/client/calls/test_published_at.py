"""Where a client publishes: subjects spread over the nodes of a route, and keep their node while it works."""

from __future__ import annotations

from collections import Counter

import pytest

from delayserver.client import Node
from delayserver.client.calls.published_at import FAILED_MAX, SUBJECTS_MAX, PublishedAt
from delayserver.protocol.errors import PublishedElsewhere

SUBJECTS = [f"subject{number}" for number in range(300)]


def first(at: PublishedAt, subject: str, *nodes: Node) -> str:
    return at.choices(subject, nodes, "own:1")[0]


def test_subjects_spread_and_all_clients_agree() -> None:
    nodes = [Node(f"node{number}:1", 1, "up") for number in range(3)]
    one, other = PublishedAt(), PublishedAt()
    places = Counter(first(one, subject, *nodes) for subject in SUBJECTS)
    assert len(places) == 3 and min(places.values()) > 60
    for subject in SUBJECTS:
        assert one.choices(subject, nodes, "own:1") == other.choices(subject, nodes[::-1], "own:1")


def test_a_node_in_trouble_comes_behind_the_others() -> None:
    at = PublishedAt()
    up, down = Node("a:1", 1, "up"), Node("b:1", 1, "down")
    assert {first(at, subject, up, down) for subject in SUBJECTS} == {"a:1"}
    drained = Node("a:1", 0, "draining")
    assert {first(at, subject, drained, down) for subject in SUBJECTS} == {"b:1"}, "a drained node gets nothing new"
    assert at.choices("s", [drained], "own:1") == ["a:1"], "but for a group that has no other"
    nodes = Node("a:1", 1, "unknown"), Node("b:1", 1, "unknown")
    at.learn("s", "a:1")
    at.distrust("s", "a:1")
    assert at.get("s") is None
    assert {first(at, subject, *nodes) for subject in SUBJECTS} == {"b:1"}, "also those of other subjects"
    at.trust("a:1")
    assert {first(at, subject, *nodes) for subject in SUBJECTS} == {"a:1", "b:1"}


def test_what_is_remembered_has_a_bound() -> None:
    at = PublishedAt()
    for number in range(SUBJECTS_MAX + 1):
        at.learn(f"{number}", "a:1")
    assert at.get("0") is None and at.get(f"{SUBJECTS_MAX}") == "a:1"
    for number in range(FAILED_MAX + 1):
        at.distrust("s", f"{number}:1")
    node = Node("0:1", 1, "up"), Node("fresh:1", 1, "up")
    assert {first(at, subject, *node) for subject in SUBJECTS} == {"0:1", "fresh:1"}


def test_a_route_that_names_only_the_server_itself_is_an_error() -> None:
    with pytest.raises(PublishedElsewhere, match="no other node"):
        PublishedAt().choices("s", [Node("own:1", 1)], "own:1")
