"""Due rows on their way: from the wheel to the queue of their group or of a fallback group, to attempts, and back.

Each queue has a bound: past it its last rows leave memory (`Overflow`). For the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.fallbacks import Fallbacks
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.rows import has_order_key
from delayserver.state.memory.spilled import windows_of
from wheel.due_rows import DueRows
from wheel.keys import Key, first_key, last_key

# So many rows of a group that a node refuses, and not their neighbours, wait in memory.
REFUSED_ROWS_MAX = 8_192


class Queueing:
    """Owns the moves of due rows: which queue a row waits in."""

    def __init__(
        self, residency: Residency, overflow: Overflow, fallbacks: Fallbacks, slice_rows: int, runtime: Runtime
    ) -> None:
        """`slice_rows`: rows that move in one step."""
        self.slice_rows = slice_rows
        # Rung when there may be something to read back.
        self.emptied = Bell()
        self._residency = residency
        self._overflow = overflow
        self._fallbacks = fallbacks
        self._routes = residency.wheel.routes
        self._clock = runtime.clock
        self._stages = runtime.stages

    # -- into the queues

    def release(self, code: int, rows: DueRows) -> None:
        """Puts rows that left a wheel of a group into its queue, or into that of a fallback group while it is down.
        Rows with an order key go there behind those that are in the queue (`fail_over`)."""
        group = self._residency.groups[code]
        now_us = self._clock.now_us()
        rows.payload["released_us"] = np.maximum(rows.due_ms * 1000, now_us)
        self._stages.wheel.add(now_us - int(rows.due_ms[0]) * 1000)
        group.advance_released(Key(int(rows.due_ms[-1]), int(rows.sequence[-1])))
        # At once: the queue of a group that is down may be full of rows that have no fallback, and would drop these.
        rest = self._fail_over(group, rows) if group.down and not has_order_key(rows.payload[:1]).any() else rows
        if len(rest):
            self.push(group, rest)

    def push(self, group: GroupRows, rows: DueRows) -> None:
        """Append rows that are due to a queue. Past its bound its last rows leave memory."""
        group.queue.push(rows)
        self._bound(group)

    def push_front(self, group: GroupRows, rows: DueRows) -> None:
        """Put rows back to be taken first. Past the bound of the queue its last rows leave memory. Rows whose routes led
        to the group when their attempt began, and do so no more, go to the groups of now."""
        group.queue.push_front(self._kept_by(group, rows))
        self._bound(group)

    def put_aside(self, group: GroupRows, rows: DueRows, until_us: int) -> bool:
        """Leave rows alone until then (monotonic), as `push_front` does with the others. Returns False, and does nothing,
        where as many rows wait so as memory has for them."""
        if group.queue.rows_aside + len(rows) > min(REFUSED_ROWS_MAX, self._overflow.share // 4):
            return False
        group.queue.put_aside(self._kept_by(group, rows), until_us)
        return True

    def take_back(self, group: GroupRows) -> None:
        """Lets rows that were left alone for long enough wait with the others again."""
        group.queue.take_back(self._clock.monotonic_us())
        self._bound(group)

    def _kept_by(self, group: GroupRows, rows: DueRows) -> DueRows:
        """Give away the rows that no route leads to the group any more; returns the others."""
        if not self._routes.have_changed or not len(rows):
            return rows
        subjects = rows.payload["subject"]
        stays = self._routes.leads_to(subjects, group.name, group.code)
        if stays.all():
            return rows
        codes = np.where(stays, np.uint32(0), self._routes.groups(subjects))
        for code in np.unique(codes[~stays]).tolist():
            mine = rows.take(np.flatnonzero(codes == code))
            other = self._residency.groups[code]
            other.advance_released(last_key(mine.due_ms, mine.sequence))
            self.push(other, mine)
        return rows.take(np.flatnonzero(stays))

    def _bound(self, group: GroupRows) -> None:
        """Rows came into a queue: wake a worker, and let what is past the bound leave memory."""
        group.idle.unpark()
        self._overflow.keep(group, group.rows_max)

    def announce_emptied(self) -> None:
        """Wakes loads and the refill, because a group has no row left that waits."""
        self._overflow.offer_room()
        self.emptied.ring()

    # -- away from attempts

    def put_back(self, group: GroupRows, rows: DueRows) -> None:
        """Puts rows in flight back to the wheel: their due time lies ahead again, since the clock went back. If they
        have an order key, those that wait behind them follow."""
        self._residency.put_back(rows)
        if has_order_key(rows.payload[:1]).any():
            self._residency.put_back_keyed(group, first_key(rows.due_ms, rows.sequence))

    def leave(self, rows: DueRows, pause_us: int) -> None:
        """Leaves rows in flight on disk. Their windows are read again after a pause."""
        until_us = self._clock.monotonic_us() + pause_us
        route_numbers, windows = self._routes.route_numbers(rows.payload["subject"]), rows.payload["window_ms"]
        for code, route_number, window, _first in windows_of([rows], self._routes):
            if self._routes.have_changed:
                self._residency.groups[code].advance_released(last_key(rows.due_ms, rows.sequence))
            mine = (route_numbers == route_number) & (windows == window)
            self._residency.left.leave((code, route_number, window), rows.sequence[mine], until_us)

    # -- from queue to queue

    def fail_over(self, group: GroupRows) -> Iterator[int]:
        """Move rows of a group that fails to the fallback groups of their routes. The queue is gone through once, so that
        rows without a fallback do not hold back those behind them. Each step looks at `slice_rows` rows; gives how
        many went."""
        waiting, looked = group.queue.keyless_rows, 0
        while looked < waiting and self._fallbacks.any_instead_of(group):
            rows = group.queue.take(self.slice_rows, 1 << 62)
            if rows is None:
                break
            looked += len(rows)
            rest = self._fail_over(group, rows)
            group.queue.push(rest)
            yield len(rows) - len(rest)
        # One step for all of these: they go in their order, and those without a fallback keep theirs.
        keyed = group.queue.keyed.take(len(group.queue), 1 << 62)
        if keyed is not None:
            rest = self._fail_over(group, keyed)
            group.queue.push_front(rest)
            yield len(keyed) - len(rest)

    def _fail_over(self, group: GroupRows, rows: DueRows) -> DueRows:
        """Returns the rows that have no group that works."""
        route_numbers = self._routes.route_numbers(rows.payload["subject"])
        rest = np.ones(len(rows), dtype=bool)
        for route_number in np.unique(route_numbers).tolist():
            other = self._fallbacks.instead_of(group, route_number)
            if other is None:
                continue
            mine = route_numbers == route_number
            self.give(group, other, rows.take(np.flatnonzero(mine)))
            rest &= ~mine
        return rows if rest.all() else rows.take(np.flatnonzero(rest))

    def give(self, group: GroupRows, other: GroupRows, rows: DueRows) -> None:
        """Moves rows of a group to the queue of a fallback group."""
        group.counters.count_failed_over(len(rows), int(rows.payload["uncertain"].sum()))
        self.push(other, rows)
