"""Brings the near future into the wheel: window by window, ahead of time, and no more than memory may hold.

Moving the `loading` cursor and capturing the ends of the window's files is one step on the event loop (`begin_load`);
what lies below those ends is read here, what comes later goes from the replayer straight to the wheel. Rows that have an
outcome, written or not, stay out. Past the bound of memory the far end is dropped and read again when there is room.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
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
from delayserver.load.window_reader import WindowReader, WindowRows
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.left_rows import again_us
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.overflow import Overflow, low_room
from delayserver.state.memory.residency import Residency
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError
from store.indexes.outcome_index import OutcomeIndex
from wheel.keys import KEY_HIGHEST, Key
from wheel.window_cursor import LoadTicket

# Rows that a load adds to memory in one step: some 15 ms of work. A million rows in one step held up everybody for a second.
STEP_ROWS = 16_384
# Overdue windows are read many at a time, up to these bounds: of a small one the file costs more than its rows.
RUN_WINDOWS_MAX = 256
RUN_BYTES_MAX = 16 << 20
# Overdue windows wait so long for queues to empty. Then the near future, which memory holds in part, has to make room.
# The loader looks so often whether it is time for the next part of the near future.
NEAR_LOOK_MS = 250


@dataclass(frozen=True, slots=True)
class _Many:
    """The result of a read of several windows: their rows, side by side, and the errors of the others."""

    windows: list[int]
    found: list[WindowRows]
    damaged: dict[int, CorruptionError | DiskError]

    def leave_out(self, window_ms: int) -> None:
        """Forget the rows of a window."""
        place = self.windows.index(window_ms)
        del self.windows[place], self.found[place]


class Loader:
    """Fills the wheel from schedule_log."""

    def __init__(
        self,
        reader: WindowReader,
        windows: Windows,
        residency: Residency,
        overflow: Overflow,
        decided: Decided,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        self._reader = reader
        self._book = windows.book
        self._cursors = windows.cursors
        self._residency = residency
        self._overflow = overflow
        self._decided = decided
        self._settings = settings
        self._workers = runtime.workers
        self._damage = runtime.damage
        self._clock = runtime.clock
        self._stages = runtime.stages
        # Windows whose files could not be read, and until when they are left alone, monotonic.
        self._damaged: dict[int, int] = {}
        self.loads = 0

    async def run(self) -> None:
        """Load until cancelled. Rows that become due now come first: fresh messages do not wait for overdue windows. Nor do
        these wait for the rest of a near window that memory cannot hold (`load/turns.py`)."""
        overflow, loadable = self._overflow, self._residency.loadable
        short_since_us: int | None = None
        while True:
            loadable.hush()
            now_us = self._clock.monotonic_us()
            self._damaged = {window: until for window, until in self._damaged.items() if until > now_us}
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
            waits = bool(windows) and overflow.lacks(wanted)
            overflow.want_room(wanted if waits else None)
            if windows and not waits:
                if windows is overdue:  # what memory holds of the near future stays
                    turn = LoadTurn(room_beside_near(rows_max) if near_waits else 0, self._book.end(windows[-1]))
                else:
                    turn = LoadTurn(room_beside_overdue(rows_max, overflow.room) if overdue else 0)
                if len(windows) == 1:
                    await self._load(windows[0], turn)
                else:
                    await self._load_many(windows, turn)
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
        while following is not None and (following in self._damaged or self._book.start_of(following) != following):
            following = self._cursors.next_unloaded(following + self._book.window_ms, ahead_ms)
        return following

    def _overdue_windows(self) -> list[int]:
        """The first overdue windows that have something to load, as many as are read at once: at least one, if there is
        any."""
        windows: list[int] = []
        rows = size = 0
        for window in self._book.unloaded_before(self._book.window_of(self._clock.now_ms()), self._cursors):
            if window in self._damaged or self._cursors.is_loading(window):
                continue
            rows += self._book.rows(window)
            size += sum(self._reader.ends(window).values())
            if windows and (rows > STEP_ROWS or size > RUN_BYTES_MAX):
                break
            windows.append(window)
            if len(windows) == RUN_WINDOWS_MAX:
                break
        return windows

    async def _load(self, window_ms: int, turn: LoadTurn) -> None:
        began_us = self._clock.monotonic_us()
        ends = self._reader.ends(window_ms)
        ticket = self._cursors.begin_load(window_ms, ends, None)
        try:
            if any(ends.values()):
                async with self._decided.pinned(self._book.outcome_file(window_ms)) as index:
                    rows_max = self._settings.rows_max
                    read = partial(
                        self._reader.read, window_ms, ticket.end_offsets, ticket.from_key, ticket.to_key, rows_max
                    )
                    found = await self._workers.run(read)
                    loaded = found.loaded
                    if loaded.limit < KEY_HIGHEST:
                        self._drop_behind(loaded.limit, turn)
                    self._decided.add_lost_copies(window_ms, found.copies, index.missing(found.copies.sequence))
                    for part in loaded.parts(STEP_ROWS):
                        self._add_undone(ticket, part, index, turn)
                        if part.limit < KEY_HIGHEST:
                            self._cursors.bring(ticket, part.limit)
                            await trio.lowlevel.checkpoint()
        except (CorruptionError, DiskError) as error:
            self._abandon(window_ms, ticket, error)
            return
        except BaseException:
            # Some parts may be in memory; all keys of the ticket have to be a later load's again.
            self._residency.evict_after(max(ticket.from_key, Key(window_ms - 1, 1 << 62)))
            self._cursors.abandon_load(ticket)
            raise
        self._cursors.finish_load(ticket)
        self._book.was_read(window_ms)
        self._reader.was_read(window_ms)
        self._stages.load.add(self._clock.monotonic_us() - began_us)
        self.loads += 1

    def _abandon(self, window_ms: int, ticket: LoadTicket, error: CorruptionError | DiskError) -> None:
        """The other windows go on; somebody may repair this one meanwhile."""
        self._damage.report(error)
        self._cursors.abandon_load(ticket)
        self._damaged[window_ms] = self._clock.monotonic_us() + again_us(error)
        self._book.could_not_be_read(window_ms)

    async def _load_many(self, windows: list[int], turn: LoadTurn) -> None:
        """Load small windows together: one step takes their ends, one read in a thread, and one step adds their rows."""
        began_us = self._clock.monotonic_us()
        tickets = {window: self._cursors.begin_load(window, self._reader.ends(window), None) for window in windows}
        try:
            async with AsyncExitStack() as stack:
                indexes: dict[int, OutcomeIndex] = {}
                for window in filter(self._decided.has_file, windows):
                    try:
                        pinned = self._decided.pinned(self._book.outcome_file(window))
                        indexes[window] = await stack.enter_async_context(pinned)
                    except (CorruptionError, DiskError) as error:
                        self._abandon(window, tickets.pop(window), error)
                read = partial(self._read_many, tickets)
                found = await self._workers.run(read)
                for window, damage in found.damaged.items():
                    self._abandon(window, tickets.pop(window), damage)
                # One step from here on: what the indexes and the outcomes in memory know now is all that was decided.
                for window in [window for window in found.windows if window not in indexes]:
                    if self._decided.has_file(window):  # it was made meanwhile: the next load asks it
                        self._cursors.abandon_load(tickets.pop(window))
                        found.leave_out(window)
                if found.windows:
                    self._add_undone_of_many(found, tickets, indexes, turn)
        except BaseException:
            self._residency.evict_after(Key(windows[0] - 1, 1 << 62))
            for ticket in tickets.values():
                self._cursors.abandon_load(ticket)
            raise
        for window, ticket in tickets.items():
            self._cursors.finish_load(ticket)
            self._book.was_read(window)
            self._reader.was_read(window)
        self._stages.load.add(self._clock.monotonic_us() - began_us)
        self.loads += len(tickets)

    def _read_many(self, tickets: Mapping[int, LoadTicket]) -> _Many:
        found = _Many([], [], {})
        for window, ticket in tickets.items():
            try:
                rows = self._reader.read(window, ticket.end_offsets, ticket.from_key, ticket.to_key)
            except (CorruptionError, DiskError) as error:
                found.damaged[window] = error
            else:
                found.windows.append(window)
                found.found.append(rows)
        return found

    def _add_undone_of_many(
        self, found: _Many, tickets: Mapping[int, LoadTicket], indexes: Mapping[int, OutcomeIndex], turn: LoadTurn
    ) -> None:
        """`_add_undone` of several windows. A window without an index has no outcome in a file."""
        masks = []
        for window, rows in zip(found.windows, found.found, strict=True):
            index, loaded, copies = indexes.get(window), rows.loaded, rows.copies
            if len(copies):
                unwritten = self._decided.is_unknown(copies.due_ms, copies.sequence)
                missing = unwritten if index is None else index.missing(copies.sequence)
                self._decided.add_lost_copies(window, copies, missing)
            undone = np.ones(len(loaded), dtype=bool)
            if index is not None and len(index):
                undone &= index.missing(loaded.sequence)
            if not self._cursors.covers_all(tickets[window]):
                undone &= self._cursors.covers(tickets[window], loaded.due_ms, loaded.sequence)
            masks.append(undone)
        loaded = LoadedRows.concatenate([rows.loaded for rows in found.found])
        undone = np.concatenate(masks) & self._decided.is_unknown(loaded.due_ms, loaded.sequence)
        self._add(self._residency.admissible(loaded, undone), turn)

    def _add_undone(self, ticket: LoadTicket, loaded: LoadedRows, index: OutcomeIndex, turn: LoadTurn) -> None:
        """Add the rows of a part that are still to be delivered. One step: what the index knows now is all that was
        decided."""
        undone = index.missing(loaded.sequence) & self._cursors.covers(ticket, loaded.due_ms, loaded.sequence)
        self._add(self._residency.admissible(loaded, undone), turn)

    def _add(self, loaded: LoadedRows, turn: LoadTurn) -> None:
        """Add what memory can hold of a load, the earliest first, and at least one row; the rest is a later load's again."""
        room = max(self._overflow.room - turn.leave_rows, 1)
        if len(loaded) > room:
            loaded = loaded.take(np.lexsort((loaded.sequence, loaded.due_ms))[:room])
            self._drop_behind(Key(int(loaded.due_ms[-1]), int(loaded.sequence[-1])), turn)
        self._residency.add(loaded)

    def _drop_behind(self, key: Key, turn: LoadTurn) -> None:
        """A load ends at this key: what is behind it is a later load's again."""
        if turn.until_ms is None:
            self._residency.evict_after(key)
        else:
            self._residency.evict_between(key, turn.until_ms)

    def _put_before_later(self, window_ms: int) -> None:
        """A window that comes late, with messages that are due already or soon, does not wait behind later ones."""
        keep_ms = max(self._book.end(window_ms) - 1, self._clock.now_ms() + SOON_MS)
        wheel = self._residency.wheel
        in_queues = self._residency.rows_queued >= near_share(self._settings.rows_max)  # it would not fit all the same
        if not in_queues and wheel.rows_below(keep_ms + 1) < len(wheel):
            self._overflow.evict_beyond(NEAR_SHARE, keep_ms)
