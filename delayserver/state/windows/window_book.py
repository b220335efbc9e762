"""Which windows still have messages without an outcome. A view on the counts of both logs; no files, no clock.

A day that is delivered from its own file (`DayTable.is_whole`) is one window: it bears the start of the day.

A window is complete when its dispatch file has as many rows as its schedule files, orphaned outcomes left out. It becomes
incomplete again when a late message is put into it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from sortedcontainers import SortedSet

from delayserver.runtime.marks import Mark
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.due_windows import DAY_MS, day_of, window_of
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.tables.days import DayTable
from wheel.cursors import LoadCursors

_FINE = (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)


class WindowBook:
    """Keeps the incomplete windows in order. Writers: who changes rows of a log counts the windows again; the start notes
    orphans, the loader what it cannot read, `Residency` what leaves memory, retention forgets."""

    def __init__(self, schedule: ScheduleLog, dispatch: DispatchLog, days: DayTable, window_ms: int) -> None:
        self._schedule = schedule
        self._dispatch = dispatch
        self._days = days
        self.window_ms = window_ms
        self._incomplete: SortedSet[int] = SortedSet()
        # All incomplete windows that are not loaded; some of these may be loaded.
        self._unloaded: SortedSet[int] = SortedSet()
        self._completed: set[int] = set()
        # Windows whose last load could not read them.
        self._unreadable: set[int] = set()
        # How many loads have ended. The loader is the only writer.
        self.load_ends = Mark(0)
        # Outcomes of messages that no schedule file holds, by window (`orphans.py`); also while they lie in a day's file.
        self.orphans: dict[int, int] = {}

    def note_orphans(self, rows: dict[int, int]) -> None:
        """Orphaned outcomes by window, in place of those noted before."""
        self.orphans = rows

    def open(self) -> None:
        """Take all windows of both logs into account; a few microseconds a file."""
        self.refresh(self.starts())

    def starts(self, before_ms: int = 1 << 62) -> set[int]:
        """Starts of all windows with messages, in milliseconds."""
        keys = self._schedule.keys()
        return {key.start_ms for key in keys if key.start_ms < before_ms and self.is_delivered_from(key)}

    def is_delivered_from(self, key: ScheduleKey) -> bool:
        """Whether messages leave from this file: from those of windows, and of whole days."""
        return key.source != ScheduleSource.DAY or self._days.is_whole(key.start_ms)

    def is_outcome_file(self, key: DispatchKey) -> bool:
        """Whether this file holds the outcomes of a window, or of a whole day."""
        return not key.coarse or self._days.is_whole(key.start_ms)

    def is_whole(self, start_ms: int) -> bool:
        """Whether the window that bears this start is a whole day."""
        return self._days.is_whole(start_ms)

    def is_draining(self, start_ms: int) -> bool:
        """Whether the drain of its day still brings messages to a window."""
        return self._days.is_draining(start_ms)

    def window_of(self, time_ms: int) -> int:
        """The start of the minute of a time, whether or not its day is whole."""
        return window_of(time_ms, self.window_ms)

    def start_of(self, due_ms: int) -> int:
        """The start that the window of a due time bears."""
        return self._days.start_of(due_ms, self.window_ms)

    def end(self, start_ms: int) -> int:
        """Where the due times of a window end."""
        return start_ms + (DAY_MS if self._days.is_whole(start_ms) else self.window_ms)

    def files(self, start_ms: int) -> list[ScheduleKey]:
        """The schedule files that a window may have."""
        sources = (ScheduleSource.DAY,) if self._days.is_whole(start_ms) else _FINE
        return [ScheduleKey(start_ms, source) for source in sources]

    def outcome_file(self, start_ms: int) -> DispatchKey:
        """The dispatch file of a window."""
        return DispatchKey(start_ms, self._days.is_whole(start_ms))

    def outcome_files(self, start_ms: int) -> set[DispatchKey]:
        """The dispatch files that may hold outcomes of a window. While its day drains, the file of the day is one."""
        return {self.outcome_file(start_ms), DispatchKey(day_of(start_ms), True)}

    def rows(self, start_ms: int) -> int:
        """Rows in the schedule files of a window."""
        return sum([self._schedule.rows(file) for file in self.files(start_ms)])

    def last_sequence(self, start_ms: int) -> int:
        """The last sequence in the schedule files of a window."""
        return max(self._schedule.last_sequence(file) for file in self.files(start_ms))

    def outcomes(self, start_ms: int) -> int:
        """Rows in the dispatch file of a window, written but maybe not synced yet."""
        return self._dispatch.rows(self.outcome_file(start_ms))

    def is_complete(self, start_ms: int) -> bool:
        """Whether every row of the window has an outcome in the file."""
        return self.outcomes(start_ms) - self._orphaned(start_ms) >= self.rows(start_ms)

    def is_settled(self, start_ms: int) -> bool:
        """Whether every row of the window has an outcome that no crash takes back."""
        durable = self._dispatch.durable_rows(self.outcome_file(start_ms))
        return durable - self._orphaned(start_ms) >= self.rows(start_ms)

    def pending(self, start_ms: int) -> int:
        """Rows of the window without a durable outcome. Internal records are among them."""
        durable = self._dispatch.durable_rows(self.outcome_file(start_ms))
        return max(self.rows(start_ms) - durable + self._orphaned(start_ms), 0)

    def _orphaned(self, start_ms: int) -> int:
        """Orphaned outcomes of a window. Those of a whole day may be noted for its minutes: it became whole after that."""
        if not self.orphans:
            return 0
        if not self._days.is_whole(start_ms):
            return self.orphans.get(start_ms, 0)
        return sum([rows for start, rows in self.orphans.items() if day_of(start) == start_ms])

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
        sources = (ScheduleSource.DAY,) if key.coarse else _FINE
        files = [ScheduleKey(key.start_ms, source) for source in sources]
        files = [file for file in files if file in self._schedule]
        orphans = self._orphaned(key.start_ms) if self.is_outcome_file(key) else 0
        too_many = self._dispatch.rows(key) - orphans > sum([self._schedule.rows(file) for file in files])
        return not files or any(file not in known for file in files) or too_many

    def refresh(self, starts: Iterable[int]) -> list[int]:
        """Count these windows again; returns those that have become complete."""
        completed = []
        for start in starts:
            if not self.is_complete(start):
                if start not in self._incomplete:
                    self._incomplete.add(start)
                    self._unloaded.add(start)
            elif start in self._incomplete:
                self._incomplete.discard(start)
                self._unloaded.discard(start)
                completed.append(start)
        return completed

    def outcomes_durable(self, keys: Iterable[DispatchKey]) -> None:
        """Counts the windows of these files again, because their outcomes are durable."""
        self._completed.update(self.refresh([key.start_ms for key in keys if self.is_outcome_file(key)]))

    def take_completed(self) -> set[int]:
        """Starts of the windows that have become complete by durable outcomes since the last call."""
        completed, self._completed = self._completed, set()
        return completed

    def incomplete_before(self, ceiling_ms: int) -> Iterator[int]:
        """Starts of incomplete windows before a time, earliest first. To be gone through in one step of the event loop."""
        yield from self._incomplete.irange(maximum=ceiling_ms, inclusive=(True, False))

    def unloaded_before(self, ceiling_ms: int, cursors: LoadCursors) -> Iterator[int]:
        """Starts of incomplete windows before a time that are not loaded, earliest first. To be gone through in one step.

        Windows that are found to be loaded are not looked at again: a group that is down for weeks has thousands."""
        start: int | None = None
        while (start := next(self._unloaded.irange(start, ceiling_ms, inclusive=(False, False)), None)) is not None:
            if cursors.is_loaded(start):
                self._unloaded.discard(start)
            else:
                yield start

    def mark_unloaded(self, from_ms: int, until_ms: int | None = None) -> None:
        """Marks the windows that begin in [from_ms, until_ms) as not loaded any more."""
        self._unloaded.update(self._incomplete.irange(from_ms, until_ms, inclusive=(True, False)))

    def incomplete_between(self, from_ms: int, to_ms: int, count_max: int, *, latest: bool = False) -> list[int]:
        """Starts of the first `count_max` incomplete windows that begin in [from_ms, to_ms); of the last ones if `latest`,
        the last one first."""
        starts = self._incomplete.irange(from_ms, to_ms, inclusive=(True, False), reverse=latest)
        return [start for _, start in zip(range(count_max), starts, strict=False)]

    def forget(self, start_ms: int) -> None:
        """Forgets a window that is retired."""
        self._incomplete.discard(start_ms)
        self._unloaded.discard(start_ms)
        self._unreadable.discard(start_ms)

    # -- windows that cannot be read; the loader is the only writer

    def mark_unreadable(self, start_ms: int) -> None:
        """Marks a window that a load could not read."""
        self._unreadable.add(start_ms)
        self.load_ends.advance(self.load_ends.value + 1)

    def mark_read(self, start_ms: int) -> None:
        """Marks a window as readable: a load has read it."""
        self._unreadable.discard(start_ms)
        self.load_ends.advance(self.load_ends.value + 1)

    def is_unreadable(self, start_ms: int) -> bool:
        """Whether the last load of a window could not read it."""
        return start_ms in self._unreadable

    @property
    def oldest_incomplete_ms(self) -> int | None:
        """Start of the earliest incomplete window."""
        return self._incomplete[0] if self._incomplete else None

    def __len__(self) -> int:
        return len(self._incomplete)

    def check_invariants(self) -> None:
        """Every incomplete window has messages, and lacks outcomes or is about to be counted again."""
        assert self._incomplete.issubset(self.starts())
        assert self._unloaded.issubset(self._incomplete)
        assert all(rows > 0 for rows in self.orphans.values())
