"""The loading and loaded cursors: which records are the loader's, and which go straight from the replayer to the wheel.

The replayer appends records to schedule files; the loader reads them back some time ahead of their due time. A record
must reach the wheel by exactly one of the two, whatever the order of events. So for every window of due time
this file keeps *slices* of its key range, each with the end offsets its files had when the range was taken:

    key        lowest ........ (due 10, seq 7) ........ (due 25, seq 3) ........ highest
    slice      |     loaded          |       loading           |    not taken yet
    ends       | direct 4096, day 0  | direct 8192, day 512    |

A row whose key lies in a slice is the loader's if its record begins below the slice's end offset of its source, and
goes straight to the wheel otherwise. A row behind the last slice (behind the *limit*) belongs to a later load,
whatever its offset. A window has one file per source ("direct": replayed from message_log, "day": from a coarse day);
offsets count per file.

Exactly once rests on what the caller does in one step of the event loop, with no await in between:

- ask `owner`, once for each record, and add the rows it names to the wheel. The record may have been appended
  earlier: a load that captured its end offset in between owns it, and the offset says so;
- read the end offsets of all files of the window, and `begin_load`;
- filter the loaded rows by `covers`, add them to the wheel, and `finish_load`;
- drop rows from the wheel by `HashedWheel.evict_after`, and `evict_after` here with the same key; or by
  `evict_between`, with the same key and time.

A source that has no file yet counts as end offset 0, so that everything which comes later goes straight to the wheel.
Pure: no files, no clock. The caller knows which rows are on disk, and which have an outcome already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sortedcontainers import SortedDict

from wheel.keys import KEY_HIGHEST, KEY_LOWEST, Int64s, Key, Mask
from wheel.window_cursor import CursorError, LoadTicket, WindowCursor


class LoadCursors:
    """Cursors of all windows of `window_ms`; a window is named by its start, a multiple of `window_ms` since the
    epoch. Some windows may be longer: then there are none within them."""

    def __init__(self, window_ms: int, start_of: Callable[[int], int] | None = None) -> None:
        """`start_of` gives the start of the window of a due time, where not all windows have the same length."""
        if window_ms < 1:
            raise ValueError(f"window_ms must be at least 1, not {window_ms}")
        self._window_ms = window_ms
        self._start_of = start_of or (lambda due_ms: due_ms // window_ms * window_ms)
        self._windows: Any = SortedDict()  # Window start to WindowCursor.
        self._next_ticket = 1

    def begin_load(
        self, window_start_ms: int, end_offsets: Mapping[str, int], key_limit: Key | None = None
    ) -> LoadTicket:
        """Takes the keys from the window's limit through `key_limit` (None: through the end) for a load.

        The ticket names what to load: keys in (from_key, to_key] of records that begin below its end offsets. After
        an abandoned load that is the abandoned range, or its part through `key_limit`, with the end offsets captured
        first. Raises CursorError where the window has a load in flight, or nothing is left to load through
        `key_limit`.
        """
        self._check_window(window_start_ms)
        window = self._windows.get(window_start_ms) or WindowCursor(window_start_ms)
        ticket = window.begin(self._next_ticket, end_offsets, key_limit or KEY_HIGHEST)
        self._next_ticket += 1
        self._windows[window_start_ms] = window
        return ticket

    def bring(self, ticket: LoadTicket, key: Key) -> None:
        """Marks rows as brought, for a load in steps: those of the ticket with keys through this one, which `covers`
        named, are in the wheel. Raises CursorError for an unknown ticket."""
        self._window_of(ticket).bring(ticket, key)

    def finish_load(self, ticket: LoadTicket) -> None:
        """Ends a load: the rows of the ticket that `covers` still names are in the wheel. Raises CursorError for an
        unknown ticket."""
        self._window_of(ticket).finish(ticket)
        self._forget_untouched(ticket.window_start_ms)

    def abandon_load(self, ticket: LoadTicket) -> None:
        """The load failed, and none of its rows is in the wheel (evict through `ticket.from_key` first if some are).

        Rows of the range that went straight to the wheel since `begin_load` stay there, and new ones go on to do so.
        So the range keeps its end offsets until a later load takes it: that one loads what this one should have, no
        more. Raises CursorError for an unknown ticket.
        """
        self._window_of(ticket).abandon(ticket)
        self._forget_untouched(ticket.window_start_ms)

    def covers(self, ticket: LoadTicket, due_ms: Int64s, sequence: Int64s) -> Mask:
        """True for each of n loaded rows that the ticket still covers, bool[n]: False where an eviction has taken it.

        Raises CursorError for an unknown ticket.
        """
        return self._window_of(ticket).covers(ticket, due_ms, sequence)

    def covers_all(self, ticket: LoadTicket) -> bool:
        """Whether the ticket still covers every key of its range: no eviction has taken a part of it.

        Raises CursorError for an unknown ticket.
        """
        return self._window_of(ticket).covers_all(ticket)

    def owner(self, window_start_ms: int, source: str, offset: int, due_ms: Int64s, sequence: Int64s) -> Mask:
        """True for each of n rows of the record at `offset` that the replayer must add to the wheel: bool[n].

        False: a load that runs or is still to come brings it. To be asked once per record, when it is appended or
        later.
        """
        window = self._windows.get(window_start_ms)
        if window is None:
            return np.zeros(len(due_ms), np.bool_)
        direct: Mask = window.owner(source, offset, due_ms, sequence)
        return direct

    def holds(self, window_start_ms: int, source: str, offset: Int64s, due_ms: Int64s, sequence: Int64s) -> Mask:
        """True for each of n rows, in records at `offset`, that is in the wheel, or was before the wheel released it.

        A load has brought such a row, or the replayer has added it. False where a load that runs or is still to come
        brings it.

        Of rows about which `owner` was asked already: bool[n].
        """
        window = self._windows.get(window_start_ms)
        if window is None:
            return np.zeros(len(due_ms), np.bool_)
        held: Mask = window.holds(source, offset, due_ms, sequence)
        return held

    def brought(self, window_start_ms: int, source: str, offset: Int64s, due_ms: Int64s, sequence: Int64s) -> Mask:
        """True for each of n rows, in records at `offset`, that a load has brought to the wheel, bool[n]. Nobody else does:
        `owner` was never asked about such a row, or said that a load brings it."""
        window = self._windows.get(window_start_ms)
        if window is None:
            return np.zeros(len(due_ms), np.bool_)
        brought: Mask = window.brought(source, offset, due_ms, sequence)
        return brought

    def is_taken(self, window_start_ms: int) -> bool:
        """Whether a part of this window is loaded or being loaded, so that new rows of it may go straight to the wheel."""
        return window_start_ms in self._windows

    def evict(self, window_start_ms: int, key: Key) -> None:
        """Rows of this window with a greater key were dropped from the wheel: they are a later load's again.

        A load in flight loses that part of its range (see `covers`) and must still be finished or abandoned.
        """
        window = self._windows.get(window_start_ms)
        if window is not None:
            # A key before the window leaves nothing of it; said so, the window needs no cursor any more.
            window.evict(KEY_LOWEST if key.due_ms < window_start_ms else key)
            self._forget_untouched(window_start_ms)

    def evict_after(self, key: Key) -> None:
        """`evict` for all windows: the counterpart of `HashedWheel.evict_after`."""
        for window_start_ms in list(self._windows.irange(minimum=self._start_of(key.due_ms))):
            self.evict(window_start_ms, key)

    def evict_between(self, key: Key, until_ms: int) -> None:
        """`evict` for the windows that start before `until_ms`, where one ends: the counterpart of
        `HashedWheel.evict_between`."""
        bounds = self._start_of(key.due_ms), until_ms
        for window_start_ms in list(self._windows.irange(*bounds, inclusive=(True, False))):
            self.evict(window_start_ms, key)

    def forget(self, window_start_ms: int) -> None:
        """The window is complete and will get no more records; it counts as never taken from now on.

        Raises CursorError where a load of it is in flight.
        """
        window = self._windows.get(window_start_ms)
        if window is not None and window.loading:
            raise CursorError(f"window {window_start_ms}: a load is in flight; finish or abandon it before forgetting")
        self._windows.pop(window_start_ms, None)

    def limit(self, window_start_ms: int) -> Key:
        """The `loading` cursor inside a window: keys through it are taken. KEY_LOWEST: none, KEY_HIGHEST: all."""
        window = self._windows.get(window_start_ms)
        return KEY_LOWEST if window is None else window.limit

    def loaded_limit(self, window_start_ms: int) -> Key:
        """The `loaded` cursor inside a window: all rows with keys through it have reached the wheel."""
        window = self._windows.get(window_start_ms)
        return KEY_LOWEST if window is None else window.loaded_limit

    def is_loading(self, window_start_ms: int) -> bool:
        """Whether a load of this window is in flight."""
        window = self._windows.get(window_start_ms)
        return window is not None and window.loading

    def is_loaded(self, window_start_ms: int) -> bool:
        """Whether the whole window is in the wheel."""
        window = self._windows.get(window_start_ms)
        return window is not None and window.is_loaded

    def windows(self, until_ms: int | None = None) -> list[int]:
        """Starts of all windows with a cursor, in order; with `until_ms` of those that start up to then."""
        return list(self._windows.irange(maximum=until_ms))

    def is_taken_between(self, start_ms: int, stop_ms: int) -> bool:
        """Whether a window that starts in [start_ms, stop_ms) has a cursor."""
        return next(self._windows.irange(start_ms, stop_ms, inclusive=(True, False)), None) is not None

    def next_unloaded(self, floor_ms: int, ceiling_ms: int) -> int | None:
        """The first window from the one around `floor_ms`, starting before `ceiling_ms`, that a load can be begun for.

        That is: not loaded as a whole, and no load in flight. None where there is none.
        """
        for start in range(floor_ms // self._window_ms * self._window_ms, ceiling_ms, self._window_ms):
            window = self._windows.get(start)
            if window is None or (not window.loading and not window.is_loaded):
                return start
        return None

    def check_invariants(self) -> None:
        tickets: list[int] = []
        for start, window in self._windows.items():
            assert start == window.window_start_ms and start % self._window_ms == 0
            window.check_invariants()
            assert window.slices or window.loading, "an untouched window has no cursor"
            if window.loading:
                tickets.append(window.ticket.number)
        assert len(tickets) == len(set(tickets)) and all(number < self._next_ticket for number in tickets)

    def _check_window(self, window_start_ms: int) -> None:
        if window_start_ms % self._window_ms:
            raise CursorError(f"window start {window_start_ms} is not a multiple of window_ms {self._window_ms}")

    def _window_of(self, ticket: LoadTicket) -> WindowCursor:
        window: WindowCursor | None = self._windows.get(ticket.window_start_ms)
        if window is None:
            raise CursorError(f"window {ticket.window_start_ms}: load {ticket.number} is not in flight")
        window.check_ticket(ticket)
        return window

    def _forget_untouched(self, window_start_ms: int) -> None:
        window = self._windows[window_start_ms]
        if not window.slices and not window.loading:
            del self._windows[window_start_ms]
