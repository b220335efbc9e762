"""The map says who the members of a cluster are: the last start of each, but for those that were forgotten since."""

from __future__ import annotations

import msgspec

from delayserver.members.member_map import Announced, Forgotten, MemberMap, Note
from delayserver.runtime.shared_log import LogRecord


def started(name: str, instance: str) -> Announced:
    return Announced(name, 0, f"{instance}:1", "", "1", instance)


def map_of(*notes: Note) -> MemberMap:
    found = MemberMap()
    for position, note in enumerate(notes):
        found.take(LogRecord(position, msgspec.json.encode(note)), "topic")
    return found


A, B, C = started("a", "1"), started("b", "2"), started("c", "3")


def test_a_forgotten_member_is_none_and_the_numbers_of_the_others_stay() -> None:
    found = map_of(A, B, Forgotten("a", "1"), C)
    assert [each.name for each in found.of_shard(0)] == ["b", "c"]
    assert (found.number("b"), found.number("c")) == (2, 3)
    assert (found.rank("b"), found.rank("c")) == (0, 1)


def test_a_member_that_comes_back_has_its_number_and_its_rank_again() -> None:
    found = map_of(A, B, Forgotten("a", "1"), C, started("a", "4"))
    assert [each.name for each in found.of_shard(0)] == ["a", "b", "c"]
    assert (found.number("a"), found.rank("a")) == (1, 0)


def test_a_start_that_nobody_had_seen_is_not_forgotten() -> None:
    found = map_of(A, started("a", "4"), Forgotten("a", "1"), Forgotten("z", "1"))
    assert found.members["a"].instance == "4"
