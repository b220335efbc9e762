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

from delayserver.broker.actions.earlier_leases import EarlierLeases
from delayserver.broker.actions.handing_out import HandOut, QueuePull
from delayserver.broker.actions.selecting import Selecting
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.filters.filter import Filter
from delayserver.broker.pulled_batch import PullBudget, PulledBatch
from delayserver.broker.queues.delivery_id import (
    MOVES,
    DeliveryRanges,
    split_deliveries,
)
from delayserver.broker.queues.group_cursors import Cursor, GroupCursors, GroupKey
from delayserver.broker.queues.queue import StoredRun
from delayserver.broker.queues.ranges import Range
from delayserver.broker.reads import ReadNeeded, ReadPlan
from store.records.batches import I64, StoredBatch

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
        self._hand_out = HandOut(state, self._selecting, EarlierLeases(state, ended))
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
        try:
            return self._pull(key, group, budget, now_us, lease_us + timeout_ms * 1000)
        finally:
            if self._state.notes.write_counts():  # before a consumer has them: it may take this process down
                self._counted()

    def _pull(
        self, key: GroupKey, group: GroupCursors, budget: PullBudget, now_us: int, deadline_us: int
    ) -> PulledBatch | None:
        self._unfinished.discard(key)
        needed: ReadPlan | None = None
        pulls = []
        for retry in (True, False):
            queue = self._state.queues.get(key if retry else (key[0], 0))
            if queue is not None:
                cursor, wanted = group.cursor(retry), None if retry else self._filters.get(key)
                pulls.append(QueuePull(key, retry, queue, cursor, budget, wanted, now_us, deadline_us))
        fresh_first = group.take_turn()
        if fresh_first and pulls and not pulls[-1].retry:
            held = group.hold_free_keys()
            try:
                needed = self._hand_out.take(pulls[-1], fresh_first=True)
            finally:
                group.let_go(held)
        for pull in pulls:
            if needed is None:
                needed = self._hand_out.take(pull)
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
            ranges = cursor.of_lease(part.ranges, part.lease_in(self._state.files.epoch.value))
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
            lease = part.lease_in(self._state.files.epoch.value)
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
        return any(
            part.moves == moves and part.lease_in(self._state.files.epoch.value - 1) is not None for part in parts
        )

    def _ack_limit(self, key: GroupKey, part: DeliveryRanges, cursor: Cursor) -> int:
        """The position up to which an ack counts. For deliveries of the process before, it is the queue's end at the
        restart: positions above may stand for other messages now. A delivery from before a seek counts for nothing."""
        if part.moves != cursor.moves % MOVES:
            return 0
        if part.lease_in(self._state.files.epoch.value) is not None:
            return cursor.next
        if part.lease_in(self._state.files.epoch.value - 1) is not None:
            return self._state.queues.recovered_end(key if part.retry else (key[0], 0))
        return 0


def _work_ns(wanted: Filter, batch: StoredBatch, run: StoredRun) -> int:
    """About how long a filter takes for all rows of a run."""
    lengths = batch.properties_length[run.row_start : run.row_start + run.row_count]
    return wanted.work_ns(run.row_count, int(lengths.sum(dtype=np.int64)))
