"""The way back of rows that left memory out of a queue: which spilled windows are read now, and which queue takes the rows.

`Refill` reads the files. For the event loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.fallbacks import Fallbacks
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.left_rows import again_us
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.order_gate import loaded_ms
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.queueing import Queueing
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.rows import has_order_key
from delayserver.state.windows.windows import Windows
from wheel.due_rows import DueRows
from wheel.keys import Key, through

# A queue in which so many rows wait for keys that pause counts as empty.
PAUSING_ROWS_MAX = 16_384


class ReadBack:
    """Owns the decision when rows come back to queues."""

    def __init__(
        self,
        residency: Residency,
        overflow: Overflow,
        fallbacks: Fallbacks,
        queueing: Queueing,
        windows: Windows,
        runtime: Runtime,
    ) -> None:
        # Rung when there may be something to read back.
        self.emptied = queueing.emptied
        self._residency = residency
        self._overflow = overflow
        self._fallbacks = fallbacks
        self._queueing = queueing
        self._windows = windows
        self._clock = runtime.clock

    def spilled(self) -> list[tuple[GroupRows, int | None]]:
        """Groups with windows to read back now. With a route number only the rows of that route are to be read."""
        for code, route_number, window in self._residency.left.end_rests(self._clock.monotonic_us()):
            self._residency.groups[code].spilled.add(window, route_number)
        groups = self._residency.groups.values()
        ways = [(group, number) for group in groups for number in (None, *group.spilled.route_numbers)]
        return [way for way in ways if self.may_read_back(*way)]

    def may_read_back(self, group: GroupRows, route_number: int | None) -> bool:
        """Whether a spilled window may be read back now: all of it where the queue of the group is empty, the rows of one
        route where an idle fallback group takes them."""
        if route_number is None:
            return bool(group.spilled) and self._is_idle(group) and self._is_its_turn(group)
        # Those of a key that wait go first. While they fill the queue, or its share, what is read back would leave it again.
        gone = len(group.queue.keyed) <= min(self._overflow.share, group.rows_max) // 2
        has_rows = route_number in group.spilled.route_numbers
        return gone and has_rows and self._idle_fallback(group, route_number) is not None

    def _is_its_turn(self, group: GroupRows) -> bool:
        """Whether the first spilled window may be read back beside overdue windows that are not loaded. Where there are
        order keys, those come first: its rows would leave memory again for them."""
        if not self._residency.wheel.knows_keys_of(group.code):
            return True
        first_ms = group.spilled.first_window_ms
        return first_ms is not None and first_ms <= loaded_ms(self._windows, self._clock.now_ms())

    def _is_idle(self, group: GroupRows) -> bool:
        """Whether rows may be read back: none waits. While keys pause, their rows may wait; they hold up no others."""
        queue = group.queue
        if not len(queue):
            return True
        rows_max = min(PAUSING_ROWS_MAX, self._overflow.share // 2, group.rows_max // 2)
        return not queue.keyless_rows and queue.keyed.pauses and len(queue) <= rows_max

    def _idle_fallback(self, group: GroupRows, route_number: int) -> GroupRows | None:
        """The group for which rows may be read back while others of `group`, which is down, wait in its queue."""
        other = self._fallbacks.instead_of(group, route_number) if group.down else None
        return other if other is not None and self._is_idle(other) else None

    def read_later(self, group: GroupRows, route_numbers: list[int], window_ms: int, error: Exception) -> None:
        """Has a spilled window read again after a pause, because it cannot be read now, for this reason."""
        for route_number in route_numbers:
            if group.code in self._residency.groups:  # what a group that is gone has left is loaded
                until_us = self._clock.monotonic_us() + again_us(error)
                self._residency.left.put_off((group.code, route_number, window_ms), until_us)

    def taker(self, group: GroupRows, route_number: int | None) -> GroupRows | None:
        """The group whose queue takes rows that are read back: with a route number the fallback group of that route."""
        return group if route_number is None else self._idle_fallback(group, route_number)

    def routed(self, group: GroupRows, route_number: int | None, loaded: LoadedRows) -> NDArray[np.bool_]:
        """True where the wheel has released a row to the group. With a route number: for rows of that route alone."""
        subjects = loaded.rows["subject"]
        mask: NDArray[np.bool_] = self._residency.wheel.codes(subjects) == group.code
        mask &= through(group.released_to, loaded.due_ms, loaded.sequence)
        if route_number is not None:
            mask &= self._residency.wheel.routes.route_numbers(subjects) == route_number
        return mask

    def take(
        self, group: GroupRows, route_number: int | None, taker: GroupRows | None, loaded: LoadedRows
    ) -> tuple[bool, Key | None]:
        """`admissible` rows of a spilled window, in their order, go back to the queue of `taker`; those with an order key to
        their wheel. Returns whether a queue got rows, and the first row for which there is no room."""
        rows = DueRows(loaded.due_ms, loaded.sequence, loaded.rows)
        rows = rows.take(np.flatnonzero(~self._residency.wheel.contains(rows.due_ms, rows.sequence)))
        if route_number is not None and taker and self._fallbacks.instead_of(group, route_number) is not taker:
            taker = None  # it has enough, or fails now
        # Overdue rows go before the far end of the wheel, which is read again in its time.
        most = 0 if taker is None else max(self._overflow.room, self._overflow.share - len(taker.queue), 0)
        now, later = rows.slice(0, most), rows.slice(most, len(rows))
        keyed = has_order_key(now.payload)
        if keyed.any():  # others of their keys may be in the wheel that are due earlier
            self._residency.put_back(now.take(np.flatnonzero(keyed)))
            now = now.take(np.flatnonzero(~keyed))
        if taker is group:
            self._queueing.push(group, now)
        elif taker is not None and len(now):
            self._queueing.give(group, taker, now)
        self._overflow.enforce_bound()
        return len(now) > 0, Key(int(later.due_ms[0]), int(later.sequence[0])) if len(later) else None
