"""Handing messages out to consumer groups, and their acks.

Messages that a filter passes over are acked in memory, and reach the progress log with the acks beside them, or with
the next sync as one row a group. After a crash the filter looks at them again. So a filter causes no sync and no rows
of its own.

A pull passes over a bounded number of expired or unwanted messages in a step. Then its group stands in line again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.block_cuts import cut_removed
from delayserver.broker.actions.earlier_leases import EarlierLeases
from delayserver.broker.actions.selecting import Selecting, Selection
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.filters.filter import Filter
from delayserver.broker.pulled_batch import PullBudget, PulledBatch
from delayserver.broker.queues.delivery_id import (
    MOVES,
    DeliveryRanges,
    delivery_ids,
    scattered_ids,
    split_deliveries,
    with_leases,
)
from delayserver.broker.queues.group_cursors import Cursor, GroupCursors, GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, StoredRun
from delayserver.broker.queues.ranges import Range, gaps, ranges_alike, ranges_of
from delayserver.broker.reads import ReadNeeded, ReadPlan
from store.errors import StoreError
from store.records.batches import I64, U64, StoredBatch
from store.records.expiry import expired_rows

# Work of the filter of one waiting group in the step that brings messages. More of it takes its turn.
_ARRIVAL_NS = 200_000


_NO_ROWS: NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Acked:
    """Answer of `ack`: how many deliveries it acked, and how many were not (or no longer) leased.

    The acks are durable after the next sync. The client gets its answer then.
    """

    acked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Extended:
    """Answer of `extend`: how many leases go on, and how many deliveries were not (or no longer) leased.

    `full`: the group has no room for more leases with an end of their own. The rest is as it was."""

    extended: int
    unknown: int
    full: bool = False


class Leasing:
    """Pull, ack and extend."""

    def __init__(self, state: BrokerState, counted: Callable[[], object], ended: Callable[[], object]) -> None:
        """`counted` is called when hand-outs wait for a sync, which may come later, `ended` when leases have ended because
        their process did."""
        self._state = state
        self._groups = state.groups
        self._counted = counted
        self._selecting = Selecting(state)
        self._earlier = EarlierLeases(state, ended)
        # Which messages of its subject a group gets. The others get all.
        self._filters: dict[GroupKey, Filter] = {}
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
        ack_timeout_ms: int | None = None,
        owner: int = 0,
    ) -> PulledBatch | None:
        """Hand out the messages that are there now, retries first; None if there are none.

        The first pull makes the group. It starts at the earliest position kept, so a late group gets earlier messages.
        A message that has expired at `now_us` is not handed out. It is done for the group and counted as expired.
        So is one that the group's filter does not want, which is counted as filtered. The leases belong to `owner`, for
        `Retries.end_leases_of`; 0: to nobody.
        Raises ReadNeeded if the next message is not in memory, StoreError if the disk could not read it."""
        try:
            return self._pull(key, max_messages, max_bytes, now_us, lease_us, ack_timeout_ms, owner)
        finally:
            if self._state.notes.write_counts():  # before a consumer has them: it may take this process down
                self._counted()

    def _pull(
        self,
        key: GroupKey,
        max_messages: int,
        max_bytes: int,
        now_us: int,
        lease_us: int,
        ack_timeout_ms: int | None,
        owner: int,
    ) -> PulledBatch | None:
        limits = self._state.limits
        timeout_ms = min(ack_timeout_ms or limits.ack_timeout_ms_default, limits.ack_timeout_ms_max)
        group = self._groups.get_or_make(key)
        for cursor in (group.main, group.retry):
            cursor.release(lease_us)
            cursor.begin_pull(owner)
        budget = PullBudget(
            min(max_messages, limits.pull_messages_max),
            min(max_bytes, limits.pull_bytes_max),
            limits.pull_messages_max,
            limits.pull_bytes_max,
            limits.filter_step_ns,
        )
        self._unfinished.discard(key)
        needed: ReadPlan | None = None
        deadline_us = lease_us + timeout_ms * 1000
        fresh_first = group.take_turn()
        if fresh_first:
            needed = self._hand_out_fresh(key, group, budget, now_us, deadline_us)
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None and needed is None:
                needed = self._hand_out(key, retry, queue, group.cursor(retry), budget, now_us, deadline_us)
        pulled = budget.pulled(needed)
        if pulled is None and needed is not None:  # behind the read the pull is made again, with the turn that it had
            if fresh_first:
                group.owe_turn()
            raise ReadNeeded(needed)
        if pulled is not None and not budget.fresh:
            group.owe_turn()
        if pulled is None and not budget.may_look:
            self._unfinished.add(key)
        self.pulled += 0 if pulled is None else len(pulled)
        return pulled

    def use_filter(self, key: GroupKey, wanted: Filter | None) -> None:
        """Set which messages of the subject a group gets from now on; None: all of them.

        Messages that it was handed once come again whatever the filter says."""
        self._selecting.forget(key)
        if wanted is None:
            self._filters.pop(key, None)
        else:
            self._filters[key] = wanted

    def lacks_filter(self, key: GroupKey) -> bool:
        """Whether `use_filter` must come before the group's next pull: its policy has a filter, and it was not set yet."""
        policies = self._state.policies
        return key in policies.rows and key not in self._filters and bool(policies.filter_text(key))

    def passes_over(self, key: GroupKey) -> bool:
        """Whether the newest messages of a subject are all that the group has not looked at, and its filter keeps all of
        them from it. Then it has passed over them."""
        wanted = self._filters.get(key)
        if wanted is None:
            return False
        queue = self._state.queues.get((key[0], 0))
        group = self._groups.get(key)
        if queue is None or group is None:
            return False
        run = queue.newest()
        if run is None or run.position != group.main.next:
            return False
        batch = self._state.files.store.in_memory(run.store_offset)
        if batch is None or _work_ns(wanted, batch, run) > _ARRIVAL_NS:
            return False
        rows = wanted.rows(batch, run.row_start, run.row_start + run.row_count)
        if rows is None or len(rows):
            return False
        group.main.hand_out(run.position, queue.end)
        self._groups.pass_over(key, [(run.position, queue.end)])
        return True

    def is_unfinished(self, key: GroupKey) -> bool:
        """Whether the group's last pull found nothing but expired or filtered messages before it reached the bound of a
        step."""
        return key in self._unfinished

    def waiting_rows(self, key: GroupKey) -> int:
        """How many messages wait for a group. Messages acked before a restart may be counted too."""
        group = self._groups.get(key)
        rows = 0
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None:
                cursor = None if group is None else group.cursor(retry)
                rows += queue.end if cursor is None else queue.end - cursor.next + cursor.ready()
        return rows

    def _hand_out_fresh(
        self, key: GroupKey, group: GroupCursors, budget: PullBudget, now_us: int, deadline_us: int
    ) -> ReadPlan | None:
        """`_hand_out` of messages that the group has never looked at, before those that come again."""
        queue = self._state.queues.get((key[0], 0))
        if queue is None:
            return None
        held = group.hold_free_keys()
        try:
            return self._hand_out(key, False, queue, group.main, budget, now_us, deadline_us, fresh_first=True)
        finally:
            group.let_go(held)

    def _hand_out(
        self,
        key: GroupKey,
        retry: bool,
        queue: ConsumeQueue,
        cursor: Cursor,
        budget: PullBudget,
        now_us: int,
        deadline_us: int,
        *,
        fresh_first: bool = False,
    ) -> ReadPlan | None:
        """Take runs while there are any and they fit. Consecutive runs become one lease.

        `fresh_first`: only messages that the group has never looked at, and those that must come before them because they
        may have the same order keys. Returns the read that must come before more can be taken."""
        needed: ReadPlan | None = None
        limits = self._state.limits
        wanted = None if retry else self._filters.get(key)
        held: Range = (cursor.next, cursor.next)
        while budget.messages > 0 and budget.may_look and cursor.has_room(limits.lease_ranges_max):
            room = budget.messages
            free = _NO_ROWS if fresh_first else cursor.free_positions(room)
            span = None
            if not len(free):
                span = cursor.unread(room) if fresh_first else cursor.available_again(room)
            if span is None and not len(free):
                room = min(room, cursor.room(limits.outstanding_max))
                fresh = (
                    room > 0
                    and cursor.place_ranges < limits.lease_ranges_max
                    and cursor.blocked() < limits.blocked_messages_max
                )
                span = cursor.available(queue.end, room if wanted is None else queue.end) if fresh else None
            is_fresh, parts = not retry and span is not None and span[0] >= cursor.next, len(budget.parts)
            try:
                selection = None
                if wanted is not None and span is not None and span[0] >= cursor.next:
                    selection = self._selecting.find(key, wanted, queue, span, budget)
                if len(free):
                    taken = self._take_free(key, retry, queue, cursor, budget, free, now_us, deadline_us)
                elif span is not None and selection is not None:
                    taken = self._take_selected(key, cursor, budget, selection, span, room, now_us, deadline_us)
                elif span is not None:
                    taken = self._take(key, retry, queue, cursor, budget, span, room, now_us, deadline_us)
                elif not fresh_first and cursor.freed_keys():  # by messages that have expired in this pull
                    continue
                else:
                    taken = None
            except ReadNeeded as read:
                needed = read.plan
                break
            except StoreError:
                if not budget.parts:
                    raise
                break  # the messages taken so far are handed out; the next pull raises the error
            if taken is None:
                break
            if is_fresh and len(budget.parts) > parts:
                budget.mark_fresh()
            if taken[0] != held[1]:
                self._hold(key, cursor, held, deadline_us)
                held = taken
            held = (held[0], taken[1])
        self._hold(key, cursor, held, deadline_us)
        return needed

    def _hold(self, key: GroupKey, cursor: Cursor, held: Range, deadline_us: int) -> None:
        if held[1] > held[0]:
            cursor.hold_pulled(*held, deadline_us)
            self._leased(key, deadline_us)

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
        run = self._state.messages.run_at(key if retry else (key[0], 0), start)
        count = min(stop, run.position + run.row_count) - start
        # A block of index rows may outlive some of its records, which retention removed. That is no damage.
        given_back = run.store_offset < self._state.files.store.first
        if given_back and cut_removed(self._state, key if retry else (key[0], 0)):
            return cursor.next, cursor.next
        wanted = None if retry or not cursor.must_ask(start) else self._filters.get(key)
        to_read = budget.wanted
        if wanted is not None:  # few of the messages that it reads are for the group
            to_read = (wanted.rows_at_most(self._state.limits.filter_step_ns), to_read[1])
        batch = None if given_back else self._state.messages.read_for(to_read, run, queue)
        if batch is None:
            # Unreadable messages must not hold up what is behind them; they are counted and reported, not forgotten.
            self._state.damages.count_lost(0 if given_back else count)
            self._pass_over(key, retry, cursor, start, start + count)
            budget.pass_over(count, 0)
            return start + count, start + count
        row = run.row_start + start - run.position
        record = (batch, row, count)
        return self._take_record(key, retry, cursor, budget, wanted, record, start, room, now_us, deadline_us)

    def _take_record(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        budget: PullBudget,
        wanted: Filter | None,
        record: tuple[StoredBatch, int, int],
        start: int,
        room: int,
        now_us: int,
        deadline_us: int,
    ) -> Range | None:
        """`_take` of rows of a record, whose first one has the position `start`. `record`: it, its first row, how many."""
        batch, row, count = record
        again = start < cursor.next
        before = cursor.attempts_before(start, count)
        if cursor.seen:
            ended, count = self._end_earlier(key, retry, cursor, batch.slice(row, row + count), start, before)
            if ended:
                budget.pass_over(count, 0)
                return start + count, start + count
        rows, count, size = _fitting(budget, wanted, batch, (row, count), room)
        if count == 0:
            return None
        before = before[:count]
        if again:
            cursor.hand_out_again(start, start + count, deadline_us)
        else:
            cursor.hand_out(start, start + count)
        if rows is not None and len(rows) < count:
            self._groups.pass_over(key, gaps(start, rows, count), again=again)
        keys = _order_keys(batch, row, count)
        waiting, slots = _NO_ROWS, _NO_ROWS
        if keys is not None:
            rows = np.arange(count) if rows is None else rows
            slots = cursor.key_slots(keys)
            admitted = cursor.admits(slots[rows])
            rows, waiting = rows[admitted], rows[~admitted]
            budget.pass_over(len(waiting), 0)
        looked = count if rows is None else len(rows)
        rows = self._unexpired(key, retry, cursor, start, batch.expires_ms[row : row + count], rows, now_us)
        if rows is not None:
            budget.pass_over(looked - len(rows), 0 if len(rows) else size)
        held = (start, start + count)
        if keys is not None:
            assert rows is not None
            positions = np.arange(start, start + count)
            held = self._add_keys(key, retry, cursor, positions, (rows, waiting), (keys, slots), before, deadline_us)
        if rows is not None and not len(rows):
            # If none expired, the lease of what was taken before goes on behind these.
            return (start if budget.parts and not looked else start + count), start + count
        delivery = delivery_ids(start, count, self._state.files.epoch, cursor.moves, retry)
        if rows is None or len(rows) == count:
            budget.take(batch.slice(row, row + count), delivery, before, size)
            self._handed(key, retry, range(start, start + count), before)
        else:
            budget.take(batch.pick(row + rows), delivery[rows], before[rows], size)
            self._handed(key, retry, start + rows, before[rows])
        return held

    def _end_earlier(
        self, key: GroupKey, retry: bool, cursor: Cursor, batch: StoredBatch, start: int, before: I64
    ) -> tuple[bool, int]:
        """End the leases of the first messages of a batch, whose first position is `start`, if they had their last attempt
        with an earlier process. Returns whether they had, and of how many of the first messages this is true."""
        positions = np.arange(start, start + len(batch))
        last = self._earlier.last_attempts(key, retry, cursor, batch, positions, before)
        if last is None or not last[0]:
            count = len(batch) if last is None else int(np.argmax(last))
            return False, cursor.alike(start, start + count) - start
        count = int(np.argmin(last)) or len(last)
        if start >= cursor.next:
            cursor.hand_out(start, start + count)
        self._earlier.end(key, cursor, batch.slice(0, count), positions[:count], before[:count])
        return True, count

    def _take_selected(
        self,
        key: GroupKey,
        cursor: Cursor,
        budget: PullBudget,
        selection: Selection,
        span: Range,
        room: int,
        now_us: int,
        deadline_us: int,
    ) -> Range | None:
        """Take of a selection what lies in `span`, at most `room` messages and as many as fit. As `_take`, for positions
        that were never looked at."""
        start, stop = span[0], min(span[1], selection.stop)
        first, behind = np.searchsorted(selection.positions, (start, stop)).tolist()
        positions, batch, size = selection.positions[first:behind], selection.batch, 0
        if batch is not None and len(positions):
            fit, size = budget.fitting_rows(batch, np.arange(first, min(behind, first + room)))
            if fit < len(positions):  # up to the first one that does not fit
                stop = int(positions[fit])
                positions = positions[:fit]
        if start == stop:
            return None
        budget.look(selection.work_ns(len(positions)))
        before = cursor.attempts_before(start, stop - start)[positions - start]
        last = None
        if batch is not None and cursor.seen:
            rows = batch.slice(first, first + len(positions))
            last = self._earlier.last_attempts(key, False, cursor, rows, positions, before)
        if last is not None:  # these alone, or those before them
            count = (int(np.argmin(last)) or len(last)) if last[0] else int(np.argmax(last))
            stop = int(positions[count - 1]) + 1
            positions, before = positions[:count], before[:count]
        cursor.hand_out(start, stop)
        if len(positions) < stop - start:
            self._groups.pass_over(key, gaps(start, positions - start, stop - start))
        if batch is None or not len(positions):
            return (start if budget.parts else stop), stop
        batch = batch.slice(first, first + len(positions))
        if last is not None and last[0]:
            self._earlier.end(key, cursor, batch, positions, before)
            budget.pass_over(len(positions), 0)
            return stop, stop
        return self._take_rows(
            key, cursor, budget, (start, stop), positions, (batch, size), before, now_us, deadline_us
        )

    def _take_rows(
        self,
        key: GroupKey,
        cursor: Cursor,
        budget: PullBudget,
        span: Range,
        positions: I64,
        batch_and_size: tuple[StoredBatch, int],
        before: I64,
        now_us: int,
        deadline_us: int,
    ) -> Range:
        """Hand out messages at these positions of `span`, but for those that have expired or whose order key is not free."""
        start, stop = span
        batch, size = batch_and_size
        rows, waiting, slots = np.arange(len(positions)), _NO_ROWS, _NO_ROWS
        keys = _order_keys(batch, 0, len(positions))
        if keys is not None:
            slots = cursor.key_slots(keys)
            admitted = cursor.admits(slots)
            rows, waiting = rows[admitted], rows[~admitted]
            budget.pass_over(len(waiting), 0)
        looked = len(rows)
        expired = expired_rows(batch.expires_ms[rows], now_us)
        if expired is not None:
            self._expire(key, False, cursor, positions[rows[expired]])
            rows = rows[~expired]
        budget.pass_over(looked - len(rows), 0 if len(rows) else size)
        held = span
        if keys is not None:
            low, _ = self._add_keys(key, False, cursor, positions, (rows, waiting), (keys, slots), before, deadline_us)
            held = (start if low == positions[0] else stop, stop)
        if not len(rows):
            return (start if budget.parts and not looked else stop), stop
        delivery = scattered_ids(positions[rows], self._state.files.epoch, cursor.moves, retry=False)
        if len(rows) == len(positions):
            budget.take(batch, delivery, before, size)
        else:
            budget.take(batch.pick(rows), delivery, before[rows], size)
        self._handed(key, False, positions[rows], before[rows])
        return held

    def _add_keys(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        positions: I64,
        rows: tuple[NDArray[np.intp], NDArray[np.intp]],
        keys: tuple[U64, I64],
        before: I64,
        deadline_us: int,
    ) -> Range:
        """The rows that go out, and those that wait for their order keys, get a state of their own. `positions` are those of
        all messages. `keys`: the hashes and the slots of their order keys. Returns the range of the others to lease."""
        start, stop = int(positions[0]), int(positions[-1]) + 1
        taken, waiting = rows
        hashes, slots = keys
        keyed = taken[hashes[taken] != 0]
        goes = np.zeros(len(positions), np.int8)
        goes[keyed], goes[waiting] = 1, 2
        added = np.flatnonzero(goes)
        if len(added):
            out = goes[added] == 1
            cursor.add_keys(positions[added], slots[added], before[added], out, deadline_us)
            if len(keyed):
                self._leased(key, deadline_us)
        return (start if len(keyed) < len(taken) else stop), stop

    def _unexpired(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        start: int,
        expires_ms: I64,
        rows: NDArray[np.intp] | None,
        now_us: int,
    ) -> NDArray[np.intp] | None:
        """The rows that have not expired; the others are done. `expires_ms` i64[n] are those of the positions from `start`
        on. None: all of these."""
        expired = expired_rows(expires_ms if rows is None else expires_ms[rows], now_us)
        if expired is None:
            return rows
        rows = np.arange(len(expires_ms)) if rows is None else rows
        self._expire(key, retry, cursor, start + rows[expired])
        return rows[~expired]

    def _expire(self, key: GroupKey, retry: bool, cursor: Cursor, positions: I64) -> None:
        for low, high in ranges_of(positions):
            cursor.ack(low, high, high)
            self._groups.count_expired(key, retry, low, high)

    def _handed(self, key: GroupKey, retry: bool, positions: I64 | range, before: I64) -> None:
        """Note for the progress log that messages are handed out; `before`: how often each was before."""
        first = int(before[0])
        if isinstance(positions, range) and (before.strides == (0,) or bool((before == first).all())):
            self._state.notes.add_handed(key, retry, positions.start, positions.stop, first + 1)
            return
        for start, stop, times in ranges_alike(np.asarray(positions), before + 1):
            self._state.notes.add_handed(key, retry, start, stop, times)

    def _leased(self, key: GroupKey, deadline_us: int) -> None:
        self._groups.deadlines.note(key, deadline_us)

    def _take_free(
        self,
        key: GroupKey,
        retry: bool,
        queue: ConsumeQueue,
        cursor: Cursor,
        budget: PullBudget,
        free: I64,
        now_us: int,
        deadline_us: int,
    ) -> Range | None:
        """Take messages whose order key has become free: of the first ones at the positions `free`, those of one record that
        fit. Returns an empty range, since they have deadlines of their own; None if none fits."""
        queue_key = key if retry else (key[0], 0)
        run = self._state.messages.run_at(queue_key, int(free[0]))
        count = int(np.searchsorted(free, run.position + run.row_count))
        positions = free[:count]
        given_back = run.store_offset < self._state.files.store.first
        if given_back and cut_removed(self._state, queue_key):
            cursor.freed_keys()
            return cursor.next, cursor.next
        batch = None if given_back else self._state.messages.read_for(budget.wanted, run, queue)
        if batch is None:
            self._state.damages.count_lost(0 if given_back else len(positions))
            for start, stop in ranges_of(positions):
                self._pass_over(key, retry, cursor, start, stop)
            cursor.freed_keys()
            budget.pass_over(len(positions), 0)
            return cursor.next, cursor.next
        rows = positions - run.position + run.row_start
        fit, size = budget.fitting_rows(batch, rows)
        if not fit:
            return None
        positions, rows = positions[:fit], rows[:fit]
        before = cursor.attempts_of(positions)
        leases = cursor.take_free(positions, deadline_us)
        delivery = with_leases(scattered_ids(positions, self._state.files.epoch, cursor.moves, retry), leases)
        expired = expired_rows(batch.expires_ms[rows], now_us)
        if expired is not None:
            self._expire(key, retry, cursor, positions[expired])
            budget.pass_over(int(np.count_nonzero(expired)), size if expired.all() else 0)
            rows, delivery, before = rows[~expired], delivery[~expired], before[~expired]
            positions = positions[~expired]
        if len(rows):
            budget.take(batch.pick(rows), delivery, before, size)
            self._handed(key, retry, positions, before)
            self._leased(key, deadline_us)
        return cursor.next, cursor.next

    def _pass_over(self, key: GroupKey, retry: bool, cursor: Cursor, start: int, stop: int) -> None:
        if start >= cursor.next:
            cursor.hand_out(start, stop)
        for low, high in cursor.ack(start, stop, stop):
            self._state.notes.add_acked(key, retry, low, high)

    def ack(self, key: GroupKey, deliveries: I64) -> Acked:
        """Ack deliveries (i64[n], any order). Answer the client after the next sync."""
        parts = split_deliveries(deliveries)
        group = self._groups.get(key)
        if group is None:
            if not self._may_have_pulled(parts):
                return Acked(0, len(deliveries))
            group = self._groups.get_or_make(key)
        acked = 0
        for part in parts:
            cursor = group.cursor(part.retry)
            limit = self._ack_limit(key, part, cursor)
            changed: list[Range] = []
            ranges = cursor.of_lease(part.ranges, part.lease_in(self._state.files.epoch))
            if not cursor.passes_over:
                changed = cursor.ack_all(ranges, limit)
                acked += sum([high - low for low, high in changed])
            for start, stop in cursor.joined(ranges) if cursor.passes_over else ():
                fresh = cursor.ack(start, stop, limit)
                acked += sum([high - low for low, high in fresh])
                changed += [(fresh[0][0], fresh[-1][1])] if fresh else []
            self._state.notes.add_all_acked(key, part.retry, cursor.to_log(changed) if cursor.passes_over else changed)
        self.acked += acked
        return Acked(acked, len(deliveries) - acked)

    def extend(self, key: GroupKey, deliveries: I64, lease_us: int, timeout_ms: int, owner: int = 0) -> Extended:
        """Let the leases of deliveries (i64[n], any order) end `timeout_ms` after `lease_us`, also those that would have
        ended later. They belong to `owner` then. Leases are memory alone, so nothing of it is durable."""
        group = self._groups.get(key)
        if group is None:
            return Extended(0, len(deliveries))
        extended, limits = 0, self._state.limits
        deadline_us = lease_us + min(timeout_ms, limits.ack_timeout_ms_max) * 1000
        for part in split_deliveries(deliveries):
            cursor = group.cursor(part.retry)
            lease = part.lease_in(self._state.files.epoch)
            if lease is None or part.moves != cursor.moves % MOVES:  # of before a restart or a seek
                continue
            ranges = cursor.of_lease(part.ranges, lease)
            if cursor.place_ranges + len(ranges) > limits.lease_ranges_max:
                return Extended(extended, len(deliveries) - extended, full=True)
            positions = [np.arange(max(start, cursor.committed), min(stop, cursor.next)) for start, stop in ranges]
            extended += cursor.extend(np.concatenate([_NO_ROWS, *positions]), deadline_us, owner)
        if extended:
            self._groups.deadlines.note(key, deadline_us)
        return Extended(extended, len(deliveries) - extended)

    def _may_have_pulled(self, parts: list[DeliveryRanges]) -> bool:
        """Whether an unknown group may have pulled before a crash that lost its row of the progress log."""
        if len(self._groups) >= self._state.limits.groups_max:
            return False
        moves = self._groups.moves % MOVES  # a group that was removed has fewer: its acks make no new one
        return any(part.moves == moves and part.lease_in(self._state.files.epoch - 1) is not None for part in parts)

    def _ack_limit(self, key: GroupKey, part: DeliveryRanges, cursor: Cursor) -> int:
        """The position up to which an ack counts. For deliveries of the process before, it is the queue's end at the
        restart: positions above may stand for other messages now. A delivery from before a seek counts for nothing."""
        if part.moves != cursor.moves % MOVES:
            return 0
        if part.lease_in(self._state.files.epoch) is not None:
            return cursor.next
        if part.lease_in(self._state.files.epoch - 1) is not None:
            return self._state.queues.recovered_end(key if part.retry else (key[0], 0))
        return 0


def _order_keys(batch: StoredBatch, row: int, count: int) -> U64 | None:
    """The hashes of the order keys of `count` rows from `row` on; None if none of them has a key."""
    if batch.order_hash.strides == (0,) and not int(batch.order_hash[0]):
        return None
    keys = batch.order_hash[row : row + count]
    return keys if bool(keys.any()) else None


def _work_ns(wanted: Filter, batch: StoredBatch, run: StoredRun) -> int:
    """About how long a filter takes for all rows of a run."""
    lengths = batch.properties_length[run.row_start : run.row_start + run.row_count]
    return wanted.work_ns(run.row_count, int(lengths.sum(dtype=np.int64)))


def _fitting(
    budget: PullBudget, wanted: Filter | None, batch: StoredBatch, span: tuple[int, int], room: int
) -> tuple[NDArray[np.intp] | None, int, int]:
    """The rows of a record that a pull takes: of `count` rows from `row` on (`span`), at most `room` and as many as fit.

    Returns which rows, counted from `row`, how many rows it looked at, and the bytes. None: all of these."""
    row, count = span
    rows = None
    if wanted is not None:
        lengths = batch.properties_length[row : row + count]
        count = wanted.rows_within(budget.look_ns, lengths)
        rows = wanted.rows(batch, row, row + count)
        budget.look(wanted.work_ns(count, int(lengths[:count].sum(dtype=np.int64))))
    if rows is None:
        return None, *budget.fitting(batch, row, min(count, room))
    fit, size = budget.fitting_rows(batch, row + rows[:room])
    # Up to the first match that does not fit.
    return rows[:fit], int(rows[fit]) if fit < len(rows) else count, size
