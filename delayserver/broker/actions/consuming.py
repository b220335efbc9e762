"""Handing messages out to consumer groups, and their acks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.pulled import PullBudget, PulledBatch
from delayserver.broker.queues.deliveries import EPOCHS, DeliveryRanges, delivery_ids, split_deliveries
from delayserver.broker.queues.groups import Cursor, GroupKey
from delayserver.broker.queues.places import LEASED, Place
from delayserver.broker.queues.queue import ConsumeQueue
from delayserver.broker.queues.ranges import Range, ranges_of
from store.errors import StoreError
from store.records.batches import I64
from store.records.expiry import expired_rows


@dataclass(frozen=True, slots=True)
class Acked:
    """Answer of `ack`: how many deliveries it acked, and how many were not (or no longer) leased.

    The acks are durable after the next sync. The client gets its answer then.
    """

    acked: int
    unknown: int


class Consuming:
    """Pull and ack."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.pulled = 0
        self.acked = 0
        self._unfinished: set[GroupKey] = set()

    def pull(
        self,
        key: GroupKey,
        max_messages: int,
        max_bytes: int,
        now_us: int,
        lease_us: int,
        ack_timeout_ms: int | None,
    ) -> PulledBatch | None:
        """See `Broker.pull`."""
        limits = self._state.limits
        timeout_ms = min(ack_timeout_ms or limits.ack_timeout_ms_default, limits.ack_timeout_ms_max)
        group = self._state.group(key)
        for cursor in (group.main, group.retry):
            cursor.release(lease_us)
        budget = PullBudget(
            min(max_messages, limits.pull_messages_max),
            min(max_bytes, limits.pull_bytes_max),
            limits.pull_messages_max,
            limits.pull_bytes_max,
        )
        self._unfinished.discard(key)
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None:
                self._hand_out(key, retry, queue, group.cursor(retry), budget, now_us, lease_us + timeout_ms * 1000)
        pulled = budget.pulled()
        if pulled is None and not budget.may_look:
            self._unfinished.add(key)
        self.pulled += 0 if pulled is None else len(pulled)
        return pulled

    def is_unfinished(self, key: GroupKey) -> bool:
        """See `Broker.is_unfinished`."""
        return key in self._unfinished

    def waiting_rows(self, key: GroupKey) -> int:
        """See `Broker.waiting_rows`."""
        group = self._state.groups.get(key)
        rows = 0
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None:
                cursor = None if group is None else group.cursor(retry)
                rows += queue.end if cursor is None else queue.end - cursor.next + cursor.ready()
        return rows

    def _hand_out(
        self,
        key: GroupKey,
        retry: bool,
        queue: ConsumeQueue,
        cursor: Cursor,
        budget: PullBudget,
        now_us: int,
        deadline_us: int,
    ) -> None:
        """Take runs while there are any and they fit. Consecutive runs become one lease."""
        limits = self._state.limits
        held: Range = (cursor.next, cursor.next)
        while budget.messages > 0 and budget.may_look and cursor.has_room(limits.lease_ranges_max):
            span = cursor.available_again(budget.messages)
            if span is None:
                room = min(budget.messages, limits.outstanding_max - cursor.outstanding())
                fresh = room > 0 and cursor.place_ranges < limits.lease_ranges_max
                span = cursor.available(queue.end, room) if fresh else None
            try:
                taken = None if span is None else self._take(key, retry, cursor, budget, span, now_us, deadline_us)
            except StoreError:
                if not budget.parts:
                    raise
                break  # the messages taken so far are handed out; the next pull raises the error
            if taken is None:
                break
            if taken[0] != held[1]:
                self._hold(key, cursor, held, deadline_us)
                held = taken
            held = (held[0], taken[1])
        self._hold(key, cursor, held, deadline_us)

    def _hold(self, key: GroupKey, cursor: Cursor, held: Range, deadline_us: int) -> None:
        if held[1] > held[0]:
            cursor.hold(*held, deadline_us)
            self._state.deadlines.note(key, deadline_us)
            self._state.seen_changed.add(key)

    def _take(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        budget: PullBudget,
        span: Range,
        now_us: int,
        deadline_us: int,
    ) -> Range | None:
        """Take rows of `span` from its first run, as many as fit the budget. Returns their range; None if none fits.

        The range is empty if all rows were passed over as unreadable or expired."""
        start, stop = span
        run = self._state.run_at(key if retry else (key[0], 0), start)
        count = min(stop, run.position + run.row_count) - start
        # A block of index rows may outlive some of its records, which retention removed. That is no damage.
        given_back = run.store_offset < self._state.store.first
        batch = None if given_back else self._state.read(run, patient=True)
        if batch is None:
            # Unreadable messages must not hold up what is behind them; they are counted and reported, not forgotten.
            self._state.lost(0 if given_back else count)
            self._pass_over(key, retry, cursor, start, start + count)
            budget.pass_over(count, 0)
            return start + count, start + count
        row = run.row_start + start - run.position
        count, size = budget.fitting(batch, row, count)
        if count == 0:
            return None
        before = cursor.attempts_before(start, count)
        delivery = delivery_ids(start, count, self._state.epoch, retry)
        if start < cursor.next:
            times = cursor.hand_out_again(start, start + count, deadline_us)
            self._state.in_place(key, retry, Place(start, start + count, times, LEASED))
        else:
            cursor.hand_out(start, start + count)
        expired = expired_rows(batch.expires_ms[row : row + count], now_us)
        if expired is None:
            budget.take(batch.slice(row, row + count), delivery, before, size)
            return start, start + count
        for low, high in ranges_of(start + np.flatnonzero(expired)):
            cursor.ack(low, high, high)
            self._state.expired(key, retry, low, high)
        kept = np.flatnonzero(~expired)
        budget.pass_over(count - len(kept), size if not len(kept) else 0)
        if not len(kept):
            return start + count, start + count
        budget.take(batch.take(row + kept), delivery[kept], before[kept], size)
        return start, start + count

    def _pass_over(self, key: GroupKey, retry: bool, cursor: Cursor, start: int, stop: int) -> None:
        if start >= cursor.next:
            cursor.hand_out(start, stop)
        for low, high in cursor.ack(start, stop, stop):
            self._state.acked(key, retry, low, high)

    def ack(self, key: GroupKey, deliveries: I64) -> Acked:
        """See `Broker.ack`."""
        parts = split_deliveries(deliveries)
        if key not in self._state.groups and not self._may_have_pulled(parts):
            return Acked(0, len(deliveries))
        group = self._state.group(key)
        acked = 0
        for part in parts:
            cursor = group.cursor(part.retry)
            limit = self._ack_limit(key, part, cursor)
            for start, stop in part.ranges:
                for low, high in cursor.ack(start, stop, limit):
                    acked += high - low
                    self._state.acked(key, part.retry, low, high)
        self.acked += acked
        return Acked(acked, len(deliveries) - acked)

    def _may_have_pulled(self, parts: list[DeliveryRanges]) -> bool:
        """Whether an unknown group may have pulled before a crash that lost its row of the progress log."""
        if len(self._state.groups) >= self._state.limits.groups_max:
            return False
        return any(part.epoch == (self._state.epoch - 1) % EPOCHS for part in parts)

    def _ack_limit(self, key: GroupKey, part: DeliveryRanges, cursor: Cursor) -> int:
        """The position up to which an ack counts. For deliveries of the process before, it is the queue's end at the
        restart: positions above may stand for other messages now."""
        if part.epoch == self._state.epoch % EPOCHS:
            return cursor.next
        if part.epoch == (self._state.epoch - 1) % EPOCHS:
            return self._state.recovered_ends.get(key if part.retry else (key[0], 0), 0)
        return 0
