"""The progress of one consumer group in one consume queue: positions handed out, acked, or being retried.

Pure, in positions and ranges: no messages, no store, no clock (times are arguments). Every position below `next` was
handed out. It is leased unless it is acked, in `retrying` or in `places`; a place has its own state. A message that is
nacked or times out comes back in the group's retry queue, or waits in its place (`places`) to be leased again. Messages
with an order key are in `KeyOrder` until they are acked, with a state and a deadline each.

An extended lease becomes a place with the new end. Its old end stays in the heap of leases, and ends nothing.

A seek begins anew: acks, leases and places are forgotten, and the retry queue is passed over to its end. `moves` in
the delivery ids makes acks from before unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.key_order import KeyOrder, WaitingHeads
from delayserver.broker.queues.order_keys import OrderKeys
from delayserver.broker.queues.places import LEASED, READY, WAITING, Place, Places
from delayserver.broker.queues.ranges import Range, RangeSet, ranges_of, without
from delayserver.broker.queues.seen import Count, Seen
from delayserver.broker.redelivery_policy import KeptBytes
from store.records.batches import I64, U64
from store.records.column_batch import zeros

# From so many ranges on, acks are computed together.
_MANY = 16
_I64 = np.dtype(np.int64)
_NO_POSITIONS: I64 = np.empty(0, np.int64)
# With fewer leases than this, removing the settled ones is not worth its cost.
_PRUNE_MIN = 256


GroupKey = tuple[int, int]
"""(subject code, consumer group code)"""


class Cursor:
    """Position state of (subject, group) over one queue. `committed`: all positions below it are acked.

    `moves` distinguishes leases from before a seek from later ones. `passed`: the range in which retention has removed
    messages that the group had not acked, as long as no consumer has got the error for it.
    `passes_over`: a filter has passed over positions. They count as acked, and the progress log learns of them late: with
    the acks beside them, or with the next sync. Below `logged` it has all of them.
    """

    __slots__ = (
        "_claimed",
        "_keys",
        "_leases",
        "_order",
        "_owner",
        "_places",
        "_prune_at",
        "_returning",
        "_settled",
        "_unasked",
        "_unread",
        "acked",
        "committed",
        "logged",
        "moves",
        "next",
        "passed",
        "passes_over",
        "retrying",
        "seen",
    )

    def __init__(self, committed: int, moves: int = 0, keys: OrderKeys | None = None) -> None:
        """`keys`: those that both cursors of a group share."""
        self.committed = committed
        self.moves = moves
        self.passed: Range | None = None
        self.logged = committed
        self.passes_over = False
        self.next = committed
        self.acked = RangeSet()
        self.retrying = RangeSet()
        # Attempts of before the start.
        self.seen = Seen()
        # The end, the positions and the owner of each.
        self._leases: list[tuple[int, int, int, int]] = []
        # Who gets the leases of the pull under way.
        self._owner = 0
        # Made when a message first waits in its place: most cursors never have one.
        self._places: Places | None = None
        # Made when a message with an order key is first looked at.
        self._order: KeyOrder | None = None
        self._keys = keys
        # Positions in their place that the filter has not let through as far as is known: a claim went ahead of it, or the
        # progress log does not say that they were handed out.
        self._unasked: RangeSet | None = None
        # Positions in their place whose order keys are not known. Those that are no longer ready there leave it late.
        self._unread: RangeSet | None = None
        # Claimed positions, with the counts that they had.
        self._claimed: Places | None = None
        # Positions of which a record may stand in message_log, from the offset `until_ms` on. They are being retried; at a
        # start they are not.
        self._returning: Places | None = None
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

    def room(self, outstanding_max: int) -> int:
        """How many more positions may be handed out. Positions that a filter passed over do not count, but the ranges of
        acked positions have a bound as well: one for every second position."""
        room = outstanding_max - self.outstanding()
        if room <= 0 and self.passes_over and len(self.acked) < outstanding_max // 2:
            room += self.acked.count()
        return room

    def leased(self) -> int:
        """Count of positions handed out, not acked, not being retried and not waiting in their place. O(ranges)."""
        unacked = sum([high - low for low, high in self.acked.missing(self.committed, self.next)])
        return unacked - self.retrying.count() - self.in_place()

    def backlog(self, end: int) -> tuple[int, int, int]:
        """Counts of positions of a queue with this end: not acked, leased, being retried. O(ranges)."""
        if self._places is not None or self._order is not None or len(self.acked) or len(self.retrying):
            return max(0, end - self.committed - self.acked.count()), self.leased(), self.retrying.count()
        return max(0, end - self.committed), self.next - self.committed, 0  # as nearly all are

    def in_place(self) -> int:
        """Count of positions in their place that are not leased, and of those that wait for their order key. O(ranges)."""
        waiting = 0 if self._places is None else self._places.count(WAITING, READY)
        return waiting if self._order is None else waiting + self._order.waiting()

    def ready(self) -> int:
        """Count of positions that can be handed out again from their place, or whose order key is free. O(ranges)."""
        self.join_keys()
        ready = 0 if self._places is None else self._places.count(READY)
        return ready if self._order is None else ready + self._order.candidate_count()

    def available_again(self, count_max: int) -> Range | None:
        """The first range to hand out again from its place, at most `count_max` long."""
        place = None if self._places is None else self._places.first_ready()
        return None if place is None else self._again(place, count_max)

    def unread(self, count_max: int) -> Range | None:
        """The first range that is ready in its place and whose order keys are not known, at most `count_max` long. Messages
        that the group has never looked at may have the same keys, and come behind it."""
        while self._unread is not None and (first := self._unread.next_start(-1)) is not None:
            stop = self._unread.following(first) or first
            for place in () if self._places is None else self._places.parts(first, stop):
                if place.state == READY:
                    return self._again(place, count_max)
            self._unread.remove(first, stop)
        self._unread = None
        return None

    def _read_later(self, start: int, stop: int) -> None:
        """The order keys of positions that have a place are not known."""
        if self._unread is None:
            self._unread = RangeSet()
        self._unread.add(start, stop)

    def _again(self, place: Place, count_max: int) -> Range:
        start, stop = place.start, min(place.stop, place.start + count_max)
        if self._unasked is not None:  # not across the end of a range that the filter has to be asked about
            edge = self._unasked.following(start) or self._unasked.next_start(start) or stop
            stop = min(stop, edge)
        return start, stop

    def alike(self, start: int, stop: int) -> int:
        """Up to where positions from `start` on can be handed out in one go."""
        if start >= self.next or self._places is None:
            return stop
        return self._places.parts(start, stop)[0].stop

    def must_ask(self, position: int) -> bool:
        """Whether the filter has not let a position through, as far as is known: it was never handed out, a claim went
        ahead of the filter, or the progress log does not say whether it was handed out or passed over."""
        return position >= self.next or (self._unasked is not None and self._unasked.following(position) is not None)

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
        if self.seen:
            self.seen.end_leases(start, stop)

    def hand_out_again(self, start: int, stop: int, deadline_us: int) -> int:
        """Lease [start, stop) again, a range of `available_again` or a part; returns how often it was handed out."""
        (place,) = self.places.parts(start, stop)
        assert place.state == READY
        self.places.put(Place(start, stop, place.times + 1, LEASED, deadline_us, owner=self._owner))
        for others in (self._unasked, self._unread):
            if others is not None:
                others.remove(start, stop)
        if self.seen:
            self.seen.end_leases(start, stop)
        return place.times + 1

    def wait_in_place(self, place: Place) -> None:
        """Let positions whose lease ended wait in their place."""
        assert place.state == WAITING
        self.retrying.remove(place.start, place.stop)
        self.places.put(place)
        self._settled += place.stop - place.start

    # -- order keys

    def begin_pull(self, owner: int = 0) -> None:
        """Begins a pull. Its leases belong to the connection with the number `owner`; 0: to none."""
        self._owner = owner
        self.join_keys()

    def join_keys(self) -> None:
        """Counts what was taken so far for the order of keys."""
        if self._order is not None:
            self._order.begin_pull()
            if self._order.is_empty:
                self._order = None

    def key_slots(self, hashes: U64) -> I64:
        """The slots of order keys, i64[n], by which the others know them."""
        if self._order is None:
            self._keys = OrderKeys() if self._keys is None else self._keys
            self._order = KeyOrder(self._keys)
        return self._order.slots_of(hashes)

    def admits(self, slots: I64) -> NDArray[np.bool_]:
        """Which messages may go out, bool[n], by the slots of their order keys. They are behind all that are blocked."""
        assert self._order is not None
        return self._order.admits(slots)

    def add_keys(self, positions: I64, slots: I64, before: I64, out: NDArray[np.bool_], deadline_us: int) -> None:
        """Hands out messages i64[n] with order keys (by their slots). Some (`out`) are leased, the others wait.
        `before`: how often each was handed out before."""
        assert self._order is not None
        self._leave_places(positions)
        self._order.add(positions, slots, before, out, deadline_us, self._owner)

    def holds_keys(self, slots: I64) -> NDArray[np.bool_]:
        """Of which of these order keys, by their slots, an unfinished message was looked at, bool[n]."""
        assert self._order is not None
        return self._order.holds(slots)

    def attempts_of(self, positions: I64) -> I64:
        """How often messages with an order key, which are not leased, were handed out, i64[n]."""
        assert self._order is not None
        return self._order.times_of(positions)

    def freed_keys(self) -> bool:
        """Whether messages are done that were not when the pull began. Their keys may be free now."""
        return self._order is not None and self._order.settle()

    def _leave_places(self, positions: I64) -> None:
        """Positions have their own state from now on."""
        if self._places is None or int(positions[0]) >= self._places.stop:
            return
        for start, stop in ranges_of(positions):
            self._places.remove(start, stop)

    def blocked(self) -> int:
        """How many messages wait for their order key."""
        return 0 if self._order is None else self._order.blocked

    def free_positions(self, count_max: int) -> I64:
        """The positions of the first `count_max` blocked messages whose order key is free, ascending."""
        return _NO_POSITIONS if self._order is None else self._order.candidates(count_max)

    def free_keys(self) -> I64:
        """The slots of the order keys of all `free_positions`."""
        return _NO_POSITIONS if self._order is None else self._order.candidate_slots()

    def take_free(self, positions: I64, deadline_us: int) -> I64:
        """The first `free_positions` are leased. Returns the number of each one's lease, i64[n]."""
        assert self._order is not None
        return self._order.take_blocked(positions, deadline_us, self._owner)

    def recall(self, failed: list[Range]) -> list[Place]:
        """Take back later messages of the order keys of failed ones. Only the first failed message of each key fails. The
        later ones of the key, failed or leased, are taken back. Returns their places."""
        if self._order is None or not failed:
            return []
        back = self._order.recall(failed)
        if not len(back):
            return []
        for start, stop in ranges_of(back):
            self.retrying.remove(start, stop)
        return self._order.places_of(back)

    def pause(self, positions: I64, until_us: I64, now_us: int, *, alone: bool) -> list[Place]:
        """Failed messages with an order key wait in their place until these times, i64[n]. Returns their places.
        `now_us`: by the wall clock.

        `alone`: the attempt has failed, and no later ones of their keys go out with them. Otherwise it was none."""
        assert self._order is not None
        for start, stop in ranges_of(positions):
            self.retrying.remove(start, stop)
        return self._order.pause(positions, until_us, now_us, alone=alone)

    def waiting_keys(self) -> int:
        """How many order keys wait for a message that has failed."""
        return 0 if self._order is None else self._order.waiting_keys()

    def waiting_heads(self) -> WaitingHeads | None:
        """The messages for which order keys wait; None without any."""
        heads = None if self._order is None else self._order.heads()
        return heads if heads is not None and len(heads.position) else None

    def fail_heads(self, positions: I64) -> list[Range]:
        """Move those of `waiting_heads` at these positions to `retrying`. Returns their ranges."""
        failed = [] if self._order is None else self._order.fail_heads(positions)
        for start, stop in failed:
            self.retrying.add(start, stop)
        return failed

    def end_pauses(self, positions: I64, now_us: int) -> int:
        """The pauses of those of `waiting_heads` at these positions end. Returns how many did."""
        return 0 if self._order is None else self._order.end_pauses(positions, now_us)

    def of_lease(self, ranges: list[Range], lease: int | None) -> list[Range]:
        """The parts of delivered ranges without messages with an order key that are blocked, or that have another lease
        now. `lease` is None for deliveries of an earlier process."""
        if lease:  # of a message with an order key, and of no other
            return [] if self._order is None else self._order.of_lease(ranges, lease)
        if self._order is None:
            return ranges
        refused = self._order.outside_lease(ranges, lease)
        return without(ranges, refused) if len(refused) else ranges

    # -- leases

    def release(self, now_us: int) -> bool:
        """Make ranges ready that have waited long enough. True if there were any."""
        paused = self._order is not None and self._order.release(now_us)
        return (self._places is not None and self._places.release(now_us)) or paused

    def hold_pulled(self, start: int, stop: int, deadline_us: int) -> None:
        """`hold` for the owner of the pull under way."""
        self.hold(start, stop, deadline_us, self._owner)

    def hold(self, start: int, stop: int, deadline_us: int, owner: int = 0) -> None:
        """Lease handed-out positions until the deadline. When the heap has doubled, settled leases leave it."""
        heapq.heappush(self._leases, (deadline_us, start, stop, owner))
        if len(self._leases) >= self._prune_at:
            self._prune()

    def extend(self, positions: I64, deadline_us: int, owner: int) -> int:
        """Positions, i64[n] ascending, that are leased stay so until the deadline, for `owner`. Returns how many these are.

        Their lease of before is still in the heap. It does not end them, because they get places with a later end."""
        held = positions[(positions >= self.committed) & (positions < self.next)]
        held = held[~(self.acked.covers(held, held + 1) | self.retrying.covers(held, held + 1))]
        keyed = 0
        if self._order is not None and len(held):
            with_keys = np.isin(held, self._order.within(int(held[0]), int(held[-1]) + 1))
            keyed, held = self._order.extend(held[with_keys], deadline_us, owner), held[~with_keys]
        if self._places is not None:
            held = held[self._places.are_leased(held)]
        if len(held):
            start = int(held[0])
            times = self.attempts_before(start, int(held[-1]) + 1 - start)[held - start] + 1
            first = np.append(True, (np.diff(held) != 1) | (np.diff(times) != 0))
            starts, stops = held[first], held[np.append(first[1:], True)] + 1
            self.places.lease_all(starts, stops, times[first], deadline_us, owner)
            self._settled += len(held)  # in their lease of before
            for start, stop in ranges_of(held):
                self.hold(start, stop, deadline_us, owner)
        return keyed + len(held)

    def _prune(self) -> None:
        self._leases = [lease for lease in self._leases if lease[2] > self.committed and self._is_held(*lease[:3])]
        heapq.heapify(self._leases)
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._leases))
        self._settled = 0

    def has_room(self, ranges_max: int) -> bool:
        """Whether the heap has fewer than `ranges_max` leases. At the bound, many settled leases are removed first."""
        if len(self._leases) >= ranges_max and self._settled > ranges_max // 8:
            self._prune()
        return len(self._leases) < ranges_max

    def attempts_before(self, start: int, count: int) -> I64:
        """How often each position was handed out before, i64[count], to be read: by earlier processes (as far as known) or
        from its place."""
        if not self.seen and self._places is None and self._order is None:
            return zeros(count, _I64)
        before = np.zeros(count, np.int64)
        self.seen.overlay(start, before)
        if self._places is not None:
            self._places.overlay(start, before)
        if self._order is not None:
            self._order.overlay(start, before)
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
        elif fresh:  # all between the parts is acked
            self._acked(fresh[0][0], fresh[-1][1])
        return fresh

    def ack_all(self, ranges: list[Range], limit: int) -> list[Range]:
        """`ack` for ranges that ascend. Returns the ranges that this call acked, in any order."""
        if len(ranges) < _MANY:
            return [part for start, stop in ranges for part in self.ack(start, stop, limit)]
        edges = np.array(ranges, np.int64)
        starts, stops = np.maximum(edges[:, 0], self.committed), np.minimum(edges[:, 1], limit)
        if not self._are_leased(starts, stops):
            return [part for start, stop in ranges for part in self.ack(start, stop, limit)]
        self._settled += int((stops - starts).sum())
        ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
        if self._order is not None:
            self._order.finish_all(ranges)
        self.acked.update(starts, stops)
        committed = self.acked.following(self.committed)
        if committed is not None:
            self.committed = committed
            self.acked.drop_below(committed)
            self.next = max(self.next, committed)
        return ranges

    def _are_leased(self, starts: I64, stops: I64) -> bool:
        """Whether all of these ranges are leased, and not in places. Not: some of them may be leased."""
        if not bool((starts < stops).all()) or self.place_ranges:
            return False
        return not self.acked.meets(starts, stops) and not self.retrying.meets(starts, stops)

    def joined(self, ranges: list[Range]) -> list[Range]:
        """Ranges that ascend, with those made one between which everything is acked. An ack of them does the same."""
        if len(ranges) < 2 or not self.passes_over:
            return ranges
        edges = np.array(ranges, np.int64)
        ends = np.flatnonzero(~self.acked.covers(edges[:-1, 1], edges[1:, 0]))
        starts = edges[np.concatenate(([0], ends + 1)), 0]
        stops = edges[np.concatenate((ends, [len(edges) - 1])), 1]
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def _acked(self, start: int, stop: int) -> None:
        self._settled += stop - start
        if self._order is not None:
            self._order.finish(start, stop)
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

    def pass_over(self, gaps: list[Range]) -> None:
        """Count positions that were just handed out, and that the group does not get, as acked. They ascend. Only positions
        that were acked before a restart may be behind them."""
        self.passes_over = True
        if gaps[0][0] == self.committed:
            self._acked(*gaps[0])
            gaps = gaps[1:]
        self.acked.extend(gaps)

    def pass_over_again(self, gaps: list[Range]) -> None:
        """`pass_over` for positions that were just handed out from their place."""
        self.passes_over = True
        for start, stop in gaps:
            self._acked(start, stop)

    def to_log(self, acked: list[Range]) -> list[Range]:
        """The ranges by which the progress log learns of freshly acked ones: with the positions beside them that were
        passed over."""
        rows: list[Range] = []
        end = -1
        for start, stop in sorted(acked):
            if stop <= end:
                continue
            around = self.acked.around(start)
            if around is None:
                around = self.passed_to_log() or (start, stop)
            rows.append(around)
            end = around[1]
        return rows

    def passed_to_log(self) -> Range | None:
        """The positions below `committed` that the progress log does not know as acked, as one range; None if there are
        none. It takes part of them twice."""
        start, self.logged = self.logged, self.committed
        return (start, self.committed) if start < self.committed else None

    def to_retry(self, start: int, stop: int, ended_us: int | None = None) -> list[Range]:
        """Move leased positions to `retrying`; returns the ranges that were leased.

        With `ended_us`, a lease in its place with a later deadline stays leased."""
        start, stop = max(start, self.committed), min(stop, self.next)
        if start >= stop:
            return []
        fresh = [part for gap in self.acked.missing(start, stop) for part in self.retrying.missing(*gap)]
        if self._places is not None:
            fresh = [part for gap in fresh for part in self._leased(*gap, ended_us)]
        if self._order is not None and fresh:
            # A lease of a message with an order key has a deadline of its own.
            kept = self._order.not_leased if ended_us is None else self._order.within
            fresh = without(fresh, np.concatenate([kept(*part) for part in fresh]))
            self._order.fail(fresh)
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

    def unclaimed(self, end: int) -> list[Range]:
        """Positions below `end` that are neither acked nor leased nor being retried, in order. O(ranges)."""
        free: list[Range] = []
        for gap in self.acked.missing(self.committed, end):
            for low, high in self.retrying.missing(*gap):
                waiting = [] if self._places is None else self._places.parts(low, min(high, self.next))
                free += [(place.start, place.stop) for place in waiting if place.state != LEASED]
                if self._order is not None:
                    free += [(place.start, place.stop) for place in self._order.unclaimed(low, min(high, self.next))]
                if high > self.next:
                    free.append((max(low, self.next), high))
        return free if self._order is None else sorted(free)

    def claim(self, start: int, stop: int) -> list[Place]:
        """Take unclaimed positions as if they were being retried, so that no consumer gets them; `settle` or `give_back`
        follows. Returns the ranges with the count of their hand-overs. Positions that are passed over stay ready."""
        if start > self.next:
            for low, high in self.acked.missing(self.next, start):
                for first, behind, times in self.seen.parts(low, high):
                    self.places.put(Place(first, behind, times, READY))
                self._ask_later(low, high)
                self._read_later(low, high)
        parts = [] if self._places is None else self._places.parts(start, min(stop, self.next))
        if self._order is not None:  # a claim ends the wait for the key; a message that is given back begins it again
            keyed = self._order.unclaimed(start, min(stop, self.next))
            self._order.finish_all([(place.start, place.stop) for place in keyed])
            parts += keyed
        if stop > self.next:
            fresh = (max(start, self.next), stop)
            parts += [Place(first, behind, times, READY) for first, behind, times in self.seen.parts(*fresh)]
            self._ask_later(*fresh)
            self.next = stop
        for place in parts:
            if self._places is not None:
                self._places.remove(place.start, place.stop)
            self.retrying.add(place.start, place.stop)
            self._claimed = Places() if self._claimed is None else self._claimed
            self._claimed.put(place._replace(state=READY, until_us=0, until_ms=0))
        return parts

    def give_back(self, parts: list[Place]) -> None:
        """End a claim: the positions are ready to be handed out. A group that a seek moved stays there."""
        for place in parts:
            for others in (self._claimed, self._returning):
                if others is not None:
                    others.remove(place.start, place.stop)
            for low, high in self.retrying.common(place.start, place.stop):
                self.retrying.remove(low, high)
                self.places.put(Place(low, high, place.times, READY))
                self._read_later(low, high)

    @property
    def returning(self) -> Iterable[Place]:
        """Positions of which a record may stand in message_log from the offset `until_ms` on."""
        return self._returning or ()

    def begin_return(self, start: int, stop: int, offset: int) -> list[Place]:
        """Records of positions that are being retried are about to be written to message_log, at or behind an offset.
        Returns the positions."""
        found = [Place(low, high, 0, READY, 0, offset) for low, high in self.retrying.common(start, stop)]
        for place in found:
            self.restore_return(place)
        return found

    def end_returns(self) -> None:
        """Ends all doubts about returned positions."""
        self._returning = None

    def settle(self, start: int, stop: int) -> list[Range]:
        """The retries of these positions are durable elsewhere: count the positions as acked. Returns their ranges.
        Positions that are not in `retrying` any more are left alone: a seek came between."""
        settled = self.retrying.common(start, stop)
        self.retrying.remove(start, stop)
        for others in (self._claimed, self._returning):
            if others is not None:
                others.remove(start, stop)
        for low, high in settled:
            self._acked(low, high)
        return settled

    def abandon(self, start: int, stop: int, deadline_us: int) -> bool:
        """The retries could not be made: lease the positions again until the deadline. False if a seek came between."""
        abandoned = self.retrying.common(start, stop)
        self.retrying.remove(start, stop)
        if self._returning is not None:
            self._returning.remove(start, stop)
        for low, high in abandoned:
            self._lease_in_place(low, high, deadline_us)
            if self._order is not None:
                self._order.lease_again(low, high, deadline_us)
            self.hold(low, high, deadline_us)
        return bool(abandoned)

    def _lease_in_place(self, start: int, stop: int, deadline_us: int) -> None:
        """Give positions without an order key places with this deadline. Their lease of before is still in the heap, and
        must not end them earlier."""
        times = self.attempts_before(start, stop - start) + 1
        keyed = _NO_POSITIONS if self._order is None else self._order.within(start, stop)
        for low, high in without([(start, stop)], keyed):
            edges = low + np.flatnonzero(np.diff(times[low - start : high - start])) + 1
            for first, last in pairwise([low, *edges.tolist(), high]):
                self.places.put(Place(first, last, int(times[first - start]), LEASED, deadline_us))

    def acked_to_log(self) -> list[Range]:
        """All acked ranges, for a snapshot of the progress log; the first one begins at 0. Without the range that the group
        lost to retention: a start must find it until a consumer has got the error."""
        lost = self.passed or (self.committed, self.committed)
        behind = [(lost[1], self.committed)] if lost[1] < self.committed else []
        return [(0, lost[0]), *behind, *self.acked]

    def take_passed(self) -> bool:
        """Whether messages were removed before they were acked; True once for each removal. Forgets it, because a consumer
        of the group gets the error now."""
        passed, self.passed = self.passed, None
        return passed is not None

    def end_earlier(self, start: int, stop: int) -> None:
        """Counts positions as leased, with an end that has passed, because an earlier process gave the leases. They are
        in their place, or were just handed out."""
        for low, high, times in self.seen.parts(start, stop):
            self.seen.set(low, high, times - 1, leased=False)
        if self._places is not None:
            for place in self._places.parts(start, stop):
                self._places.put(place._replace(state=LEASED, until_us=0))
        self.hold(start, stop, 0)

    def move_to(self, position: int, moves: int) -> None:
        """Go on at `position`, as if everything before it was acked and nothing from it on was ever handed out."""
        self.committed = self.next = self.logged = position
        self.seen = Seen()
        self.moves = moves
        self.passed = None
        self.acked, self.retrying = RangeSet(), RangeSet()
        self._settled = 0
        self._leases = []
        if self._order is not None:
            self._order.clear()
        self._places = self._claimed = self._returning = self._unasked = self._unread = self._order = None
        self._prune_at = _PRUNE_MIN

    def next_deadline_us(self) -> int | None:
        """The earliest deadline of a lease, or the moment when a waiting range is ready; None if there is neither."""
        ends = [
            None if self._places is None else self._places.next_until_us(),
            None if self._order is None else self._order.next_until_us(),
        ]
        while self._leases:
            deadline_us, start, stop, _ = self._leases[0]
            if self._is_held(deadline_us, start, stop):
                ends.append(deadline_us)
                break
            heapq.heappop(self._leases)
        return min([end for end in ends if end is not None], default=None)

    def retry_expired(self, now_us: int, count_max: int) -> list[Range]:
        """Moves positions whose lease has ended to `retrying`, at most about `count_max`. Returns their ranges."""
        found: list[Range] = []
        total = 0
        while self._leases and self._leases[0][0] <= now_us and total < count_max:
            deadline_us, start, stop, owner = heapq.heappop(self._leases)
            if stop - start > count_max - total:
                cut = start + count_max - total
                heapq.heappush(self._leases, (deadline_us, cut, stop, owner))
                stop = cut
            parts = self.to_retry(start, stop, deadline_us)
            total += sum([high - low for low, high in parts])
            found += parts
        if self._order is not None and total < count_max:
            ended = self._order.fail_expired(now_us, count_max - total)
            for low, high in ended:
                self.retrying.add(low, high)
            found += ended
        return found

    def end_leases_of(self, owners: set[int]) -> list[Range]:
        """Move positions whose leases belong to these owners to `retrying`; returns their ranges. O(leases)."""
        ended = [lease[1:3] for lease in self._leases if lease[3] in owners]
        if ended:
            self._leases = [lease for lease in self._leases if lease[3] not in owners]
            heapq.heapify(self._leases)
        if self._places is not None:  # what has a place has its owner there
            ended = [part for span in ended for part in self._places.missing(*span)]
            ended += self._places.owned_by(owners)
        if self._order is not None and ended:
            ended = [part for span in ended for part in without([span], self._order.within(*span))]
        found = [part for span in ended for part in self.to_retry(*span)]
        if self._order is not None:
            keyed = self._order.end_leases_of(owners)
            for low, high in keyed:
                self.retrying.add(low, high)
            found += keyed
        return found

    def _is_held(self, deadline_us: int, start: int, stop: int) -> bool:
        """Whether any of the positions is still leased until this deadline."""
        gaps = self.acked.missing(max(start, self.committed), stop)
        unsettled = [part for gap in gaps for part in self.retrying.missing(*gap)]
        if self._places is not None:
            unsettled = [part for gap in unsettled for part in self._leased(*gap, deadline_us)]
        if self._order is None:
            return bool(unsettled)
        return any(len(self._order.within(*part)) < part[1] - part[0] for part in unsettled)

    def skip_to(self, first: int, *, lagging: bool = False) -> None:
        """Retention removed the messages below `first`. `lagging`: maybe also some that the group had not acked."""
        if first > self.committed:
            if lagging and self.acked.missing(self.committed, first):
                self.passed = (self.committed if self.passed is None else self.passed[0], first)
            self.committed = first
            self.acked.drop_below(first)
            behind = self.acked.following(first)
            if behind is not None:
                self.committed = behind
                self.acked.drop_below(behind)
            self.retrying.drop_below(self.committed)
            if self._places is not None:
                self._places.remove(0, self.committed)
            if self._order is not None:
                self._order.finish(0, self.committed)
            self.next = max(self.next, self.committed)

    def restore(self, place: Place) -> None:
        """Restore positions that waited in their place or were leased there, from a row of the progress log."""
        self.seen.set(place.start, place.stop, place.times, leased=False)
        if self._returning is not None:
            self._returning.remove(place.start, place.stop)
        for start, stop in self.acked.missing(max(place.start, self.committed), place.stop):
            self.places.put(place._replace(start=start, stop=stop))

    def restore_count(self, start: int, stop: int, times: int, *, leased: bool) -> None:
        """Restore how often positions were handed out, and whether a consumer had them then."""
        self.seen.forget_below(self.committed)
        if stop > self.committed:
            self.seen.set(max(start, self.committed), stop, times, leased=leased)
        if self._returning is not None:
            self._returning.remove(start, stop)
        if self._places is not None:
            for place in self._places.parts(start, stop):
                self._places.put(Place(place.start, place.stop, times, READY))

    def restore_return(self, place: Place) -> None:
        """Note positions of which a record may stand in message_log, also from a row of the progress log."""
        self._returning = Places() if self._returning is None else self._returning
        self._returning.remove(0, self.committed)
        self._returning.put(place)

    def restart(self, end: int) -> None:
        """To be called after the progress log was read. Leased positions are deliverable again, as one more attempt."""
        assert self.next == self.committed, "a cursor that handed out before its restart"
        self.logged = self.committed
        if self.seen:
            self.seen.restart(self.acked.missing(self.committed, max(self.committed, min(end, self.seen.stop))))
        if self._returning is not None:
            unacked = self.acked.missing(self.committed, max(self.committed, min(end, self._returning.stop)))
            parts = [part for span in unacked for part in self._returning.parts(*span)]
            self._returning = None
            for part in parts:
                self.restore_return(part)
        if self._places is not None:
            self._restart_places(self._places, end)

    def counts(self) -> list[Count]:
        """How often positions that are not acked were handed out, without those that never were; and whether they are
        leased. For a snapshot of the progress log. A failure that is not durable yet counts as a lease."""
        found = [] if self._order is None else self._order.counts()
        keyed = _NO_POSITIONS if self._order is None else self._order.within(self.committed, self.next)
        for place in self._claimed or ():
            found += [(place.start, place.stop, place.times, False)] if place.times else []
        for place in self._places or ():  # the log has rows of their own for those without a lease
            found += [(place.start, place.stop, place.times, True)] if place.state == LEASED else []
        for gap in self.acked.missing(self.committed, self.next):
            parts = without([gap], keyed[slice(*np.searchsorted(keyed, gap))])
            for others in (self._claimed, self._places):
                parts = parts if others is None else [part for span in parts for part in others.missing(*span)]
            for span in parts:
                found += [(start, stop, times + 1, True) for start, stop, times in self.seen.parts(*span)]
        if self.seen.stop > self.next:
            found += self.seen.counts(self.next, self.seen.stop)
        return found

    def _restart_places(self, places: Places, end: int) -> None:
        """Positions that are not acked, up to the last place, were handed out too: make them ready in their place."""
        places.remove(0, self.committed)
        places.remove(end, max(end, places.stop))
        stop = places.stop
        for gap in self.acked.missing(self.committed, stop) if stop > self.committed else []:
            for low, high in places.missing(*gap):
                for start, behind, times in self.seen.parts(low, high):
                    places.put(Place(start, behind, times, READY))
                self._ask_later(low, high)
        for place in places:
            if place.state == READY:
                self._read_later(place.start, place.stop)
        self.next = max(self.next, stop)

    def _ask_later(self, start: int, stop: int) -> None:
        """The filter has to be asked about positions that have a place."""
        if self._unasked is None:
            self._unasked = RangeSet()
        self._unasked.add(start, stop)

    def check_invariants(self) -> None:
        """Sets are consistent with the cursor positions."""
        self.acked.check_invariants()
        self.retrying.check_invariants()
        assert self.logged <= self.committed <= self.next, "committed beyond what was handed out"
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

    def check_order(self) -> tuple[I64, I64]:
        """Each message with an order key has one state. Returns what `KeyOrder.check_invariants` does."""
        if self._order is None:
            return _NO_POSITIONS, _NO_POSITIONS
        slots = self._order.check_invariants()
        positions = self._order.within(0, self.next)
        assert len(positions) == len(slots[0]) == len(self._order.within(self.committed, self.next))
        assert not self.acked.covers(positions, positions + 1).any(), "acked and unfinished at once"
        failed = self._order.failed(positions)
        assert np.array_equal(self.retrying.covers(positions, positions + 1), failed), "failed, and not retried"
        for position in positions.tolist():
            assert self._places is None or not self._places.parts(position, position + 1), "two places"
        return slots


class GroupCursors:
    """(subject, group): a cursor over the subject's queue, and one over the group's own retry queue.

    `expired` counts the messages that the group does not get (again) because they have expired, `filtered` those that
    its filter kept from it since the start.
    """

    __slots__ = ("_fresh_first", "_kept", "_keys", "expired", "filtered", "main", "retry")

    def __init__(self, main: int, retry: int, moves: int = 0) -> None:
        """`main`, `retry`: the positions at which the group goes on. `moves`: how often it was moved before."""
        self._keys = OrderKeys()
        self.main = Cursor(main, moves, self._keys)
        self.retry = Cursor(retry, moves, self._keys)
        self.expired = 0
        self.filtered = 0
        self._kept: KeptBytes | None = None
        self._fresh_first = False

    # -- turns

    def owe_turn(self) -> None:
        """Lets the next pull begin with messages that the group has never looked at, because this one got only messages
        that came again."""
        self._fresh_first = True

    def take_turn(self) -> bool:
        """Whether the pull under way begins with messages that the group has never looked at. It has its turn then."""
        fresh_first, self._fresh_first = self._fresh_first, False
        return fresh_first

    def hold_free_keys(self) -> I64:
        """Keep the order keys of messages that may go out from later ones, until `let_go` of the result."""
        slots = np.concatenate([cursor.free_keys() for cursor in (self.main, self.retry)])
        if len(slots):
            self._keys.hold(slots)
        return slots

    def let_go(self, slots: I64) -> None:
        """End `hold_free_keys`."""
        if len(slots):
            self._keys.release(slots)

    # -- counts

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

    def count_filtered(self, count: int) -> None:
        """Count messages that the group's filter kept from it."""
        self.filtered += count

    def waiting_keys(self) -> int:
        """How many order keys wait for a message that has failed."""
        return self.main.waiting_keys() + self.retry.waiting_keys()

    def cursor(self, retry: bool) -> Cursor:
        """The cursor of one of the two queues."""
        return self.retry if retry else self.main

    def check_invariants(self) -> None:
        """The cursors are consistent, also in the order keys that they share."""
        for cursor in (self.main, self.retry):
            cursor.check_invariants()
        found = [cursor.check_order() for cursor in (self.main, self.retry)]
        self._keys.check_invariants(*[np.concatenate(slots) for slots in zip(*found, strict=True)])
