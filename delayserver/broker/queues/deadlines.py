"""The consumer group whose leases end next, without a look at all groups. Pure; times are arguments.

An entry is a lower bound: acks move a group's true deadline to later. `first` corrects the entry when it comes first.
"""

from __future__ import annotations

from collections.abc import Callable

from sortedcontainers import SortedSet

from delayserver.broker.queues.group_cursors import GroupKey


class Deadlines:
    """One entry a group with leases, in order of time."""

    __slots__ = ("_of", "_ordered")

    def __init__(self) -> None:
        self._ordered: SortedSet[tuple[int, GroupKey]] = SortedSet()
        self._of: dict[GroupKey, int] = {}

    def __len__(self) -> int:
        return len(self._of)

    def note(self, key: GroupKey, deadline_us: int) -> None:
        """Notes that a lease of the group ends at `deadline_us`."""
        known = self._of.get(key)
        if known is None or deadline_us < known:
            self._put(key, deadline_us)

    def forget(self, key: GroupKey) -> None:
        """Forgets a group that has no leases any more, or is gone."""
        known = self._of.pop(key, None)
        if known is not None:
            self._ordered.discard((known, key))

    def _put(self, key: GroupKey, deadline_us: int) -> None:
        self.forget(key)
        self._of[key] = deadline_us
        self._ordered.add((deadline_us, key))

    def first(self, true_deadline_us: Callable[[GroupKey], int | None]) -> tuple[int, GroupKey] | None:
        """The earliest deadline and its group. `true_deadline_us` gives a group's own deadline, None if it has none."""
        while self._ordered:
            noted, key = self._ordered[0]
            deadline_us = true_deadline_us(key)
            if deadline_us is None:
                self.forget(key)
            elif deadline_us > noted:
                self._put(key, deadline_us)
            else:
                return noted, key
        return None
