"""A histogram of lateness in microseconds: fixed memory, numpy in, percentiles out with at most 2 % error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Bucket bounds grow by 2 %, from 1 µs to 12 days; the error of a percentile is half of that.
_GROWTH = 1.02
_BOUNDS = np.unique(np.round(_GROWTH ** np.arange(0, 1400)).astype(np.int64))


class LatencyHistogram:
    """Counts by bucket; `early` counts what must never be (negative lateness)."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_BOUNDS) + 1, dtype=np.int64)
        self.count = 0
        self.early = 0
        self.max_us = 0

    def add(self, lateness_us: NDArray[np.int64]) -> None:
        """Count n values."""
        if not len(lateness_us):
            return
        self.count += len(lateness_us)
        lowest_us, highest_us = int(lateness_us.min()), int(lateness_us.max())
        self.max_us = max(self.max_us, highest_us)
        if lowest_us == highest_us:  # what was due at the same moment was handed over together
            self._counts[np.searchsorted(_BOUNDS, lowest_us, side="left")] += len(lateness_us)
        else:
            self._counts += np.bincount(np.searchsorted(_BOUNDS, lateness_us, side="left"), minlength=len(self._counts))
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

    def check_invariants(self) -> None:
        """Each value is in one bucket."""
        assert int(self._counts.sum()) == self.count >= self.early
        assert self.count or not self.max_us
