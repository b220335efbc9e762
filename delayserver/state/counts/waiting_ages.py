"""How many redeliveries wait for each consumer group, and since when: counts by steps of time, of one bounded table a group.

A redelivery waits since its message could first be delivered: since it was due, or accepted if that was later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from store.records.batches import I64, U32

Key: TypeAlias = tuple[int, int]
"""The codes of a subject and of a consumer group."""

STEPS_MAX: Final = 128
"""Steps of a group. When more are needed, steps become twice as long: the age is known to some hundredth of the longest."""


class _Steps:
    """Counts of one group by steps of `step_ms`, a power of two. A count may be below 0 for a moment: what ends may be
    counted before what begins."""

    __slots__ = ("count", "rows", "step_ms")

    def __init__(self, step_ms: int = 1) -> None:
        self.step_ms = step_ms
        self.rows: dict[int, int] = {}
        self.count = 0

    def add(self, since_ms: I64, counts: I64) -> None:
        """Add counts i64[n] at times i64[n]."""
        while int(since_ms.max()) // self.step_ms - int(since_ms.min()) // self.step_ms >= STEPS_MAX:
            self._lengthen()
        starts, places = np.unique(since_ms & -self.step_ms, return_inverse=True)
        sums = np.zeros(len(starts), np.int64)
        np.add.at(sums, places, counts)
        for start_ms, count in zip(starts.tolist(), sums.tolist(), strict=True):
            self._add(start_ms, count)
        while len(self.rows) > STEPS_MAX:
            self._lengthen()

    def require_step(self, step_ms: int) -> None:
        """Have steps of this length or longer."""
        while self.step_ms < step_ms:
            self._lengthen()

    def oldest_ms(self) -> int | None:
        """The start of the first step with redeliveries."""
        return min([start_ms for start_ms, count in self.rows.items() if count > 0], default=None)

    def _add(self, start_ms: int, count: int) -> None:
        self.count += count
        left = self.rows.get(start_ms, 0) + count
        if left:
            self.rows[start_ms] = left
        else:
            self.rows.pop(start_ms, None)

    def _lengthen(self) -> None:
        rows, self.rows, self.count = self.rows, {}, 0
        self.step_ms *= 2
        for start_ms, count in rows.items():
            self._add(start_ms & -self.step_ms, count)


class WaitingAges:
    """The counts of all groups. A group without any has no entry. Writer of each: the one who made it."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Key, _Steps] = {}

    def add(self, subjects: U32, groups: U32, since_us: I64, sign: int) -> None:
        """Add redeliveries, or take them away (`sign` -1): columns [n] of codes, and since when they wait (microseconds)."""
        if not len(subjects):
            return
        codes = subjects.astype(np.int64) << 32 | groups
        order = np.argsort(codes, kind="stable")
        codes, since_ms = codes[order], (since_us // 1000)[order]
        cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, stop in pairwise(cuts):
            code = int(codes[start])
            self._add((code >> 32, code & 0xFFFF_FFFF), 1, since_ms[start:stop], np.full(stop - start, sign, np.int64))

    def merge(self, other: WaitingAges, sign: int = 1) -> None:
        """Add all counts of another table, or take them away."""
        for key, steps in list(other._groups.items()):
            starts, counts = np.array(list(steps.rows), np.int64), np.array(list(steps.rows.values()), np.int64)
            self._add(key, steps.step_ms, starts, sign * counts)

    def add_steps(self, key: Key, step_ms: int, starts_ms: I64, counts: I64) -> None:
        """Add counts i64[n] by steps of `step_ms` (a power of two), as `steps` gives them."""
        self._add(key, step_ms, starts_ms, counts)

    def _add(self, key: Key, step_ms: int, since_ms: I64, counts: I64) -> None:
        if not len(since_ms):
            return
        steps = self._groups.get(key)
        if steps is None:
            steps = self._groups[key] = _Steps(step_ms)
        steps.require_step(step_ms)
        steps.add(since_ms, counts)
        if not steps.rows:
            del self._groups[key]

    def count(self, key: Key) -> int:
        """How many wait for a group."""
        steps = self._groups.get(key)
        return 0 if steps is None else steps.count

    def oldest_ms(self, key: Key) -> int | None:
        """Since when the oldest of them waits, to the step; None without any."""
        steps = self._groups.get(key)
        return None if steps is None else steps.oldest_ms()

    def total(self) -> int:
        """How many wait for all groups."""
        return sum([steps.count for steps in self._groups.values()])

    def copy(self) -> WaitingAges:
        """The same counts, apart."""
        copied = WaitingAges()
        copied.merge(self)
        return copied

    def steps(self) -> Iterator[tuple[Key, int, Mapping[int, int]]]:
        """Of each group its key, the length of its steps, and the counts by their starts."""
        for key, steps in self._groups.items():
            yield key, steps.step_ms, steps.rows

    def check_invariants(self) -> None:
        """Each group has a bounded number of steps, none of which is empty."""
        for steps in self._groups.values():
            assert 0 < len(steps.rows) <= STEPS_MAX
            assert all(count and start_ms % steps.step_ms == 0 for start_ms, count in steps.rows.items())
            assert steps.count == sum(steps.rows.values())
