"""Which windows still have messages without an outcome. A view on the counts of both logs; no files, no clock.

A window is complete when its dispatch file has as many rows as its schedule files, orphaned outcomes left out. It becomes
incomplete again when a late message is put into it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from sortedcontainers import SortedSet

from store.dispatch_log import DispatchKey, DispatchLog
from store.schedule_log import ScheduleKey, ScheduleLog, Source


class WindowBook:
    """Keeps the incomplete windows in order."""

    def __init__(self, schedule: ScheduleLog, dispatch: DispatchLog) -> None:
        self._schedule = schedule
        self._dispatch = dispatch
        self._incomplete: SortedSet[int] = SortedSet()
        # Outcomes of messages that no schedule file holds, by window (`orphans.py`).
        self.orphans: dict[int, int] = {}

    def open(self) -> None:
        """Take all windows of both logs into account; a few microseconds a file."""
        self.refresh(self.starts())

    def starts(self) -> set[int]:
        """Starts of all windows with messages, in milliseconds."""
        return {key.start_ms for key in self._schedule.keys() if key.source != Source.DAY}

    def rows(self, start_ms: int) -> int:
        """Rows in the schedule files of a window."""
        return sum([self._schedule.rows(ScheduleKey(start_ms, source)) for source in (Source.DIRECT, Source.FROM_DAY)])

    def outcomes(self, start_ms: int) -> int:
        """Rows in the dispatch file of a window, written but maybe not synced yet."""
        return self._dispatch.rows(DispatchKey(start_ms, False))

    def is_complete(self, start_ms: int) -> bool:
        """Whether every row of the window has an outcome in the file."""
        return self.outcomes(start_ms) - self.orphans.get(start_ms, 0) >= self.rows(start_ms)

    def is_settled(self, start_ms: int) -> bool:
        """Whether every row of the window has an outcome that no crash takes back."""
        durable = self._dispatch.durable_rows(DispatchKey(start_ms, False))
        return durable - self.orphans.get(start_ms, 0) >= self.rows(start_ms)

    def suspects(self, known: Container[ScheduleKey], damaged: Iterable[int], *, everywhere: bool) -> list[int]:
        """Windows whose outcomes may be orphaned: those with damage, with a schedule file that the checkpoint did not know
        (`known`), or with none, and with more outcomes than rows; with `everywhere` all that have an outcome."""
        doubtful = set(damaged)
        suspects = []
        for key in self._dispatch.keys():
            if key.coarse or not self._dispatch.rows(key):
                continue
            start = key.start_ms
            files = [ScheduleKey(start, source) for source in (Source.DIRECT, Source.FROM_DAY)]
            files = [file for file in files if file in self._schedule]
            unknown = not files or any(file not in known for file in files)
            too_many = self.outcomes(start) - self.orphans.get(start, 0) > self.rows(start)
            if everywhere or start in doubtful or unknown or too_many:
                suspects.append(start)
        return suspects

    def refresh(self, starts: Iterable[int]) -> list[int]:
        """Count these windows again; returns those that have become complete."""
        completed = []
        for start in starts:
            if not self.is_complete(start):
                self._incomplete.add(start)
            elif start in self._incomplete:
                self._incomplete.discard(start)
                completed.append(start)
        return completed

    def incomplete_before(self, ceiling_ms: int) -> Iterator[int]:
        """Starts of incomplete windows before a time, earliest first."""
        yield from list(self._incomplete.irange(maximum=ceiling_ms, inclusive=(True, False)))

    def forget(self, start_ms: int) -> None:
        """The window is retired."""
        self._incomplete.discard(start_ms)

    @property
    def oldest_incomplete_ms(self) -> int | None:
        """Start of the earliest incomplete window."""
        return self._incomplete[0] if self._incomplete else None

    def __len__(self) -> int:
        return len(self._incomplete)
