"""Mistakes in a cluster of several shards: the simulation must notice each of them. Most show with several shards alone.

As in `mistakes.py`, each is a change of one function while a block runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from delayserver.client.asynchronous.shards import Shards
from delayserver.client.calls.slot_owners import SlotOwners
from delayserver.members.member_map import MemberMap
from delayserver.operations.messages.cancellation import CANCELLED, Cancellation
from delayserver.protocol.outcomes import Outcome
from tests.simulation.mistakes import Change


def slots_move_when_a_shard_is_added() -> list[Change]:
    """An added shard gets its share of the slots, so the same id goes to another shard than before."""

    def mistaken(right: Any) -> Any:
        def shown(self: Any) -> Any:
            founded = self.founded
            self.founded = None if founded is None else replace(founded, shards=tuple(self.shards))
            try:
                return right(self)
            finally:
                self.founded = founded

        return shown

    return [(MemberMap, "shown", mistaken)]


def an_older_map_wins() -> list[Change]:
    """A client that pulls goes by the first map that had a shard, whatever map comes later."""
    first: dict[Any, SlotOwners] = {}

    def mistaken(right: Any) -> Any:
        def in_turn(self: Any) -> Any:
            later = self.map
            if later.all:
                self.map = first.setdefault(self, later)
            try:
                return right(self)
            finally:
                self.map = later

        return in_turn

    return [(Shards, "_in_turn", mistaken)]


def a_first_cancel_answered_as_a_repeated_one() -> list[Change]:
    """A cancel that nobody asked for before is answered as if somebody had."""

    def mistaken(right: Any) -> Any:
        async def cancel(self: Any, *args: Any, **named: Any) -> Any:
            answer = await right(self, *args, **named)
            answer[answer == CANCELLED] = int(Outcome.ALREADY_CANCELLED)
            return answer

        return cancel

    return [(Cancellation, "end", mistaken)]


# Each with a seed that notices it.
SHARDS_MISTAKES: tuple[tuple[Callable[[], list[Change]], int], ...] = (
    (slots_move_when_a_shard_is_added, 2),
    (an_older_map_wins, 2),
    (a_first_cancel_answered_as_a_repeated_one, 0),
)
