"""Handing messages out to consumer groups, and their acks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.filters.filter import Filter
from delayserver.broker.pulled import PullBudget, PulledBatch
from delayserver.broker.queues.deliveries import (
    MOVES,
    DeliveryRanges,
    delivery_ids,
    split_deliveries,
    with_leases,
)
from delayserver.broker.queues.groups import ConsumerGroup, Cursor, GroupKey
from delayserver.broker.queues.places import BLOCKED, LEASED, Place
from delayserver.broker.queues.queue import ConsumeQueue
from delayserver.broker.queues.ranges import Range, gaps, ranges_of
from delayserver.broker.reads import ReadNeeded, ReadPlan
from store.errors import StoreError
from store.records.batches import I64, U64, StoredBatch
from store.records.expiry import expired_rows

# Work of the filter of one waiting group in the step that brings messages. More of it takes its turn.
_ARRIVAL_NS = 200_000


@dataclass(frozen=True, slots=True)
class Acked:
    """Answer of `ack`: how many deliveries it acked, and how many were not (or no longer) leased.

    The acks are durable after the next sync. The client gets its answer then.
    """

    acked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class _Looked:
    """`count` rows of a record from `row` on, which a pull of a group takes from a queue. They stand at positions from
    `start` on."""

    key: GroupKey
    retry: bool
    cursor: Cursor
    batch: StoredBatch
    row: int
    start: int
    count: int


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
        group.main.begin_pull()
        budget = PullBudget(
            min(max_messages, limits.pull_messages_max),
            min(max_bytes, limits.pull_bytes_max),
            limits.pull_messages_max,
            limits.pull_bytes_max,
            limits.filter_step_ns,
        )
        self._unfinished.discard(key)
        needed: ReadPlan | None = None
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None and needed is None:
                deadline_us = lease_us + timeout_ms * 1000
                needed = self._hand_out(key, retry, queue, group.cursor(retry), budget, now_us, deadline_us)
        pulled = budget.pulled(needed)
        if pulled is None and needed is not None:
            raise ReadNeeded(needed)
        if pulled is None and not budget.may_look:
            self._unfinished.add(key)
        self.pulled += 0 if pulled is None else len(pulled)
        return pulled

    def use_filter(self, key: GroupKey, wanted: Filter | None) -> None:
        """See `Broker.use_filter`."""
        if wanted is None:
            self._state.filters.pop(key, None)
        else:
            self._state.filters[key] = wanted

    def passes_over(self, key: GroupKey) -> bool:
        """See `Broker.passes_over`."""
        wanted = self._state.filters.get(key)
        if wanted is None:
            return False
        queue = self._state.queues.get((key[0], 0))
        group: ConsumerGroup | None = self._state.groups.get(key)
        if queue is None or group is None:
            return False
        run = queue.newest()
        if run is None or run.position != group.main.next or run.row_count > wanted.rows_within(_ARRIVAL_NS):
            return False
        batch = self._state.store.in_memory(run.store_offset)
        if batch is None:
            return False
        rows = wanted.rows(batch, run.row_start, run.row_start + run.row_count)
        if rows is None or len(rows):
            return False
        group.main.hand_out(run.position, queue.end)
        self._state.pass_over(key, [(run.position, queue.end)])
        return True

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
    ) -> ReadPlan | None:
        """Take runs while there are any and they fit. Consecutive runs become one lease.

        Returns the read that must come before more can be taken."""
        needed: ReadPlan | None = None
        limits = self._state.limits
        wanted = None if retry else self._state.filters.get(key)
        held: Range = (cursor.next, cursor.next)
        while budget.messages > 0 and budget.may_look and cursor.has_room(limits.lease_ranges_max):
            room = budget.messages
            span = cursor.available_again(room)
            if span is None:
                room = min(room, cursor.room(limits.outstanding_max))
                fresh = (
                    room > 0
                    and cursor.place_ranges < limits.lease_ranges_max
                    and cursor.blocked() < limits.blocked_messages_max
                )
                looked = room if wanted is None else wanted.rows_within(budget.look_ns)
                span = cursor.available(queue.end, looked) if fresh else None
            try:
                taken = (
                    None
                    if span is None
                    else self._take(key, retry, queue, cursor, budget, span, room, now_us, deadline_us)
                )
            except ReadNeeded as read:
                needed = read.plan
                break
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
        return needed

    def _hold(self, key: GroupKey, cursor: Cursor, held: Range, deadline_us: int) -> None:
        if held[1] > held[0]:
            cursor.hold(*held, deadline_us)
            self._state.deadlines.note(key, deadline_us)
            self._state.seen_changed.add(key)

    def _take(
        self,
        key: GroupKey,
        retry: bool,
        queue: ConsumeQueue,
        cursor: Cursor,
        budget: PullBudget,
        span: Range,
        room: int,
        now_us: int,
        deadline_us: int,
    ) -> Range | None:
        """Take rows of `span` from its first run, at most `room` and as many as fit the budget. Returns their range; None
        if none fits.

        The range is empty if all rows were passed over as unreadable or expired. Rows that the group's filter keeps from
        it are passed over as well, but a redelivery in its place is not asked again."""
        start, stop = span
        run = self._state.run_at(key if retry else (key[0], 0), start)
        count = min(stop, run.position + run.row_count) - start
        # A block of index rows may outlive some of its records, which retention removed. That is no damage.
        given_back = run.store_offset < self._state.store.first
        wanted = None if retry or not cursor.must_ask(start) else self._state.filters.get(key)
        to_read = budget.wanted
        if wanted is not None:  # few of the messages that it reads are for the group
            to_read = (wanted.rows_within(self._state.limits.filter_step_ns), to_read[1])
        batch = None if given_back else self._state.read_for(to_read, run, queue)
        if batch is None:
            # Unreadable messages must not hold up what is behind them; they are counted and reported, not forgotten.
            self._state.lost(0 if given_back else count)
            self._pass_over(key, retry, cursor, start, start + count)
            budget.pass_over(count, 0)
            return start + count, start + count
        row = run.row_start + start - run.position
        rows, count, size = _fitting(budget, wanted, batch, (row, count), room)
        if count == 0:
            return None
        looked = _Looked(key, retry, cursor, batch, row, start, count)
        before = cursor.attempts_before(start, count)
        times = self._hand_over(looked, deadline_us) if start < cursor.next else 0
        if not times:
            cursor.hand_out(start, start + count)
        if rows is not None and len(rows) < count:
            self._state.pass_over(key, gaps(start, rows, count), again=times > 0)
        keys = None if retry else _order_keys(batch, row, count)
        if keys is not None:
            rows = self._in_order(looked, np.arange(count) if rows is None else rows, keys, before, times)
            budget.pass_over(count - len(rows), 0)
        if rows is not None and not len(rows):  # the lease of what was taken before goes on behind it
            return (start if budget.parts else start + count), start + count
        expires_ms = batch.expires_ms[row : row + count]
        expired = expired_rows(expires_ms if rows is None else expires_ms[rows], now_us)
        if expired is not None:
            rows = np.arange(count) if rows is None else rows
            for low, high in ranges_of(start + rows[expired]):
                cursor.ack(low, high, high)
                self._state.expired(key, retry, low, high)
            kept = rows[~expired]
            budget.pass_over(len(rows) - len(kept), size if not len(kept) else 0)
            if not len(kept):
                return start + count, start + count
            rows = kept
        delivery = delivery_ids(start, count, self._state.epoch, cursor.moves, retry)
        if keys is not None:
            taken = np.arange(count) if rows is None else rows
            delivery[taken] = with_leases(delivery[taken], cursor.take_keys(start + taken, keys[taken]))
        if rows is None or len(rows) == count:
            budget.take(batch.slice(row, row + count), delivery, before, size)
        else:
            part = batch.take(row + rows) if expired is not None else batch.pick(row + rows)
            budget.take(part, delivery[rows], before[rows], size)
        return start, start + count

    def _hand_over(self, looked: _Looked, deadline_us: int) -> int:
        """Lease ready positions in their place; returns how often they were handed out, this time included."""
        start, stop = looked.start, looked.start + looked.count
        times = looked.cursor.hand_out_again(start, stop, deadline_us)
        self._state.in_place(looked.key, looked.retry, Place(start, stop, times, LEASED))
        return times

    def _in_order(
        self, looked: _Looked, rows: NDArray[np.intp], keys: U64, before: I64, times: int
    ) -> NDArray[np.intp]:
        """Which of the rows go out now. The others wait for their order keys in their place. `times`: how often they were
        handed out from their place, 0 for a first time."""
        start, cursor = looked.start, looked.cursor
        admitted = cursor.admits(start, keys[rows])
        if bool(admitted.all()):
            return rows
        waiting = rows[~admitted]
        cursor.block(start + waiting, keys[waiting], before[waiting])
        if times:  # the log has them as handed out from their place
            for low, high in ranges_of(start + waiting):
                self._state.in_place(looked.key, False, Place(low, high, times - 1, BLOCKED))
        return rows[admitted]

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
            changed: list[Range] = []
            for start, stop in cursor.joined(cursor.of_lease(part.ranges, part.lease_in(self._state.epoch))):
                fresh = cursor.ack(start, stop, limit)
                acked += sum([high - low for low, high in fresh])
                changed += [(fresh[0][0], fresh[-1][1])] if fresh and cursor.passes_over else fresh
            for start, stop in cursor.to_log(changed) if cursor.passes_over else changed:
                self._state.acked(key, part.retry, start, stop)
        self.acked += acked
        return Acked(acked, len(deliveries) - acked)

    def _may_have_pulled(self, parts: list[DeliveryRanges]) -> bool:
        """Whether an unknown group may have pulled before a crash that lost its row of the progress log."""
        if len(self._state.groups) >= self._state.limits.groups_max:
            return False
        return any(part.lease_in(self._state.epoch - 1) is not None for part in parts)

    def _ack_limit(self, key: GroupKey, part: DeliveryRanges, cursor: Cursor) -> int:
        """The position up to which an ack counts. For deliveries of the process before, it is the queue's end at the
        restart: positions above may stand for other messages now. A delivery from before a seek counts for nothing."""
        if part.moves != cursor.moves % MOVES:
            return 0
        if part.lease_in(self._state.epoch) is not None:
            return cursor.next
        if part.lease_in(self._state.epoch - 1) is not None:
            return self._state.recovered_ends.end(key if part.retry else (key[0], 0))
        return 0


def _order_keys(batch: StoredBatch, row: int, count: int) -> U64 | None:
    """The hashes of the order keys of `count` rows from `row` on; None if none of them has a key."""
    if batch.order_hash.strides == (0,) and not int(batch.order_hash[0]):
        return None
    keys = batch.order_hash[row : row + count]
    return keys if bool(keys.any()) else None


def _fitting(
    budget: PullBudget, wanted: Filter | None, batch: StoredBatch, span: tuple[int, int], room: int
) -> tuple[NDArray[np.intp] | None, int, int]:
    """What a pull takes of a record: of `count` rows from `row` on (`span`), at most `room` and as many as fit.

    Returns which rows, counted from `row`, how many rows it looked at, and the bytes. None: all of these."""
    row, count = span
    rows = None
    if wanted is not None:
        rows = wanted.rows(batch, row, row + count)
        budget.look(wanted.work_ns(count))
    if rows is None:
        return None, *budget.fitting(batch, row, min(count, room))
    fit, size = budget.fitting_rows(batch, row + rows[:room])
    # Up to the first match that does not fit.
    return rows[:fit], int(rows[fit]) if fit < len(rows) else count, size
