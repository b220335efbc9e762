"""Ranges of a consume queue that are redelivered in their place, without a record in the delay pipeline.

A range waits for its time, is ready, or is leased again. Pure, in positions. Seven arrays, 49 bytes a range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.ranges import Range
from store.records.batches import I64

WAITING, READY, LEASED = 0, 1, 2


class Place(NamedTuple):
    """Positions [start, stop). `times`: how often they were handed out, a present lease included.

    `until_us`, by the clock of leases: when a waiting range becomes ready, or when a lease ends. `until_ms`: the same
    for a waiting range by the wall clock, for the progress log; otherwise 0. `owner`: to whom a lease belongs; 0: to nobody.
    """

    start: int
    stop: int
    times: int
    state: int
    until_us: int = 0
    until_ms: int = 0
    owner: int = 0


class Places:
    """Disjoint ranges in ascending order. Adjacent ranges with the same fields are one range."""

    __slots__ = ("_owner", "_starts", "_state", "_stops", "_times", "_until_ms", "_until_us")

    def __init__(self) -> None:
        self._starts = array("q")
        self._stops = array("q")
        self._times = array("q")
        self._state = array("b")
        self._until_us = array("q")
        self._until_ms = array("q")
        self._owner = array("q")

    def __len__(self) -> int:
        """Number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Place]:
        return map(self._place, range(len(self._starts)))

    def _place(self, index: int) -> Place:
        return Place(
            self._starts[index],
            self._stops[index],
            self._times[index],
            self._state[index],
            self._until_us[index],
            self._until_ms[index],
            self._owner[index],
        )

    @property
    def stop(self) -> int:
        """The position behind the last range, 0 without any."""
        return self._stops[-1] if self._stops else 0

    def count(self, *states: int) -> int:
        """Count of positions in these states. O(ranges)."""
        if not self._starts:
            return 0
        wanted = np.isin(np.array(self._state, np.int8), states)
        return int((np.array(self._stops, np.int64) - np.array(self._starts, np.int64))[wanted].sum())

    def parts(self, start: int, stop: int) -> list[Place]:
        """The ranges that overlap [start, stop), cut to it."""
        first, last = self._overlap(start, stop)
        return [
            place._replace(start=max(place.start, start), stop=min(place.stop, stop))
            for place in map(self._place, range(first, last))
        ]

    def _overlap(self, start: int, stop: int) -> tuple[int, int]:
        """Indices of the ranges that share a position with [start, stop)."""
        first = bisect_right(self._stops, start)
        return first, max(first, bisect_left(self._starts, stop))

    def put(self, place: Place) -> None:
        """Set a range. It replaces all ranges of these positions."""
        if place.start >= place.stop:
            return
        self.remove(place.start, place.stop)
        first = last = bisect_left(self._starts, place.start)
        alike = place[2:]
        if first and self._stops[first - 1] == place.start and self._place(first - 1)[2:] == alike:
            first -= 1
            place = place._replace(start=self._starts[first])
        if last < len(self._starts) and self._starts[last] == place.stop and self._place(last)[2:] == alike:
            place = place._replace(stop=self._stops[last])
            last += 1
        self._splice(first, last, [place])

    def lease_all(self, starts: I64, stops: I64, times: I64, until_us: int, owner: int) -> None:
        """Lease ranges i64[n] that ascend and do not overlap, until this time. They replace all ranges of theirs."""
        if not len(starts):
            return
        columns = self._columns()
        old = [np.array(column, np.int64) for column in columns]
        count, zeros = len(starts), np.zeros(len(starts), np.int64)
        new = [starts, stops, times, zeros + LEASED, zeros + until_us, zeros, zeros + owner]
        # Between two neighbouring edges all positions are in the same ranges. An old range ends where a new one begins.
        edges = np.unique(np.concatenate((old[0], old[1], starts, stops)))
        low, high = edges[:-1], edges[1:]
        of_old, of_new = [np.searchsorted(first, low, side="right") - 1 for first in (old[0], starts)]
        in_new = (of_new >= 0) & (stops[np.maximum(of_new, 0)] > low)
        in_old = np.zeros(len(low), bool)
        if len(old[0]):
            in_old = (of_old >= 0) & (old[1][np.maximum(of_old, 0)] > low)
        kept = in_old | in_new
        row = np.where(in_new, of_new, of_old + count)[kept]
        values = [low[kept], high[kept], *[np.concatenate(pair)[row] for pair in zip(new[2:], old[2:], strict=True)]]
        for column, of_column in zip(columns, values, strict=True):
            del column[:]
            column.frombytes(of_column.astype(column.typecode).tobytes())
        self._join()

    def owned_by(self, owners: set[int]) -> list[Range]:
        """The leased ranges that belong to these owners."""
        owned = np.isin(np.array(self._owner, np.int64), list(owners)) & (np.array(self._state, np.int8) == LEASED)
        return [(self._starts[index], self._stops[index]) for index in np.flatnonzero(owned).tolist()]

    def are_leased(self, positions: I64) -> NDArray[np.bool_]:
        """Which positions, i64[n], are leased in a range or are in none, bool[n]."""
        if not self._starts:
            return np.ones(len(positions), bool)
        index = np.searchsorted(np.array(self._starts, np.int64), positions, side="right") - 1
        outside = (index < 0) | (np.array(self._stops, np.int64)[np.maximum(index, 0)] <= positions)
        leased: NDArray[np.bool_] = outside | (np.array(self._state, np.int8)[np.maximum(index, 0)] == LEASED)
        return leased

    def remove(self, start: int, stop: int) -> None:
        """Remove [start, stop). Ranges that overlap it are cut."""
        first, last = self._overlap(start, stop)
        if start >= stop or first == last:
            return
        left, right = self._place(first), self._place(last - 1)
        kept = [left._replace(stop=min(left.stop, start)), right._replace(start=max(right.start, stop))]
        self._splice(first, last, [place for place in kept if place.start < place.stop])

    def _splice(self, first: int, last: int, places: list[Place]) -> None:
        self._starts[first:last] = array("q", [place.start for place in places])
        self._stops[first:last] = array("q", [place.stop for place in places])
        self._times[first:last] = array("q", [place.times for place in places])
        self._state[first:last] = array("b", [place.state for place in places])
        self._until_us[first:last] = array("q", [place.until_us for place in places])
        self._until_ms[first:last] = array("q", [place.until_ms for place in places])
        self._owner[first:last] = array("q", [place.owner for place in places])

    def release(self, now_us: int) -> bool:
        """Make waiting ranges ready whose time has come. True if there were any."""
        due = self._waiting() & (np.array(self._until_us, np.int64) <= now_us)
        if not due.any():
            return False
        for index in np.flatnonzero(due).tolist():
            self._state[index], self._until_us[index], self._until_ms[index] = READY, 0, 0
        self._join()
        return True

    def _columns(self) -> tuple[array[int], ...]:
        """The columns, in the order of the fields of `Place`."""
        return (self._starts, self._stops, self._times, self._state, self._until_us, self._until_ms, self._owner)

    def _join(self) -> None:
        """Merge adjacent ranges with the same fields."""
        columns = self._columns()
        starts, stops, *rest = [np.array(column) for column in columns]
        apart = starts[1:] != stops[:-1]
        for values in rest:
            apart |= values[1:] != values[:-1]
        kept, last = np.append(True, apart), np.append(apart, True)
        joined = [starts[kept], stops[last], *[values[kept] for values in rest]]
        for column, values in zip(columns, joined, strict=True):
            del column[:]
            column.frombytes(values.tobytes())

    def first_ready(self) -> Place | None:
        """The ready range with the lowest positions."""
        index = self._state.tobytes().find(READY)
        return None if index < 0 else self._place(index)

    def next_until_us(self) -> int | None:
        """When the first waiting range becomes ready; None if none waits."""
        until_us = np.array(self._until_us, np.int64)[self._waiting()]
        return int(until_us.min()) if len(until_us) else None

    def _waiting(self) -> NDArray[np.bool_]:
        waiting: NDArray[np.bool_] = np.array(self._state, np.int8) == WAITING
        return waiting

    def overlay(self, start: int, times: I64) -> None:
        """Set `times` i64[n], for positions from `start` on in a range: how often each was handed out before a present
        lease."""
        for place in self.parts(start, start + len(times)):
            times[place.start - start : place.stop - start] = place.times - (place.state == LEASED)

    def missing(self, start: int, stop: int) -> list[Range]:
        """The parts of [start, stop) that are in no range."""
        gaps: list[Range] = []
        for place in self.parts(start, stop):
            if place.start > start:
                gaps.append((start, place.start))
            start = place.stop
        return [*gaps, (start, stop)] if start < stop else gaps

    def check_invariants(self) -> None:
        """Ranges are ascending, disjoint and not empty, and have known states."""
        places = list(self)
        assert all(place.start < place.stop and place.state in (WAITING, READY, LEASED) for place in places)
        for left, right in pairwise(places):
            assert left.stop <= right.start, "ranges overlap"
        columns = self._columns()
        assert len({len(column) for column in columns}) == 1, "columns of different lengths"
