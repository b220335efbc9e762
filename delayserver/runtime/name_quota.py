"""The names that each client has added since the start: subjects, tags, consumer groups. Names stay for ever, in memory and
on disk, so one client must not take all places of a table.

The front says whose request it is before it calls a handler; tasks that the handler starts inherit that. Work of the server
itself has no quota.
"""

from __future__ import annotations

from contextvars import ContextVar


class NameQuota:
    """The names of one client, counted by kind."""

    __slots__ = ("_added",)

    def __init__(self) -> None:
        self._added: dict[int, int] = {}

    def added(self, kind: int) -> int:
        """How many names of a kind it has added."""
        return self._added.get(kind, 0)

    def add(self, kind: int, names: int) -> None:
        """It has added so many more."""
        self._added[kind] = self.added(kind) + names


_acting: ContextVar[NameQuota | None] = ContextVar("_acting", default=None)


def act_for(quota: NameQuota | None) -> None:
    """What this task does from now on, it does for this client; None: for the server, or for a client without a quota."""
    _acting.set(quota)


def acting() -> NameQuota | None:
    """The client for which this task acts."""
    return _acting.get()
