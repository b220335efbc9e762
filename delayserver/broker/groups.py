"""What one consumer group has done with one consume queue: handed out, acked, given to the retry pipeline.

Pure, in positions and ranges; knows no messages, no store, no clock (times are arguments). Everything below `next` was
handed out once; of that, what is not `acked` and not `retrying` is leased. A position is never handed out twice by one
process: what a consumer nacks or lets time out comes back as a new message of the group's retry queue.
"""

from __future__ import annotations

import heapq

import numpy as np

from delayserver.broker.ranges import Range, RangeSet
from store.batches import I64

# Fewer leases than this are not worth looking for settled ones.
_PRUNE_MIN = 256


GroupKey = tuple[int, int]
"""(subject code, consumer group code)"""


class Cursor:
    """Position state of (subject, group) over one queue. `committed`: everything below it is acked."""

    __slots__ = (
        "_leases",
        "_prune_at",
        "_settled",
        "acked",
        "committed",
        "next",
        "retrying",
        "seen_stop",
        "seen_times",
    )

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.next = committed
        self.acked = RangeSet()
        self.retrying = RangeSet()
        self.seen_stop = committed
        self.seen_times = 0
        self._leases: list[tuple[int, int, int]] = []
        self._prune_at = _PRUNE_MIN
        self._settled = 0

    @property
    def lease_ranges(self) -> int:
        """Entries of the heap of deadlines."""
        return len(self._leases)

    def outstanding(self) -> int:
        """Positions handed out and not acked, in ranges from the first gap on (an upper bound, in O(1))."""
        return self.next - self.committed

    def leased(self) -> int:
        """Positions handed out, not acked and not in the retry pipeline. O(ranges)."""
        return sum([high - low for low, high in self.acked.missing(self.committed, self.next)]) - self.retrying.count()

    def available(self, end: int, count_max: int) -> Range | None:
        """The next range to hand out: not acked already (acks of before a restart), at most `count_max` long."""
        start = self.next
        behind = self.acked.following(start)
        if behind is not None:
            start = behind
        if start >= end:
            return None
        stop = min(end, start + count_max)
        gap = self.acked.next_start(start)
        return start, stop if gap is None else min(stop, gap)

    def hand_out(self, start: int, stop: int) -> None:
        """Take [start, stop), as `available` gave it or a shorter one, out of what is deliverable."""
        assert self.next <= start < stop
        self.next = stop

    def hold(self, start: int, stop: int, deadline_us: int) -> None:
        """Lease handed out positions until the deadline. Settled leases leave the heap when it has doubled."""
        heapq.heappush(self._leases, (deadline_us, start, stop))
        if len(self._leases) >= self._prune_at:
            self._prune()

    def _prune(self) -> None:
        self._leases = [lease for lease in self._leases if lease[2] > self.committed and self._unsettled(*lease[1:])]
        heapq.heapify(self._leases)
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._leases))
        self._settled = 0

    def has_room(self, ranges_max: int) -> bool:
        """Whether fewer than `ranges_max` leases are held; at the bound, settled ones leave the heap if they may be many."""
        if len(self._leases) >= ranges_max and self._settled > ranges_max // 8:
            self._prune()
        return len(self._leases) < ranges_max

    def attempts_before(self, start: int, count: int) -> I64:
        """How often each of `count` positions was handed out by earlier processes, as far as that is known: i64[n]."""
        before = np.zeros(count, np.int64)
        before[: max(0, self.seen_stop - start)] = self.seen_times
        return before

    def ack(self, start: int, stop: int, limit: int) -> list[Range]:
        """Ack positions; returns the ranges that were not acked before. What was never handed out is left out:
        `limit` is `next`, or the end of the queue at the restart for what an earlier process handed out."""
        start, stop = max(start, self.committed), min(stop, limit)
        if start >= stop:
            return []
        fresh = self.acked.missing(start, stop)
        if len(self.retrying):
            fresh = [part for gap in fresh for part in self.retrying.missing(*gap)]
        for low, high in fresh:
            self._acked(low, high)
        return fresh

    def _acked(self, start: int, stop: int) -> None:
        self._settled += stop - start
        if start == self.committed:
            self.committed = stop
            behind = self.acked.following(stop)
            if behind is not None:
                self.committed = behind
            self.acked.drop_below(self.committed)
            self.next = max(self.next, self.committed)
        else:
            self.acked.add(start, stop)

    def to_retry(self, start: int, stop: int) -> list[Range]:
        """Take leased positions out for the retry pipeline; returns the ranges that were leased."""
        start, stop = max(start, self.committed), min(stop, self.next)
        if start >= stop:
            return []
        fresh = [part for gap in self.acked.missing(start, stop) for part in self.retrying.missing(*gap)]
        for low, high in fresh:
            self.retrying.add(low, high)
        return fresh

    def settle(self, start: int, stop: int) -> None:
        """The retry is durable elsewhere: the old position is done."""
        self.retrying.remove(start, stop)
        for low, high in self.acked.missing(max(start, self.committed), stop):
            self._acked(low, high)

    def abandon(self, start: int, stop: int, deadline_us: int) -> None:
        """The retry could not be made: leased again, until the deadline."""
        self.retrying.remove(start, stop)
        self.hold(start, stop, deadline_us)

    def next_deadline_us(self) -> int | None:
        """The earliest deadline of anything still leased."""
        while self._leases:
            deadline_us, start, stop = self._leases[0]
            if self._unsettled(start, stop):
                return deadline_us
            heapq.heappop(self._leases)
        return None

    def expired(self, now_us: int, count_max: int) -> list[Range]:
        """Positions whose lease ended, at most about `count_max`; they go to the retry pipeline."""
        found: list[Range] = []
        total = 0
        while self._leases and self._leases[0][0] <= now_us and total < count_max:
            deadline_us, start, stop = heapq.heappop(self._leases)
            if stop - start > count_max - total:
                cut = start + count_max - total
                heapq.heappush(self._leases, (deadline_us, cut, stop))
                stop = cut
            parts = self.to_retry(start, stop)
            total += sum([high - low for low, high in parts])
            found += parts
        return found

    def _unsettled(self, start: int, stop: int) -> bool:
        gaps = self.acked.missing(max(start, self.committed), stop)
        return any(self.retrying.missing(*gap) for gap in gaps)

    def skip_to(self, first: int) -> None:
        """Retention gave back what lies below `first`."""
        if first > self.committed:
            self.committed = first
            self.acked.drop_below(first)
            behind = self.acked.following(first)
            if behind is not None:
                self.committed = behind
                self.acked.drop_below(behind)
            self.retrying.drop_below(self.committed)
            self.next = max(self.next, self.committed)

    def restart(self, end: int) -> None:
        """After reading the progress log: what was leased is deliverable again, and counts as handed out once more."""
        assert self.next == self.committed, "a cursor that handed out before its restart"
        if self.seen_stop > self.committed:
            self.seen_times += 1
            self.seen_stop = min(self.seen_stop, end)
        else:
            self.seen_stop, self.seen_times = self.committed, 0

    def check_invariants(self) -> None:
        """Sets are consistent with the cursor positions."""
        self.acked.check_invariants()
        self.retrying.check_invariants()
        assert self.committed <= self.next, "committed beyond what was handed out"
        for start, _ in self.acked:
            assert start > self.committed, "acked ranges that should be committed"
        for start, stop in self.retrying:
            assert self.committed <= start and stop <= self.next
            assert self.acked.missing(start, stop) == [(start, stop)], "acked and retrying at once"


class ConsumerGroup:
    """(subject, group): a cursor over the subject's queue, and one over the group's own retry queue."""

    __slots__ = ("main", "retry")

    def __init__(self, main: Cursor, retry: Cursor) -> None:
        self.main = main
        self.retry = retry

    def cursor(self, retry: bool) -> Cursor:
        """The cursor of one of the two queues."""
        return self.retry if retry else self.main
