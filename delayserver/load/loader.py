"""Brings the near future into the wheel: window by window, ahead of time, and no more than memory may hold.

Chooses the window to load next, and when. `WindowLoads` loads it. Past the bound of memory the far end is dropped and read
again when there is room.
"""

from __future__ import annotations

import trio

from delayserver.config.settings import WheelSettings
from delayserver.load.load_turn import (
    NEAR_MS,
    NEAR_SHARE,
    SOON_MS,
    LoadTurn,
    NearFuture,
    near_share,
    overdue_room,
    room_beside_near,
    room_beside_overdue,
)
from delayserver.load.window_loads import STEP_ROWS, WindowLoads
from delayserver.load.window_reader import WindowReader
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.overflow import Overflow, low_room
from delayserver.state.memory.residency import Residency
from delayserver.state.windows.windows import Windows

# Overdue windows are read many at a time, up to these bounds: of a small one the file costs more than its rows.
RUN_WINDOWS_MAX = 256
RUN_BYTES_MAX = 16 << 20
# Overdue windows wait so long for queues to empty. Then the near future, which memory holds in part, has to make room.
# The loader looks so often whether it is time for the next part of the near future.
NEAR_LOOK_MS = 250


class Loader:
    """Says which windows are loaded next."""

    def __init__(
        self,
        loads: WindowLoads,
        reader: WindowReader,
        windows: Windows,
        residency: Residency,
        overflow: Overflow,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        self._loads = loads
        self._reader = reader
        self._book = windows.book
        self._cursors = windows.cursors
        self._residency = residency
        self._overflow = overflow
        self._settings = settings
        self._clock = runtime.clock
        self._stages = runtime.stages
        # Windows whose files could not be read a short time ago.
        self._left_alone: set[int] = set()
        # Windows loaded so far.
        self.loads = 0

    async def run(self) -> None:
        """Load until cancelled. Rows that become due now come first: fresh messages do not wait for overdue windows. Nor do
        these wait for the rest of a near window that memory cannot hold (`load/turns.py`)."""
        overflow, loadable = self._overflow, self._residency.loadable
        short_since_us: int | None = None
        while True:
            loadable.hush()
            now_us = self._clock.monotonic_us()
            self._left_alone = self._loads.left_alone()
            overdue = self._overdue_windows()
            near = self._near_window(only_now=bool(overdue))
            near_waits = bool(overdue) and near is not None and self._may_wait(near)
            windows = overdue if near is None or near_waits else [near]
            rows_max = self._settings.rows_max
            wanted = overdue_room(rows_max) if windows is overdue else low_room(rows_max)
            short = bool(windows) and not self._book.is_unreadable(windows[0]) and overflow.lacks(wanted)
            short_since_us = None if not short else now_us if short_since_us is None else short_since_us
            if short_since_us is not None and now_us >= short_since_us + NEAR_LOOK_MS * 1000 * near_waits:
                self._put_before_later(windows[-1])
            waits = overflow.must_wait(wanted if windows else None)
            if windows and not waits:
                if windows is overdue:  # what memory holds of the near future stays
                    turn = LoadTurn(room_beside_near(rows_max) if near_waits else 0, self._book.end(windows[-1]))
                else:
                    turn = LoadTurn(room_beside_overdue(rows_max, overflow.room) if overdue else 0)
                began_us = self._clock.monotonic_us()
                loaded = await self._loads.load(windows, turn)
                if loaded:
                    self._stages.load.add(self._clock.monotonic_us() - began_us)
                    self.loads += loaded
                continue
            with trio.move_on_after(NEAR_LOOK_MS / 1000 if near_waits else 1):
                await loadable.rung()

    def _may_wait(self, near: int) -> bool:
        """Whether the next part of a near window may wait for overdue windows."""
        now_ms, wheel = self._clock.now_ms(), self._residency.wheel
        loaded_to_ms = max(self._cursors.loaded_limit(near).due_ms, near)
        ahead = NearFuture(loaded_to_ms, len(wheel) - wheel.rows_below(now_ms + 1))
        return ahead.may_wait(now_ms, near_share(self._settings.rows_max) - self._residency.rows_queued)

    def _near_window(self, *, only_now: bool) -> int | None:
        """The first window from now on that has something to load, or will soon get its first records."""
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms + (min(NEAR_MS, self._settings.load_ahead_ms) if only_now else self._settings.load_ahead_ms)
        following = self._cursors.next_unloaded(now_ms, ahead_ms)
        # The minutes of a whole day have no files; only its first one bears the cursor of the day.
        while following is not None and (following in self._left_alone or self._book.start_of(following) != following):
            following = self._cursors.next_unloaded(following + self._book.window_ms, ahead_ms)
        return following

    def _overdue_windows(self) -> list[int]:
        """The first overdue windows that have something to load, as many as are read at once: at least one, if there is
        any."""
        windows: list[int] = []
        rows = size = 0
        for window in self._book.unloaded_before(self._book.window_of(self._clock.now_ms()), self._cursors):
            if window in self._left_alone or self._cursors.is_loading(window):
                continue
            rows += self._book.rows(window)
            size += sum(self._reader.ends(window).values())
            if windows and (rows > STEP_ROWS or size > RUN_BYTES_MAX):
                break
            windows.append(window)
            if len(windows) == RUN_WINDOWS_MAX:
                break
        return windows

    def _put_before_later(self, window_ms: int) -> None:
        """A window that comes late, with messages that are due already or soon, does not wait behind later ones."""
        keep_ms = max(self._book.end(window_ms) - 1, self._clock.now_ms() + SOON_MS)
        wheel = self._residency.wheel
        in_queues = self._residency.rows_queued >= near_share(self._settings.rows_max)  # it would not fit all the same
        if not in_queues and wheel.rows_below(keep_ms + 1) < len(wheel):
            self._overflow.evict_beyond(NEAR_SHARE, keep_ms)
