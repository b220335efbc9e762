"""How many messages were accepted, counted twice: when they are committed, and when they are placed (rule 3).

Clients see the count at the commit. A checkpoint keeps the count of the rounds that are published, since the
next start counts on from there.
"""

from __future__ import annotations

from typing import Final

from delayserver.state.counts.subject_counts import SubjectCounts

ANY_TIME_MS: Final = 1 << 53
"""Later than every due time, for a start that does not know how far timers lie."""


class Balance:
    """Counts of accepted messages; internal records (redeliveries) are counted apart."""

    __slots__ = ("_before", "_committed", "internal", "placed", "replaced", "subjects", "timers_until_ms")

    def __init__(self) -> None:
        # Found by the start, and committed since.
        self._before = 0
        self._committed = 0
        self.placed = 0
        self.internal = 0
        # Of the placed messages those that took the place of another one, which ended as cancelled.
        self.replaced = 0
        # No timer of a transaction is due later. It only grows.
        self.timers_until_ms = 0
        # The same as above, for each subject.
        self.subjects = SubjectCounts()

    @property
    def accepted(self) -> int:
        """Messages that were accepted; 0 while the start still counts them."""
        return self._before + self._committed

    def start_from(self, accepted: int) -> None:
        """Takes what was accepted before this start. Writer: the start."""
        self._before = accepted

    def commit(self, accepted: int) -> None:
        """So many messages were committed. Writer: the accepted log."""
        self._committed += accepted

    def place(self, accepted: int, internal: int, replaced: int) -> None:
        """So many messages and internal records are in their files now. So many of the messages took the place of
        another one. Writers: the start, then the replay."""
        self.placed += accepted
        self.internal += internal
        self.replaced += replaced

    def extend_timers(self, until_ms: int) -> None:
        """Counts placed timers, the last of which is due at `until_ms`. Writers: the start, then the replay."""
        self.timers_until_ms = max(self.timers_until_ms, until_ms)

    def check_invariants(self) -> None:
        """No count is negative."""
        self.subjects.check_invariants()
        assert min(self._before, self._committed, self.placed, self.internal, self.replaced) >= 0
