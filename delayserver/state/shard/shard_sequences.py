"""The sequences of a shard: its log is the reservation, so no file keeps one."""

from __future__ import annotations

from delayserver.runtime.marks import Mark


class ShardSequences:
    """Gives out sequences to a primary, from the one behind the last that its log has.

    It must have applied all that stands before its claim. Then no other record of the log has a sequence that it gives
    out."""

    __slots__ = ("_accepted", "_next")

    def __init__(self, accepted: Mark) -> None:
        """`accepted` is the last sequence of the log."""
        self._accepted = accepted
        self._next = 1

    def take(self, count: int) -> int:
        """The first of `count` sequences, which are the caller's alone."""
        first = max(self._next, self._accepted.value + 1)
        self._next = first + count
        return first

    def begin_above(self, sequence: int) -> None:
        """The log has sequences below this one beside those of accepted messages."""
        self._next = max(self._next, sequence)

    def needs_extension(self) -> bool:
        """Never."""
        return False

    def extend(self, count: int = 0) -> None:
        """Nothing is reserved."""
