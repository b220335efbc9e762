"""How long the batches of each stage took: histograms of fixed size, for `metrics`.

A stage adds one value for each batch, from clock readings that it makes anyway or once a batch. So the counts are batches,
not messages.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_US: Final = (
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000, 60_000_000, 600_000_000,
)  # fmt: skip
"""Upper bounds of the buckets, in microseconds. One more bucket counts what is longer."""


class Durations:
    """A histogram of durations. One writer at a time, in any thread."""

    __slots__ = ("_counts", "_sum_us")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_US) + 1)
        self._sum_us = 0

    def add(self, duration_us: int) -> None:
        """Count one batch. A clock that stepped back makes it 0."""
        duration_us = max(duration_us, 0)
        self._counts[bisect_left(BOUNDS_US, duration_us)] += 1
        self._sum_us += duration_us

    @property
    def counts(self) -> list[int]:
        """Batches by bucket, one more than there are bounds."""
        return list(self._counts)

    @property
    def sum_us(self) -> int:
        """All durations together."""
        return self._sum_us

    def check_invariants(self) -> None:
        """Nothing is counted negatively."""
        assert min(self._counts) >= 0
        assert self._sum_us >= 0


class StageTimes:
    """One histogram for each stage of a message's way. A server has one of these."""

    __slots__ = ("commit_wait", "decode", "hand_off", "load", "queue", "replay_lag", "settle", "sync", "wheel")

    def __init__(self) -> None:
        # A step reads the requests that came, checks them and begins them. Writer: the front.
        self.decode = Durations()
        # From the first item of a commit group to its write. Writer: the group commit.
        self.commit_wait = Durations()
        # The write and the sync of a commit group. Writer: the group commit.
        self.sync = Durations()
        # From the acceptance of the first message of a round to its publication. Writer: the publisher.
        self.replay_lag = Durations()
        # A load of windows, with its reads. Writer: the loader.
        self.load = Durations()
        # From the due time of the first row of a slice to its release. 0: it left the wheel ahead. Writer: residency.
        self.wheel = Durations()
        # From its release to its attempt, of the first row of a batch. Writers: the broker groups.
        self.queue = Durations()
        # From the hand-over of a batch to the answer of the node. Writers: the broker groups.
        self.hand_off = Durations()
        # From the first decided outcome of a flush to the sync of all. Writer: the recorder.
        self.settle = Durations()

    def histograms(self) -> dict[str, Durations]:
        """The histograms by the names of their stages, in the order in which a message passes them."""
        return {
            "decode": self.decode,
            "commit_wait": self.commit_wait,
            "sync": self.sync,
            "replay_lag": self.replay_lag,
            "load": self.load,
            "wheel": self.wheel,
            "queue": self.queue,
            "hand_off": self.hand_off,
            "settle": self.settle,
        }
