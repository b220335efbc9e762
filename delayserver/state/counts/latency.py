"""Histograms of lateness in microseconds, one for each broker group: fixed memory, numpy in, percentiles out with at most
2 % error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

# Bucket bounds grow by 2 %, from 1 µs to 12 days; the error of a percentile is half of that.
_GROWTH = 1.02

TOLD_BOUNDS_US: Final = (
    500, 1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 50_000, 75_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000, 300_000_000, 900_000_000, 3_600_000_000,
)  # fmt: skip
"""Bounds of the histogram in `metrics`, from 0.5 ms to one hour. They are bounds of the fine buckets too, so the
counts are exact."""

_BOUNDS = np.unique(np.append(np.round(_GROWTH ** np.arange(0, 1400)).astype(np.int64), TOLD_BOUNDS_US))
_TOLD = np.searchsorted(_BOUNDS, TOLD_BOUNDS_US, side="right")


class LatencyHistogram:
    """Counts by bucket; `early` counts what must never be (negative lateness)."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_BOUNDS) + 1, dtype=np.int64)
        self.count = 0
        self.early = 0
        self.max_us = 0
        self.sum_us = 0

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All values of these histograms in one."""
        whole = cls()
        for part in parts:
            whole._join(part)
        return whole

    def _join(self, part: Self) -> None:
        self._counts += part._counts
        self.count += part.count
        self.early += part.early
        self.sum_us += part.sum_us
        self.max_us = max(self.max_us, part.max_us)

    def add(self, lateness_us: NDArray[np.int64]) -> None:
        """Count n values."""
        if not len(lateness_us):
            return
        self.count += len(lateness_us)
        lowest_us, highest_us = int(lateness_us.min()), int(lateness_us.max())
        self.max_us = max(self.max_us, highest_us)
        if lowest_us == highest_us:  # what was due at the same moment was handed over together
            self._counts[np.searchsorted(_BOUNDS, lowest_us, side="left")] += len(lateness_us)
            self.sum_us += lowest_us * len(lateness_us)
        else:
            self._counts += np.bincount(np.searchsorted(_BOUNDS, lateness_us, side="left"), minlength=len(self._counts))
            self.sum_us += int(lateness_us.sum())
        if lowest_us < 0:
            self.early += int((lateness_us < 0).sum())

    def percentile_us(self, share: float) -> int:
        """The value that `share` (0 to 1) of all are at most, rounded up to its bucket; 0 if there are none."""
        if not self.count:
            return 0
        place = int(np.searchsorted(np.cumsum(self._counts), share * self.count, side="left"))
        return min(int(_BOUNDS[min(place, len(_BOUNDS) - 1)]), self.max_us)

    def summary_ms(self) -> dict[str, float]:
        """p50, p90, p99, p999 and max in milliseconds."""
        points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
        values = {name: self.percentile_us(share) / 1000 for name, share in points.items()}
        return values | {"max": self.max_us / 1000}

    def told_counts(self) -> list[int]:
        """Values by bucket of `TOLD_BOUNDS_US`; the last one counts what is later than an hour."""
        counts: list[int] = np.add.reduceat(self._counts, np.append(0, _TOLD)).tolist()
        return counts

    def check_invariants(self) -> None:
        """Each value is in one bucket."""
        assert int(self._counts.sum()) == self.count >= self.early
        assert self.count or not self.max_us


class Lateness:
    """The lateness of all deliveries since the start, by broker group. A group that a reload removed keeps its counts.
    Writer: the verdicts of dispatch."""

    def __init__(self) -> None:
        self._groups: dict[str, LatencyHistogram] = {}

    def of(self, group: str) -> LatencyHistogram:
        """The histogram of a group, empty at first."""
        return self._groups.setdefault(group, LatencyHistogram())

    def groups(self) -> dict[str, LatencyHistogram]:
        """The histograms by the names of their groups."""
        return dict(self._groups)

    def whole(self) -> LatencyHistogram:
        """All groups together."""
        return LatencyHistogram.joined(self._groups.values())

    @property
    def early(self) -> int:
        """Deliveries before their time, which must never be."""
        return sum([histogram.early for histogram in self._groups.values()])

    def check_invariants(self) -> None:
        """Those of each group."""
        for histogram in self._groups.values():
            histogram.check_invariants()
