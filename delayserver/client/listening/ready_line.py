"""The sources whose messages wait for a handler, in a fair order. Pure.

The source with the fewest running handlers goes first, so that slow handlers of one subject do not take all places from
another one. Among equals they take turns.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


class ReadyLine(Generic[S]):
    """Sources by the count of their running handlers. Only counts that occur have an entry, so there are few."""

    def __init__(self) -> None:
        self._by_running: dict[int, dict[S, None]] = {}
        self._running: dict[S, int] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, source: S) -> bool:
        return source in self._running

    def put(self, source: S, running: int) -> None:
        """Put a source in line, behind those with the same count. If it stands there with another count, it moves."""
        before = self._running.get(source)
        if before == running:
            return
        if before is not None:
            self.remove(source)
        self._running[source] = running
        self._by_running.setdefault(running, {})[source] = None

    def remove(self, source: S) -> None:
        """Take a source out, if it stands in line."""
        running = self._running.pop(source, None)
        if running is not None:
            line = self._by_running[running]
            del line[source]
            if not line:
                del self._by_running[running]

    def first(self) -> S | None:
        """The source whose message is handled next; None if no message waits."""
        if not self._by_running:
            return None
        return next(iter(self._by_running[min(self._by_running)]))

    def check_invariants(self) -> None:
        """Both tables say the same."""
        assert all(line for line in self._by_running.values())
        assert self._running == {source: count for count, line in self._by_running.items() for source in line}
