"""Seals coarse days that come near: from then on their rows move to minutes, unless the day may stay whole.

A day that is wholly overdue when its turn comes is not drained, if it is small: it stays whole. The loader reads its file as
that of one window, since after a downtime 1,440 files for each day would cost more than its messages.

A whole day costs two files, not up to 2,880, for all its messages and outcomes, later ones too. The `DayTable` says
so before anything leaves. A day of which a load has taken a minute is split all the same. A whole day that a wrong
clock left in the future is loaded when it begins.

In a member of a cluster no day stays whole: the log says minute by minute what is retired, and clocks of members differ.
"""

from __future__ import annotations

from delayserver.config.settings import StorageSettings
from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource

# A day that is overdue as a whole, with at most this many messages, stays in one file. A larger one moves to minutes: they
# cost less than their messages, and a lookup reads less.
WHOLE_ROWS_MAX = 1 << 17


class DaySealing:
    """The border between coarse days and fine ones, which moves with the clock."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        decided: Decided,
        outcomes: DayOutcomes,
        positions: Positions,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._days = files.days
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._book = windows.book
        self._cursors = windows.cursors
        self._decided = decided
        self._outcomes = outcomes
        self._positions = positions
        self._settings = settings
        self._clock = runtime.clock
        # The end of the last day that is wanted before its time.
        self._wanted_ms = 0

    def bring_near(self, until_ms: int) -> None:
        """Have the days that begin before a time sealed, whatever the clock says."""
        self._wanted_ms = max(self._wanted_ms, day_of(until_ms - 1) + DAY_MS)

    @property
    def is_due(self) -> bool:
        """Whether a day came near since the last `seal`."""
        return self._near_until_ms() > self._days.fine_until_ms

    async def seal(self) -> None:
        """Seal all days that are near, and put their outcomes into the overlays. Raises DiskFullError."""
        keys = {*self._schedule.keys(), *self._schedule.lost}
        starts = sorted({key.start_ms for key in keys if key.source == ScheduleSource.DAY})
        until_ms = self._near_until_ms()
        near = [start for start in starts if self._days.fine_until_ms <= start < until_ms]
        near = [start for start in near if not self._may_stay_whole(start)]
        # Read in threads, before the step that seals: from that step on each question about the days needs them. What is not
        # written before that would make this step read the file.
        await self._decided.wait_all_written()
        known = await self._outcomes.read(near)
        # Outcomes so far belong to the coarse files. Only the replayer's task decides about coarse rows.
        await self._decided.wait_all_written()
        whole = [start for start in starts if self._may_stay_whole(start)]
        self._days.seal(until_ms, self._positions.replayed_sequence.value, starts, whole)
        self._book.refresh([start for start in whole if self._days.is_whole(start)])
        for day in self._days.draining():
            if day.start_ms not in self._decided.overlays:
                self._outcomes.take_sealed(day, known.get(day.start_ms))

    def _near_until_ms(self) -> int:
        """Days that start before this are to be fine, by the clock."""
        return max(day_of(self._clock.now_ms() + self._settings.fine_horizon_ms) + DAY_MS, self._wanted_ms)

    def _may_stay_whole(self, start_ms: int) -> bool:
        """Whether a coarse day is overdue as a whole, small, and nothing of it is lost or in memory."""
        key = ScheduleKey(start_ms, ScheduleSource.DAY)
        return (
            not self._days.shared
            and start_ms + DAY_MS <= self._clock.now_ms()
            and key in self._schedule
            and self._schedule.hiding(key) is None
            and not self._dispatch.is_lost(DispatchKey(start_ms, True))
            and self._schedule.rows(key) <= WHOLE_ROWS_MAX
            # A minute that was taken while it had no file would hide the rows of the day from every load.
            and not self._cursors.is_taken_between(start_ms, start_ms + DAY_MS)
        )
