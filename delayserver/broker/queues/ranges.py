"""Sets of positions as ranges. Pure; acking a thousand consecutive deliveries changes one range."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64

Range = tuple[int, int]


class RangeSet:
    """Disjoint, ascending, non-adjacent ranges [start, stop) of integers, 16 bytes each."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts = array("q")
        self._stops = array("q")

    def __len__(self) -> int:
        """Number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def count(self) -> int:
        """Number of integers in the set."""
        return sum(self._stops) - sum(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Add [start, stop). It merges with ranges that it overlaps or touches."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = array("q", (start,))
        self._stops[first:last] = array("q", (stop,))

    def extend(self, ranges: list[Range]) -> None:
        """Add ranges that ascend without touching each other. It is quick if they begin behind all that is in the set or at
        its end."""
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        if self._stops and starts and self._stops[-1] > starts[0]:
            for start, stop in ranges:
                self.add(start, stop)
            return
        if self._stops and starts and self._stops[-1] == starts[0]:
            del starts[0]
            self._stops[-1] = stops.pop(0)
        self._starts.extend(starts)
        self._stops.extend(stops)

    def update(self, starts: I64, stops: I64) -> None:
        """Add many ranges [start, stop), i64[n] each, in any order."""
        starts = np.concatenate((np.frombuffer(self._starts, np.int64), starts))
        stops = np.concatenate((np.frombuffer(self._stops, np.int64), stops))
        if not len(starts):
            return
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(stops[order])
        apart = starts[1:] > reach[:-1]
        self._starts = array("q", starts[np.append(True, apart)].tobytes())
        self._stops = array("q", reach[np.append(apart, True)].tobytes())

    def meets(self, starts: I64, stops: I64) -> bool:
        """Whether any of these ranges shares an integer with the set."""
        if not self._starts:
            return False
        first = np.searchsorted(np.frombuffer(self._stops, np.int64), starts, side="right")
        last = np.searchsorted(np.frombuffer(self._starts, np.int64), stops)
        return bool((first < last).any())

    def covers(self, starts: I64, stops: I64) -> NDArray[np.bool_]:
        """Which of these ranges lie wholly in the set, bool[n]."""
        if not self._starts:
            return np.zeros(len(starts), bool)
        index = np.searchsorted(np.frombuffer(self._starts, np.int64), starts, side="right") - 1
        covered: NDArray[np.bool_] = np.frombuffer(self._stops, np.int64)[np.maximum(index, 0)] >= stops
        return covered & (index >= 0)

    def remove(self, start: int, stop: int) -> None:
        """Remove [start, stop)."""
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if start >= stop or first >= last:
            return
        left, right = self._starts[first], self._stops[last - 1]
        kept = [(low, high) for low, high in ((left, start), (stop, right)) if low < high]
        self._starts[first:last] = array("q", [low for low, _ in kept])
        self._stops[first:last] = array("q", [high for _, high in kept])

    def missing(self, start: int, stop: int) -> list[Range]:
        """The parts of [start, stop) that are not in the set."""
        gaps: list[Range] = []
        index = bisect_right(self._stops, start)
        while start < stop and index < len(self._starts) and self._starts[index] < stop:
            if self._starts[index] > start:
                gaps.append((start, self._starts[index]))
            start = self._stops[index]
            index += 1
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def common(self, start: int, stop: int) -> list[Range]:
        """The parts of [start, stop) that are in the set."""
        parts: list[Range] = []
        index = bisect_right(self._stops, start)
        while index < len(self._starts) and self._starts[index] < stop:
            parts.append((max(start, self._starts[index]), min(stop, self._stops[index])))
            index += 1
        return parts

    def following(self, position: int) -> int | None:
        """The end of the range that holds `position`; None if `position` is not in the set."""
        index = bisect_right(self._starts, position) - 1
        return self._stops[index] if index >= 0 and self._stops[index] > position else None

    def around(self, position: int) -> Range | None:
        """The range that holds `position`; None if it is not in the set."""
        index = bisect_right(self._starts, position) - 1
        if index < 0 or self._stops[index] <= position:
            return None
        return self._starts[index], self._stops[index]

    def next_start(self, position: int) -> int | None:
        """The first start of a range above `position`; None if there is none."""
        index = bisect_right(self._starts, position)
        return self._starts[index] if index < len(self._starts) else None

    def drop_below(self, position: int) -> None:
        """Remove all integers below `position`."""
        if self._starts and self._starts[0] < position:
            self.remove(self._starts[0], position)

    def check_invariants(self) -> None:
        """Ranges are ascending, disjoint, not adjacent and not empty."""
        assert len(self._starts) == len(self._stops)
        assert all(start < stop for start, stop in self), "an empty range"
        assert all(a < b for a, b in zip(self._stops, self._starts[1:], strict=False)), "ranges touch"


def gaps(start: int, rows: I64, count: int) -> list[Range]:
    """The ranges of [start, start + count) without the positions `start + rows` (i64[n], ascending)."""
    edges = pairwise([-1, *rows.tolist(), count])
    return [(start + low + 1, start + high) for low, high in edges if high - low > 1]


def is_run(positions: I64) -> bool:
    """Whether integers i64[n], at least one, are consecutive and ascend. Their ends mostly rule it out."""
    return int(positions[-1]) - int(positions[0]) == len(positions) - 1 and bool((positions[1:] > positions[:-1]).all())


def ranges_of(positions: I64) -> list[Range]:
    """The ranges of integers i64[n], in any order. Repeated ones count once."""
    count = len(positions)
    if count == 0:
        return []
    if is_run(positions):
        return [(int(positions[0]), int(positions[0]) + count)]
    steps = np.diff(positions)
    if bool((steps <= 0).any()):
        positions = np.unique(positions)
        steps = np.diff(positions)
    breaks = np.flatnonzero(steps != 1)
    starts = positions[np.concatenate(([0], breaks + 1))]
    stops = positions[np.concatenate((breaks, [len(positions) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def ranges_alike(positions: I64, values: I64) -> list[tuple[int, int, int]]:
    """The ranges of neighbours among ascending positions, i64[n], that have the same value, i64[n]: (start, stop, value)."""
    ends = np.append(np.flatnonzero((np.diff(positions) != 1) | (np.diff(values) != 0)), len(positions) - 1)
    firsts = np.append(0, ends[:-1] + 1)
    return list(zip(positions[firsts].tolist(), (positions[ends] + 1).tolist(), values[firsts].tolist(), strict=True))


def without(ranges: list[Range], positions: I64) -> list[Range]:
    """Ranges that ascend, without these positions, i64[n], which they hold."""
    if not len(positions):
        return ranges
    edges = np.array(ranges, np.int64)
    starts, stops = np.array(ranges_of(positions), np.int64).T
    lows, highs = np.sort(np.concatenate((edges[:, 0], stops))), np.sort(np.concatenate((edges[:, 1], starts)))
    kept = lows < highs
    return list(zip(lows[kept].tolist(), highs[kept].tolist(), strict=True))
