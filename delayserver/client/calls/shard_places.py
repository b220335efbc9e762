"""Places that name a shard: cursors of lists whose rows are at one shard each, and positions of messages of a group.

A page is of one shard, and the shards come in their order. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import DEAD_LETTERS, FIND, TRANSACTIONS, WAITING_KEYS

P = TypeVar("P")

Cursor = Any
"""The `after` of a request, and the `next` of a reply."""

_SHARD_BITS: Final = 12
"""Of the number of a shard, below the position: programs that read JSON as floating point, such as JavaScript, know whole
numbers up to 2^53. So all positions below 2^40 reach them as they are, whatever the shard."""
_PLACE_BITS: Final = 63
_BEGIN: Final = -2


@dataclass(frozen=True, slots=True)
class ShardCursor:
    """How a cursor names a shard. ``part`` makes one of a shard and the shard's own cursor, which is None at its begin.
    ``parse`` is the inverse.
    """

    part: Callable[[int, Cursor], Cursor]
    parse: Callable[[Cursor], tuple[int, Cursor]]

    def place(self, after: Cursor, shards: Sequence[int]) -> tuple[int, Cursor]:
        """Where the page behind `after` begins: a shard and its own cursor. Raises InvalidArgument."""
        if after is None:
            return shards[0], None
        try:
            shard, own = self.parse(after)
        except (TypeError, ValueError):
            shard, own = -1, None
        if shard not in shards:
            raise InvalidArgument("after is not the `next` of a page of all shards")
        return shard, own

    def led_on(self, page: P, shard: int, shards: Sequence[int]) -> P:
        """A page of one shard, whose `next` leads through all of them."""
        own: Cursor = getattr(page, "next")  # noqa: B009 - pages have no common type
        if own is None:
            shard = next((each for each in shards if each > shard), -1)
        changed: P = replace(page, next=None if shard < 0 else self.part(shard, own))  # type: ignore[type-var]
        return changed


def position_at(shard: int, position: int) -> int:
    """A position of a shard, or -1 before all of them, among those of all shards."""
    return ((position + 1) << _SHARD_BITS) + shard


def _place_at(position: int) -> tuple[int, int]:
    """The inverse of `position_at`."""
    own, shard = divmod(position, 1 << _SHARD_BITS)
    return shard, own - 1


def positions_by_shard(positions: Sequence[int]) -> dict[int, list[int]]:
    """The shards' own positions."""
    found: dict[int, list[int]] = {}
    for shard, own in map(_place_at, positions):
        found.setdefault(shard, []).append(own)
    return found


def with_positions(page: P, shard: int, rows: str) -> P:
    """A page whose `rows` have positions among those of all shards."""
    named = [replace(row, position=position_at(shard, row.position)) for row in getattr(page, rows)]
    changed: P = replace(page, **{rows: named})  # type: ignore[type-var]
    return changed


def _found_cursor(shard: int, own: Cursor) -> Cursor:
    first, second = (0, _BEGIN) if own is None else own
    return (shard << _PLACE_BITS) + first, second


def _found_place(after: Cursor) -> tuple[int, Cursor]:
    first, second = after
    shard = first >> _PLACE_BITS
    return shard, None if second == _BEGIN else (first - (shard << _PLACE_BITS), second)


def _transaction_cursor(shard: int, own: Cursor) -> Cursor:
    return f"{shard}/{own or ''}"


def _transaction_place(after: Cursor) -> tuple[int, Cursor]:
    shard, _, own = after.partition("/")
    return int(shard), own or None


def _position_cursor(shard: int, own: Cursor) -> Cursor:
    return position_at(shard, -1 if own is None else own)


def _position_place(after: Cursor) -> tuple[int, Cursor]:
    return _place_at(after)


SHARD_CURSORS: Final = {
    FIND: ShardCursor(_found_cursor, _found_place),
    TRANSACTIONS: ShardCursor(_transaction_cursor, _transaction_place),
    DEAD_LETTERS: ShardCursor(_position_cursor, _position_place),
    WAITING_KEYS: ShardCursor(_position_cursor, _position_place),
}
"""By operation."""
