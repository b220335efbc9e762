"""Windows whose rows left memory out of a queue. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from delayserver.runtime.marks import Mark
from delayserver.state.memory.routes import Routes
from delayserver.state.memory.rows import has_order_key
from wheel.due_rows import DueRows
from wheel.keys import KEY_LOWEST, Key


class Spilled:
    """Windows of rows that left memory, by the number of their route: those of one may have a stand-in while the others
    wait. Of each window the first of these rows is known: those before it are in memory. Writers: `Overflow` adds, the
    refill takes."""

    def __init__(self) -> None:
        self._windows: dict[int, SortedDict[int, Key]] = {}  # none of them empty
        self._reading: Key | None = None
        # How many windows were read: `first` may be later then.
        self.reads = Mark(0)

    def __len__(self) -> int:
        return len(set().union(*self._windows.values()))

    def __bool__(self) -> bool:
        return bool(self._windows)

    @property
    def route_numbers(self) -> list[int]:
        """The numbers of the routes that have any."""
        return list(self._windows)

    @property
    def first(self) -> Key | None:
        """The first row that left memory, one that is being read included; None if there is none."""
        waiting = self.first_waiting
        if self._reading is None or waiting is None:
            return waiting if self._reading is None else self._reading
        return min(waiting, self._reading)

    @property
    def reading(self) -> Key | None:
        """The first row of the window that is being read; None if none is."""
        return self._reading

    @property
    def first_waiting(self) -> Key | None:
        """The first row whose window is not being read; None if there is none."""
        return min([windows.peekitem(0)[1] for windows in self._windows.values()], default=None)

    @property
    def first_window_ms(self) -> int | None:
        """The start of the first window that is not being read; None if there is none."""
        return min([windows.peekitem(0)[0] for windows in self._windows.values()], default=None)

    def clear(self) -> None:
        """Know no window any more."""
        self._windows.clear()

    def add(self, window_ms: int, route_number: int = 0, first: Key | None = None) -> None:
        """Notes a window whose rows left memory, the first one of them at this key; None: any of the window."""
        windows = self._windows.setdefault(route_number, SortedDict())
        first = first or Key(window_ms, KEY_LOWEST.sequence)
        windows[window_ms] = min(windows.get(window_ms, first), first)

    def take(self, route_number: int | None = None) -> tuple[int, list[int]]:
        """Begins to read the first window of a route; None: of all routes. Returns its start, and the numbers of the routes
        that had it."""
        wanted = {
            route: self._windows[route] for route in (self.route_numbers if route_number is None else [route_number])
        }
        window_ms: int = min([windows.peekitem(0)[0] for windows in wanted.values()])
        had = [route for route, windows in wanted.items() if windows.peekitem(0)[0] == window_ms]
        self._reading = min([wanted[route].pop(window_ms) for route in had])
        for route in had:
            if not wanted[route]:
                del self._windows[route]
        return window_ms, had

    def end_read(self) -> None:
        """Ends the read of the window that was taken: its rows are back, or cannot be read."""
        self._reading = None
        self.reads.advance(self.reads.value + 1)


def windows_of(parts: list[DueRows], routes: Routes) -> Iterator[tuple[int, int, int, Key | None]]:
    """The windows behind the code of the group that the rows are routed to, also if another one stood in for it, and
    the number of their route. Behind them the first of the rows, or None where none has an order key."""
    subjects = np.concatenate([rows.payload["subject"] for rows in parts])
    windows = np.concatenate([rows.payload["window_ms"] for rows in parts])
    # The first row of each run of equal ones says all: a million rows may leave memory in one step.
    starts = np.flatnonzero((subjects[1:] != subjects[:-1]) | (windows[1:] != windows[:-1])) + 1
    starts = np.concatenate([np.zeros(1, np.intp), starts])
    lowest = _lowest_keys(parts, starts) if any(has_order_key(rows.payload).any() for rows in parts) else []
    subjects, windows = subjects[starts], windows[starts]
    codes, route_numbers = routes.groups(subjects), routes.route_numbers(subjects)
    for route_number in np.flatnonzero(np.bincount(route_numbers)).tolist():
        mine = route_numbers == route_number
        code = int(codes[np.argmax(mine)])  # a route has one
        first_of: dict[int, Key] = {}
        for run in np.flatnonzero(mine).tolist() if lowest else ():
            window, key = int(windows[run]), lowest[run]
            first_of[window] = min(first_of.get(window, key), key)
        for window in np.unique(windows[mine]).tolist():
            yield code, route_number, window, first_of.get(window)


def _lowest_keys(parts: list[DueRows], starts: NDArray[np.intp]) -> list[Key]:
    """The lowest key of each run of rows; the runs begin at `starts`."""
    due_ms = np.concatenate([rows.due_ms for rows in parts])
    sequence = np.concatenate([rows.sequence for rows in parts])
    lowest_ms = np.minimum.reduceat(due_ms, starts)
    of_lowest = due_ms == np.repeat(lowest_ms, np.diff(starts, append=len(due_ms)))
    lowest = np.minimum.reduceat(np.where(of_lowest, sequence, np.iinfo(np.int64).max), starts)
    return [Key(*key) for key in zip(lowest_ms.tolist(), lowest.tolist(), strict=True)]
