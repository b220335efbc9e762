"""How far the sealed days are drained into their minutes. Writers: `DayDrain`, `DayEnd`, `DayOutcomes`; `DayTier` frees."""

from __future__ import annotations

from delayserver.runtime.marks import Mark
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.tables.days import DayTable, SealedDay


class Drains:
    """By day, the offset in its file up to which its rows are in their minutes; and the days that are held back."""

    __slots__ = ("_days", "_draining", "_held", "_paused", "_schedule", "_version", "ends", "moved", "positions")

    def __init__(self, days: DayTable, schedule: ScheduleLog, positions: dict[int, int]) -> None:
        """`positions`: those of the checkpoint. A crash may have come between the end of a day and the next checkpoint."""
        self._days = days
        self._schedule = schedule
        draining = {day.start_ms for day in days.draining()}
        self.positions = {start: position for start, position in positions.items() if start in draining}
        # Days with damage stay draining, their files kept: others go on, and so does what was drained of them.
        self._held: set[int] = set()
        # Of them, those that the disk refused to read.
        self._paused: set[int] = set()
        # Outcomes of a day that lie in its file and in those of its minutes, since a crash or the end of the day moved them.
        self.moved: dict[int, int] = {}
        # The days that drain, at a version of the table.
        self._version, self._draining = days.version, days.draining()
        # How often a day was drained or held back: `first_ms` is later then.
        self.ends = Mark(0)

    def hold(self, start_ms: int, *, refused: bool = False) -> None:
        """Drain no more of this day: something of it is damaged. `refused`: the disk refused to read it. Nothing is known to
        be wrong with it then, so `retry` frees it."""
        self._held.add(start_ms)
        if refused:
            self._paused.add(start_ms)
        self.ends.advance(self.ends.value + 1)

    def end(self, start_ms: int) -> None:
        """Ends the drain of a day: the table says so."""
        self.positions.pop(start_ms, None)
        self.moved.pop(start_ms, None)
        self.ends.advance(self.ends.value + 1)

    def free(self, start_ms: int) -> None:
        """Lets the day be drained again."""
        self._held.discard(start_ms)

    def drainable(self) -> list[SealedDay]:
        """The sealed days that still have to be drained, and can be, the earliest first."""
        return [day for day in self._days.draining() if day.start_ms not in self._held]

    def retry(self) -> list[SealedDay]:
        """Frees the days that the disk refused to read: what was begun is done again. Returns what can be drained now."""
        self._held -= self._paused
        self._paused.clear()
        return self.drainable()

    def first_ms(self) -> int:
        """All messages that are due before this time lie in files of windows, except for days that are held back."""
        if self._version != self._days.version:
            self._version, self._draining = self._days.version, self._days.draining()
        starts = [day.start_ms for day in self._draining if day.start_ms not in self._held]
        return min(starts, default=self._days.fine_until_ms)

    @property
    def needed_bytes(self) -> int:
        """The rows that the days that are drained now still bring to the files of their minutes."""
        return sum(
            [
                max(self._schedule.end(key) - self.positions.get(key.start_ms, 0), 0)
                for key in [ScheduleKey(day.start_ms, ScheduleSource.DAY) for day in self.drainable()]
                if key in self._schedule
            ]
        )

    def check_invariants(self) -> None:
        """Offsets are those of days that drain."""
        draining = {day.start_ms for day in self._days.draining()}
        assert draining >= self.positions.keys()
        assert all(position > 0 for position in self.positions.values())
