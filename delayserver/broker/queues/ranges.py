"""Sets of positions as ranges. Pure; acking a thousand consecutive deliveries changes one range."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

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


def ranges_of(positions: I64) -> list[Range]:
    """The ranges of integers i64[n], in any order. Repeated ones count once."""
    count = len(positions)
    if count == 0:
        return []
    steps = np.diff(positions)
    if bool((steps == 1).all()):
        return [(int(positions[0]), int(positions[0]) + count)]
    if bool((steps <= 0).any()):
        positions = np.unique(positions)
        steps = np.diff(positions)
    breaks = np.flatnonzero(steps != 1)
    starts = positions[np.concatenate(([0], breaks + 1))]
    stops = positions[np.concatenate((breaks, [len(positions) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
