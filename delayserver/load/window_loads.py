"""Loads windows: what their files hold up to a captured end goes to memory, unless it has an outcome.

Moving the `loading` cursor and capturing the ends of the window's files is one step on the event loop (`begin_load`);
what lies below those ends is read here, what comes later goes from the replayer straight to the wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import trio

from delayserver.load.load_turn import LoadTurn
from delayserver.load.window_reader import WindowReader, WindowRows
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.left_rows import again_us
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.residency import Residency
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError
from store.indexes.outcome_index import OutcomeIndex
from wheel.keys import KEY_HIGHEST, Key
from wheel.window_cursor import LoadTicket

# Rows that a load adds to memory in one step: some 15 ms of work. A million rows in one step held up everybody for a second.
STEP_ROWS = 16_384


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


class WindowLoads:
    """Files of windows → residency."""

    def __init__(
        self,
        reader: WindowReader,
        windows: Windows,
        residency: Residency,
        overflow: Overflow,
        decided: Decided,
        rows_max: int,
        runtime: Runtime,
    ) -> None:
        """`rows_max`: of one window at most so many rows are read at once."""
        self._reader = reader
        self._book = windows.book
        self._cursors = windows.cursors
        self._residency = residency
        self._overflow = overflow
        self._decided = decided
        self._rows_max = rows_max
        self._workers = runtime.workers
        self._damage = runtime.damage
        self._clock = runtime.clock
        # Windows whose files could not be read, and until when they are left alone, monotonic.
        self._damaged: dict[int, int] = {}

    def left_alone(self) -> set[int]:
        """The windows that are not loaded now, because their files could not be read a short time ago."""
        now_us = self._clock.monotonic_us()
        self._damaged = {window: until for window, until in self._damaged.items() if until > now_us}
        return {*self._damaged}

    async def load(self, windows: list[int], turn: LoadTurn) -> int:
        """Load windows, as many as memory can hold of their rows. Returns how many could be read."""
        return await (self._load_one(windows[0], turn) if len(windows) == 1 else self._load_many(windows, turn))

    async def _load_one(self, window_ms: int, turn: LoadTurn) -> int:
        ends = self._reader.ends(window_ms)
        ticket = self._cursors.begin_load(window_ms, ends, None)
        try:
            if any(ends.values()):
                async with self._decided.pinned(self._book.outcome_file(window_ms)) as index:
                    read = partial(
                        self._reader.read, window_ms, ticket.end_offsets, ticket.from_key, ticket.to_key, self._rows_max
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
            return 0
        except BaseException:
            # Some parts may be in memory; all keys of the ticket have to be a later load's again.
            self._residency.evict_after(max(ticket.from_key, Key(window_ms - 1, 1 << 62)))
            self._cursors.abandon_load(ticket)
            raise
        self._cursors.finish_load(ticket)
        self._book.mark_read(window_ms)
        self._reader.forget_failures(window_ms)
        return 1

    def _abandon(self, window_ms: int, ticket: LoadTicket, error: CorruptionError | DiskError) -> None:
        """The other windows go on; somebody may repair this one meanwhile."""
        self._damage.report(error)
        self._cursors.abandon_load(ticket)
        self._damaged[window_ms] = self._clock.monotonic_us() + again_us(error)
        self._book.mark_unreadable(window_ms)

    async def _load_many(self, windows: list[int], turn: LoadTurn) -> int:
        """Load small windows together: one step takes their ends, one read in a thread, and one step adds their rows."""
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
            self._book.mark_read(window)
            self._reader.forget_failures(window)
        return len(tickets)

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
