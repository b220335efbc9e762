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
        # Outcomes of messages that no schedule file holds, by window (`orphans.py`); also while they lie in a day's file.
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

    def suspects(
        self, known: Container[ScheduleKey], doubtful: Container[DispatchKey], *, everywhere: bool
    ) -> list[DispatchKey]:
        """Dispatch files whose outcomes may be orphaned: those in doubt, those of a window or day with a schedule file that
        the checkpoint did not know (`known`), or with none, or with more outcomes than rows; with `everywhere` all."""
        return [
            key
            for key in self._dispatch.keys()
            if self._dispatch.rows(key) and (everywhere or key in doubtful or self._may_have_lost_rows(key, known))
        ]

    def _may_have_lost_rows(self, key: DispatchKey, known: Container[ScheduleKey]) -> bool:
        sources = (Source.DAY,) if key.coarse else (Source.DIRECT, Source.FROM_DAY)
        files = [ScheduleKey(key.start_ms, source) for source in sources]
        files = [file for file in files if file in self._schedule]
        orphans = 0 if key.coarse else self.orphans.get(key.start_ms, 0)
        too_many = self._dispatch.rows(key) - orphans > sum([self._schedule.rows(file) for file in files])
        return not files or any(file not in known for file in files) or too_many

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
