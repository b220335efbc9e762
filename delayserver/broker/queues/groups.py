"""The progress of one consumer group in one consume queue: positions handed out, acked, or being retried.

Pure, in positions and ranges: no messages, no store, no clock (times are arguments). Every position below `next` was
handed out. It is leased unless it is acked, in `retrying` or in `places`; a place has its own state. A message that is
nacked or times out comes back in the group's retry queue, or waits in its place (`places`) to be leased again.
"""

from __future__ import annotations

import heapq

import numpy as np

from delayserver.broker.queues.places import LEASED, READY, WAITING, Place, Places
from delayserver.broker.queues.ranges import Range, RangeSet
from delayserver.broker.redelivery import KeptBytes
from store.records.batches import I64

# With fewer leases than this, removing the settled ones is not worth its cost.
_PRUNE_MIN = 256


GroupKey = tuple[int, int]
"""(subject code, consumer group code)"""


class Cursor:
    """Position state of (subject, group) over one queue. `committed`: all positions below it are acked."""

    __slots__ = (
        "_leases",
        "_places",
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
        # Made when a message first waits in its place: most cursors never have one.
        self._places: Places | None = None
        self._prune_at = _PRUNE_MIN
        self._settled = 0

    @property
    def places(self) -> Places:
        """Ranges that are redelivered in their place."""
        if self._places is None:
            self._places = Places()
        return self._places

    @property
    def place_ranges(self) -> int:
        """How many ranges are redelivered in their place."""
        return 0 if self._places is None else len(self._places)

    @property
    def lease_ranges(self) -> int:
        """Entries in the heap of deadlines."""
        return len(self._leases)

    def outstanding(self) -> int:
        """Positions handed out and not acked, at most. O(1): positions acked above the first gap count too."""
        return self.next - self.committed

    def leased(self) -> int:
        """Count of positions handed out, not acked, not being retried and not waiting in their place. O(ranges)."""
        unacked = sum([high - low for low, high in self.acked.missing(self.committed, self.next)])
        return unacked - self.retrying.count() - self.in_place()

    def in_place(self) -> int:
        """Count of positions in their place that are not leased. O(ranges)."""
        return 0 if self._places is None else self._places.count(WAITING, READY)

    def ready(self) -> int:
        """Count of positions that can be handed out again from their place. O(ranges)."""
        return 0 if self._places is None else self._places.count(READY)

    def available_again(self, count_max: int) -> Range | None:
        """The first range to hand out again from its place, at most `count_max` long."""
        place = None if self._places is None else self._places.first_ready()
        return None if place is None else (place.start, min(place.stop, place.start + count_max))

    def available(self, end: int, count_max: int) -> Range | None:
        """The next range to hand out, at most `count_max` long. Ranges acked before a restart are left out."""
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
        """Mark [start, stop) as handed out. It is the range that `available` returned, or its beginning."""
        assert self.next <= start < stop
        self.next = stop

    def hand_out_again(self, start: int, stop: int, deadline_us: int) -> int:
        """Lease [start, stop) again, a range of `available_again` or a part; returns how often it was handed out."""
        (place,) = self.places.parts(start, stop)
        assert place.state == READY
        self.places.put(Place(start, stop, place.times + 1, LEASED, deadline_us))
        return place.times + 1

    def wait_in_place(self, place: Place) -> None:
        """Let positions whose lease ended wait in their place."""
        assert place.state == WAITING
        self.retrying.remove(place.start, place.stop)
        self.places.put(place)
        self._settled += place.stop - place.start

    def release(self, now_us: int) -> bool:
        """Make ranges ready that have waited long enough. True if there were any."""
        return self._places is not None and self._places.release(now_us)

    def hold(self, start: int, stop: int, deadline_us: int) -> None:
        """Lease handed-out positions until the deadline. When the heap has doubled, settled leases leave it."""
        heapq.heappush(self._leases, (deadline_us, start, stop))
        if len(self._leases) >= self._prune_at:
            self._prune()

    def _prune(self) -> None:
        self._leases = [lease for lease in self._leases if lease[2] > self.committed and self._is_held(*lease)]
        heapq.heapify(self._leases)
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._leases))
        self._settled = 0

    def has_room(self, ranges_max: int) -> bool:
        """Whether the heap has fewer than `ranges_max` leases. At the bound, many settled leases are removed first."""
        if len(self._leases) >= ranges_max and self._settled > ranges_max // 8:
            self._prune()
        return len(self._leases) < ranges_max

    def restore_seen(self, stop: int, times: int) -> None:
        """What the log says: positions below `stop` were handed out so often before the start."""
        self.seen_stop, self.seen_times = stop, times

    def attempts_before(self, start: int, count: int) -> I64:
        """How often each position was handed out before, i64[count]: by earlier processes (as far as known) or from its
        place."""
        before = np.zeros(count, np.int64)
        before[: max(0, self.seen_stop - start)] = self.seen_times
        if self._places is not None:
            self._places.overlay(start, before)
        return before

    def ack(self, start: int, stop: int, limit: int) -> list[Range]:
        """Ack positions below `limit`; returns the ranges that this call acked.

        `limit` is `next`, or the end of the queue at the restart for deliveries of an earlier process."""
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
        if self._places is not None:
            self._places.remove(start, stop)
        if start == self.committed:
            self.committed = stop
            behind = self.acked.following(stop)
            if behind is not None:
                self.committed = behind
            self.acked.drop_below(self.committed)
            self.next = max(self.next, self.committed)
        else:
            self.acked.add(start, stop)

    def to_retry(self, start: int, stop: int, ended_us: int | None = None) -> list[Range]:
        """Move leased positions to `retrying`; returns the ranges that were leased.

        With `ended_us`, a lease in its place with a later deadline stays leased."""
        start, stop = max(start, self.committed), min(stop, self.next)
        if start >= stop:
            return []
        fresh = [part for gap in self.acked.missing(start, stop) for part in self.retrying.missing(*gap)]
        if self._places is not None:
            fresh = [part for gap in fresh for part in self._leased(*gap, ended_us)]
        for low, high in fresh:
            self.retrying.add(low, high)
        return fresh

    def _leased(self, start: int, stop: int, ended_us: int | None) -> list[Range]:
        """The leased parts of unacked positions. `ended_us` excludes leases in their place with a later deadline."""
        parts = [
            (place.start, place.stop)
            for place in self.places.parts(start, stop)
            if place.state == LEASED and (ended_us is None or place.until_us <= ended_us)
        ]
        return sorted([*self.places.missing(start, stop), *parts])

    def settle(self, start: int, stop: int) -> None:
        """The retries of these positions are durable elsewhere: count the positions as acked."""
        self.retrying.remove(start, stop)
        for low, high in self.acked.missing(max(start, self.committed), stop):
            self._acked(low, high)

    def abandon(self, start: int, stop: int, deadline_us: int) -> None:
        """The retries could not be made: lease the positions again until the deadline."""
        self.retrying.remove(start, stop)
        if self._places is not None:
            for place in self._places.parts(start, stop):
                self._places.put(place._replace(until_us=deadline_us))
        self.hold(start, stop, deadline_us)

    def next_deadline_us(self) -> int | None:
        """The earliest deadline of a lease, or the moment when a waiting range is ready; None if there is neither."""
        ready_us = None if self._places is None else self._places.next_until_us()
        while self._leases:
            deadline_us, start, stop = self._leases[0]
            if self._is_held(deadline_us, start, stop):
                return deadline_us if ready_us is None else min(deadline_us, ready_us)
            heapq.heappop(self._leases)
        return ready_us

    def expired(self, now_us: int, count_max: int) -> list[Range]:
        """Move positions whose lease ended to `retrying`, at most about `count_max`; returns their ranges."""
        found: list[Range] = []
        total = 0
        while self._leases and self._leases[0][0] <= now_us and total < count_max:
            deadline_us, start, stop = heapq.heappop(self._leases)
            if stop - start > count_max - total:
                cut = start + count_max - total
                heapq.heappush(self._leases, (deadline_us, cut, stop))
                stop = cut
            parts = self.to_retry(start, stop, deadline_us)
            total += sum([high - low for low, high in parts])
            found += parts
        return found

    def _is_held(self, deadline_us: int, start: int, stop: int) -> bool:
        """Whether any of the positions is still leased until this deadline."""
        gaps = self.acked.missing(max(start, self.committed), stop)
        unsettled = [part for gap in gaps for part in self.retrying.missing(*gap)]
        if self._places is None:
            return bool(unsettled)
        return any(self._leased(*part, deadline_us) for part in unsettled)

    def skip_to(self, first: int) -> None:
        """Retention removed the messages below `first`."""
        if first > self.committed:
            self.committed = first
            self.acked.drop_below(first)
            behind = self.acked.following(first)
            if behind is not None:
                self.committed = behind
                self.acked.drop_below(behind)
            self.retrying.drop_below(self.committed)
            if self._places is not None:
                self._places.remove(0, self.committed)
            self.next = max(self.next, self.committed)

    def restore(self, place: Place) -> None:
        """Restore positions that waited in their place or were leased there, from a row of the progress log."""
        for start, stop in self.acked.missing(max(place.start, self.committed), place.stop):
            self.places.put(place._replace(start=start, stop=stop))

    def restart(self, end: int) -> None:
        """To be called after the progress log was read. Leased positions are deliverable again, as one more attempt."""
        assert self.next == self.committed, "a cursor that handed out before its restart"
        if self.seen_stop > self.committed:
            self.seen_times += 1
            self.seen_stop = min(self.seen_stop, end)
        else:
            self.seen_stop, self.seen_times = self.committed, 0
        if self._places is not None:
            self._restart_places(self._places, end)

    def _restart_places(self, places: Places, end: int) -> None:
        """Positions that are not acked, up to the last place, were handed out too: make them ready in their place."""
        places.remove(0, self.committed)
        places.remove(end, max(end, places.stop))
        stop = places.stop
        for gap in self.acked.missing(self.committed, stop) if stop > self.committed else []:
            for low, high in places.missing(*gap):
                seen = min(max(self.seen_stop, low), high)
                places.put(Place(low, seen, self.seen_times, READY))
                places.put(Place(seen, high, 0, READY))
        self.next = max(self.next, stop)

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
        if self._places is not None:
            self._places.check_invariants()
            for place in self._places:
                span = (place.start, place.stop)
                assert self.committed <= place.start and place.stop <= self.next, "in its place, and not handed out"
                assert self.acked.missing(*span) == [span], "acked and in its place at once"
                assert place.state == LEASED or self.retrying.missing(*span) == [span], "it waits, and is retried"


class ConsumerGroup:
    """(subject, group): a cursor over the subject's queue, and one over the group's own retry queue.

    `expired` counts the messages that the group does not get (again) because they have expired.
    """

    __slots__ = ("_kept", "expired", "main", "retry")

    def __init__(self, main: Cursor, retry: Cursor) -> None:
        self.main = main
        self.retry = retry
        self.expired = 0
        self._kept: KeptBytes | None = None

    def kept(self, kept_ms: int) -> KeptBytes:
        """The count of the group's redelivery bytes on disk, each kept for `kept_ms`."""
        if self._kept is None:
            self._kept = KeptBytes(kept_ms)
        return self._kept

    @property
    def redelivery_bytes(self) -> int:
        """Bytes of its redeliveries that count as on disk."""
        return 0 if self._kept is None else self._kept.total

    def count_expired(self, count: int) -> None:
        """Count messages that have expired for the group."""
        self.expired += count

    def cursor(self, retry: bool) -> Cursor:
        """The cursor of one of the two queues."""
        return self.retry if retry else self.main
