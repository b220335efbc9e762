"""Times in buckets whose bounds grow by one per cent, and percentiles from counts by bucket.

A percentile is the largest value in the bucket of the percentile, or the bound of the bucket. So it is never below the
exact value, and at most 1 % above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROWTH = 1.01
ERROR = "at most 1 % above the exact value, never below it"
# In thousandths, so that integer ranks are exact.
POINTS = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
_LOG_GROWTH = math.log(GROWTH)


def buckets_of(value_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each time in microseconds, i64[n]. 0 and negative times are in bucket 0, 1 µs in bucket 1."""
    exponents = np.log(np.maximum(value_us, 1)) / _LOG_GROWTH
    return np.where(value_us > 0, np.ceil(exponents).astype(np.int64) + 1, 0)


def bound_us(bucket: int) -> int:
    """The largest time in whole microseconds that belongs to a bucket."""
    return math.floor(GROWTH ** (bucket - 1)) if bucket else 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The number of values in a bucket, and the largest of them or its bound."""

    bucket: int
    count: int
    max_us: int


def points_of(buckets: Iterable[Bucket]) -> dict[str, int]:
    """The percentiles `POINTS` of counted buckets, in microseconds; empty without values."""
    ordered = sorted(buckets, key=lambda one: one.bucket)
    total, reached = sum([one.count for one in ordered]), 0
    points: dict[str, int] = {}
    for one in ordered:
        reached += one.count
        for name, share in POINTS.items():
            if name not in points and reached * 1000 >= total * share:
                points[name] = max(one.max_us, 0)
    return points
