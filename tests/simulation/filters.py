"""Filters of the workload: tag and properties of each message, and what a filter wants, by a number of the message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Seeds in which one more group consumes with a filter.
FILTERED_SHARE = 0.4
FILTERED_GROUP = "some"


@dataclass(frozen=True)
class Wanted:
    """A filter: what a pull says, and whether a message of a kind matches."""

    arguments: dict[str, str]
    matches: Callable[[int], bool]


def tag_of(kind: int) -> str | None:
    """The tag of a message; a third of them has none."""
    return (None, "a", "b")[kind % 3]


def properties_of(kind: int) -> dict[str, str]:
    """The properties of a message."""
    return {} if kind % 7 == 0 else {"n": str(kind % 10), "word": "even" if kind % 2 == 0 else "odd"}


def _n(kind: int) -> int:
    """The property as a number; a missing one is in no range."""
    return int(properties_of(kind).get("n", -1))


FILTERS = (
    Wanted({"tags": "a"}, lambda kind: tag_of(kind) == "a"),
    Wanted({"tags": "b || a || never"}, lambda kind: tag_of(kind) is not None),
    Wanted({"where": "n > 6"}, lambda kind: _n(kind) > 6),
    Wanted({"where": "n IS NULL OR word LIKE 'ev_%'"}, lambda kind: properties_of(kind).get("word") in (None, "even")),
    Wanted({"tags": "a", "where": "NOT n BETWEEN 2 AND 8"}, lambda kind: tag_of(kind) == "a" and _n(kind) in (0, 1, 9)),
    Wanted({"tags": "never"}, lambda _: False),
)


def with_kind(message: dict[str, Any], kind: int) -> dict[str, Any]:
    """A message of `send`, with its tag and its properties."""
    tag, properties = tag_of(kind), properties_of(kind)
    return message | ({"tag": tag} if tag else {}) | ({"properties": properties} if properties else {})
