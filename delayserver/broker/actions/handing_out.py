"""Handing out the messages of one queue to a consumer group, as far as the pull has room.

A pull passes over a bounded number of expired or unwanted messages in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.block_cuts import cut_removed
from delayserver.broker.actions.earlier_leases import EarlierLeases
from delayserver.broker.actions.selecting import Selecting, Selection
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.filters.filter import Filter
from delayserver.broker.pulled_batch import PullBudget
from delayserver.broker.queues.delivery_id import delivery_ids, scattered_ids, with_leases
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.queues.ranges import Range, gaps, ranges_alike, ranges_of
from delayserver.broker.reads import ReadNeeded, ReadPlan
from store.errors import StoreError
from store.records.batches import I64, U64, StoredBatch
from store.records.expiry import expired_rows

_NO_ROWS: NDArray[np.intp] = np.empty(0, np.intp)


@dataclass(slots=True)
class QueuePull:
    """A pull of a group from one of its queues: that of the subject, or that of its own `retry` messages.

    `wanted`: the group's filter for the messages of the subject. Messages that have expired at `now_us`, by the clock, are
    not handed out. The leases end at `deadline_us`, monotonic."""

    key: GroupKey
    retry: bool
    queue: ConsumeQueue
    cursor: Cursor
    budget: PullBudget
    wanted: Filter | None
    now_us: int
    deadline_us: int

    @property
    def queue_key(self) -> QueueKey:
        """The key of the queue."""
        return self.key if self.retry else (self.key[0], 0)


class HandOut:
    """Queue → leased messages of a pull."""

    def __init__(self, state: BrokerState, selecting: Selecting, earlier: EarlierLeases) -> None:
        self._state = state
        self._groups = state.groups
        self._selecting = selecting
        self._earlier = earlier

    def take(self, pull: QueuePull, *, fresh_first: bool = False) -> ReadPlan | None:
        """Take runs while there are any and they fit. Consecutive runs become one lease.

        `fresh_first`: only messages that the group has never looked at, and those that must come before them because they
        may have the same order keys. Returns the read that must come before more can be taken."""
        needed: ReadPlan | None = None
        limits = self._state.limits
        queue, cursor, budget, wanted = pull.queue, pull.cursor, pull.budget, pull.wanted
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
            is_fresh, parts = not pull.retry and span is not None and span[0] >= cursor.next, len(budget.parts)
            try:
                selection = None
                if wanted is not None and span is not None and span[0] >= cursor.next:
                    selection = self._selecting.find(pull.key, wanted, queue, span, budget)
                if len(free):
                    taken = self._take_free(pull, free)
                elif span is not None and selection is not None:
                    taken = self._take_selected(pull, selection, span, room)
                elif span is not None:
                    taken = self._take(pull, span, room)
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
                self._hold(pull, held)
                held = taken
            held = (held[0], taken[1])
        self._hold(pull, held)
        return needed

    def _hold(self, pull: QueuePull, held: Range) -> None:
        if held[1] > held[0]:
            pull.cursor.hold_pulled(*held, pull.deadline_us)
            self._leased(pull)

    def _take(self, pull: QueuePull, span: Range, room: int) -> Range | None:
        """Take rows of `span` from its first run, at most `room` and as many as fit the budget. Returns their range; None
        if none fits.

        The range is empty if all rows were passed over as unreadable or expired. Rows that the group's filter keeps from
        it are passed over as well, but a redelivery in its place is not asked again."""
        cursor, budget = pull.cursor, pull.budget
        start, stop = span
        run = self._state.messages.run_at(pull.queue_key, start)
        count = min(stop, run.position + run.row_count) - start
        # A block of index rows may outlive some of its records, which retention removed. That is no damage.
        given_back = run.store_offset < self._state.files.store.first
        if given_back and cut_removed(self._state, pull.queue_key):
            return cursor.next, cursor.next
        wanted = pull.wanted if cursor.must_ask(start) else None
        to_read = budget.wanted
        if wanted is not None:  # few of the messages that it reads are for the group
            to_read = (wanted.rows_at_most(self._state.limits.filter_step_ns), to_read[1])
        batch = None if given_back else self._state.messages.read_for(to_read, run, pull.queue)
        if batch is None:
            # Unreadable messages must not hold up what is behind them; they are counted and reported, not forgotten.
            self._state.damages.count_lost(0 if given_back else count)
            self._pass_over(pull, start, start + count)
            budget.pass_over(count, 0)
            return start + count, start + count
        row = run.row_start + start - run.position
        return self._take_record(pull, wanted, (batch, row, count), start, room)

    def _take_record(
        self, pull: QueuePull, wanted: Filter | None, record: tuple[StoredBatch, int, int], start: int, room: int
    ) -> Range | None:
        """`_take` of rows of a record, whose first one has the position `start`. `record`: it, its first row, how many."""
        cursor, budget = pull.cursor, pull.budget
        batch, row, count = record
        again = start < cursor.next
        before = cursor.attempts_before(start, count)
        if cursor.seen:
            ended, count = self._end_earlier(pull, batch.slice(row, row + count), start, before)
            if ended:
                budget.pass_over(count, 0)
                return start + count, start + count
        rows, count, size = _fitting(budget, wanted, batch, (row, count), room)
        if count == 0:
            return None
        before = before[:count]
        if again:
            cursor.hand_out_again(start, start + count, pull.deadline_us)
        else:
            cursor.hand_out(start, start + count)
        if rows is not None and len(rows) < count:
            self._groups.pass_over(pull.key, gaps(start, rows, count), again=again)
        keys = _order_keys(batch, row, count)
        waiting, slots = _NO_ROWS, _NO_ROWS
        if keys is not None:
            rows = np.arange(count) if rows is None else rows
            slots = cursor.key_slots(keys)
            admitted = cursor.admits(slots[rows])
            rows, waiting = rows[admitted], rows[~admitted]
            budget.pass_over(len(waiting), 0)
        looked = count if rows is None else len(rows)
        rows = self._unexpired(pull, start, batch.expires_ms[row : row + count], rows)
        if rows is not None:
            budget.pass_over(looked - len(rows), 0 if len(rows) else size)
        held = (start, start + count)
        if keys is not None:
            assert rows is not None
            positions = np.arange(start, start + count)
            held = self._add_keys(pull, positions, (rows, waiting), (keys, slots), before)
        if rows is not None and not len(rows):
            # If none expired, the lease of what was taken before goes on behind these.
            return (start if budget.parts and not looked else start + count), start + count
        delivery = delivery_ids(start, count, self._state.files.epoch.value, cursor.moves, pull.retry)
        if rows is None or len(rows) == count:
            budget.take(batch.slice(row, row + count), delivery, before, size)
            self._handed(pull, range(start, start + count), before)
        else:
            budget.take(batch.pick(row + rows), delivery[rows], before[rows], size)
            self._handed(pull, start + rows, before[rows])
        return held

    def _end_earlier(self, pull: QueuePull, batch: StoredBatch, start: int, before: I64) -> tuple[bool, int]:
        """End the leases of the first messages of a batch, whose first position is `start`, if they had their last attempt
        with an earlier process. Returns whether they had, and of how many of the first messages this is true."""
        cursor = pull.cursor
        positions = np.arange(start, start + len(batch))
        last = self._earlier.last_attempts(pull.key, pull.retry, cursor, batch, positions, before)
        if last is None or not last[0]:
            count = len(batch) if last is None else int(np.argmax(last))
            return False, cursor.alike(start, start + count) - start
        count = int(np.argmin(last)) or len(last)
        if start >= cursor.next:
            cursor.hand_out(start, start + count)
        self._earlier.end(pull.key, cursor, batch.slice(0, count), positions[:count], before[:count])
        return True, count

    def _take_selected(self, pull: QueuePull, selection: Selection, span: Range, room: int) -> Range | None:
        """Take of a selection what lies in `span`, at most `room` messages and as many as fit. As `_take`, for positions
        that were never looked at."""
        cursor, budget = pull.cursor, pull.budget
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
            last = self._earlier.last_attempts(pull.key, False, cursor, rows, positions, before)
        if last is not None:  # these alone, or those before them
            count = (int(np.argmin(last)) or len(last)) if last[0] else int(np.argmax(last))
            stop = int(positions[count - 1]) + 1
            positions, before = positions[:count], before[:count]
        cursor.hand_out(start, stop)
        if len(positions) < stop - start:
            self._groups.pass_over(pull.key, gaps(start, positions - start, stop - start))
        if batch is None or not len(positions):
            return (start if budget.parts else stop), stop
        batch = batch.slice(first, first + len(positions))
        if last is not None and last[0]:
            self._earlier.end(pull.key, cursor, batch, positions, before)
            budget.pass_over(len(positions), 0)
            return stop, stop
        return self._take_rows(pull, (start, stop), positions, (batch, size), before)

    def _take_rows(
        self, pull: QueuePull, span: Range, positions: I64, batch_and_size: tuple[StoredBatch, int], before: I64
    ) -> Range:
        """Hand out messages at these positions of `span`, but for those that have expired or whose order key is not free."""
        cursor, budget = pull.cursor, pull.budget
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
        expired = expired_rows(batch.expires_ms[rows], pull.now_us)
        if expired is not None:
            self._expire(pull, positions[rows[expired]])
            rows = rows[~expired]
        budget.pass_over(looked - len(rows), 0 if len(rows) else size)
        held = span
        if keys is not None:
            low, _ = self._add_keys(pull, positions, (rows, waiting), (keys, slots), before)
            held = (start if low == positions[0] else stop, stop)
        if not len(rows):
            return (start if budget.parts and not looked else stop), stop
        delivery = scattered_ids(positions[rows], self._state.files.epoch.value, cursor.moves, retry=False)
        if len(rows) == len(positions):
            budget.take(batch, delivery, before, size)
        else:
            budget.take(batch.pick(rows), delivery, before[rows], size)
        self._handed(pull, positions[rows], before[rows])
        return held

    def _add_keys(
        self,
        pull: QueuePull,
        positions: I64,
        rows: tuple[NDArray[np.intp], NDArray[np.intp]],
        keys: tuple[U64, I64],
        before: I64,
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
            pull.cursor.add_keys(positions[added], slots[added], before[added], out, pull.deadline_us)
            if len(keyed):
                self._leased(pull)
        return (start if len(keyed) < len(taken) else stop), stop

    def _unexpired(
        self, pull: QueuePull, start: int, expires_ms: I64, rows: NDArray[np.intp] | None
    ) -> NDArray[np.intp] | None:
        """The rows that have not expired; the others are done. `expires_ms` i64[n] are those of the positions from `start`
        on. None: all of these."""
        expired = expired_rows(expires_ms if rows is None else expires_ms[rows], pull.now_us)
        if expired is None:
            return rows
        rows = np.arange(len(expires_ms)) if rows is None else rows
        self._expire(pull, start + rows[expired])
        return rows[~expired]

    def _expire(self, pull: QueuePull, positions: I64) -> None:
        for low, high in ranges_of(positions):
            pull.cursor.ack(low, high, high)
            self._groups.count_expired(pull.key, pull.retry, low, high)

    def _handed(self, pull: QueuePull, positions: I64 | range, before: I64) -> None:
        """Note for the progress log that messages are handed out; `before`: how often each was before."""
        first = int(before[0])
        if isinstance(positions, range) and (before.strides == (0,) or bool((before == first).all())):
            self._state.notes.add_handed(pull.key, pull.retry, positions.start, positions.stop, first + 1)
            return
        for start, stop, times in ranges_alike(np.asarray(positions), before + 1):
            self._state.notes.add_handed(pull.key, pull.retry, start, stop, times)

    def _leased(self, pull: QueuePull) -> None:
        self._groups.deadlines.note(pull.key, pull.deadline_us)

    def _take_free(self, pull: QueuePull, free: I64) -> Range | None:
        """Take messages whose order key has become free: of the first ones at the positions `free`, those of one record that
        fit. Returns an empty range, since they have deadlines of their own; None if none fits."""
        cursor, budget = pull.cursor, pull.budget
        run = self._state.messages.run_at(pull.queue_key, int(free[0]))
        count = int(np.searchsorted(free, run.position + run.row_count))
        positions = free[:count]
        given_back = run.store_offset < self._state.files.store.first
        if given_back and cut_removed(self._state, pull.queue_key):
            cursor.freed_keys()
            return cursor.next, cursor.next
        batch = None if given_back else self._state.messages.read_for(budget.wanted, run, pull.queue)
        if batch is None:
            self._state.damages.count_lost(0 if given_back else len(positions))
            for start, stop in ranges_of(positions):
                self._pass_over(pull, start, stop)
            cursor.freed_keys()
            budget.pass_over(len(positions), 0)
            return cursor.next, cursor.next
        rows = positions - run.position + run.row_start
        fit, size = budget.fitting_rows(batch, rows)
        if not fit:
            return None
        positions, rows = positions[:fit], rows[:fit]
        before = cursor.attempts_of(positions)
        leases = cursor.take_free(positions, pull.deadline_us)
        delivery = with_leases(
            scattered_ids(positions, self._state.files.epoch.value, cursor.moves, pull.retry), leases
        )
        expired = expired_rows(batch.expires_ms[rows], pull.now_us)
        if expired is not None:
            self._expire(pull, positions[expired])
            budget.pass_over(int(np.count_nonzero(expired)), size if expired.all() else 0)
            rows, delivery, before = rows[~expired], delivery[~expired], before[~expired]
            positions = positions[~expired]
        if len(rows):
            budget.take(batch.pick(rows), delivery, before, size)
            self._handed(pull, positions, before)
            self._leased(pull)
        return cursor.next, cursor.next

    def _pass_over(self, pull: QueuePull, start: int, stop: int) -> None:
        if start >= pull.cursor.next:
            pull.cursor.hand_out(start, stop)
        for low, high in pull.cursor.ack(start, stop, stop):
            self._state.notes.add_acked(pull.key, pull.retry, low, high)


def _order_keys(batch: StoredBatch, row: int, count: int) -> U64 | None:
    """The hashes of the order keys of `count` rows from `row` on; None if none of them has a key."""
    if batch.order_hash.strides == (0,) and not int(batch.order_hash[0]):
        return None
    keys = batch.order_hash[row : row + count]
    return keys if bool(keys.any()) else None


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
