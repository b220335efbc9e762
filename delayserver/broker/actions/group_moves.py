"""Positions of consumer groups: bounds, seek, the start of a new group, and reads without a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from delayserver.broker.actions.block_cuts import cut_removed
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.time_search import search_time
from delayserver.broker.pulled_batch import PullBudget, PulledBatch
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.queues.ranges import Range
from delayserver.broker.reads import ReadNeeded, Steps
from store.errors import StoreError

FOUND: Final = "found"
NOTHING_YET: Final = "nothing_yet"
TOO_SMALL: Final = "too_small"
TOO_LARGE: Final = "too_large"
RETIRED: Final = "retired"


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer of a read. `first` and `end` bound what the subject keeps; `next` is where the reader goes on.

    `status` says of the position: messages stand there (`found`, though they may all be unreadable), it is the end
    (`nothing_yet`), it is behind the end (`too_large`), before all that is kept (`retired`), or below 0 (`too_small`)."""

    status: str
    first: int
    end: int
    next: int
    found: PulledBatch | None


class GroupMoves:
    """Moves groups, and reads a subject without one."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def bounds(self, subject: int) -> Range:
        """The first position kept of a subject, and the position of its next message."""
        return self._state.queues.bounds((subject, 0)) or (0, 0)

    def seek(self, key: GroupKey, position: int) -> None:
        """Let a group go on at a position within `bounds`. Durable after the next sync.

        Its leases end, its acks above are forgotten, and its retry queue is passed over to its present end.
        Redeliveries that are on their way through the delay pipeline still come."""
        first, end = self.bounds(key[0])
        assert first <= position <= end, f"a seek to {position}, outside {first} to {end}"
        _, retry_end = self._state.queues.bounds(key) or (0, 0)
        self._state.groups.move(key, position, retry_end)

    def begin(self, key: GroupKey, position: int) -> None:
        """Make a group that begins at a position within `bounds`. Durable after the next sync."""
        self._state.groups.move(key, position, self._state.groups.removals.retry_first(key))

    def take_passed(self, key: GroupKey) -> Range | None:
        """Once for each time that retention removed messages which a lagging group had not acked: where the group goes on,
        and the end of its subject. A pull that waited then may have moved the group on already."""
        group = self._state.groups.get(key)
        if group is None or not (group.main.passed or group.retry.passed):
            return None
        for retry, cursor in ((False, group.main), (True, group.retry)):
            if cursor.take_passed():
                self._state.notes.add_moved_up(key, retry, cursor)
        first, end = self.bounds(key[0])
        return max(first, group.main.committed), end

    def search(self, subject: int, time_us: int) -> Steps[int] | None:
        """The search for the first message of a subject that was dispatched at or after a time; None if the subject has
        no queue, so that every time is position 0."""
        key: QueueKey = (subject, 0)
        return search_time(self._state, key, time_us) if key in self._state.queues else None

    def look(self, subject: int, position: int, max_messages: int, max_bytes: int) -> Looked:
        """The messages from a position on that are there now. It leases nothing and changes nothing.

        Raises ReadNeeded if the first message is not in memory, StoreError if the disk fails before it."""
        limits = self._state.limits
        key: QueueKey = (subject, 0)
        first, end = self.bounds(subject)
        if not first <= position < end:
            behind = NOTHING_YET if position == end else TOO_LARGE
            status = TOO_SMALL if position < 0 else RETIRED if position < first else behind
            return Looked(status, first, end, min(max(position, first), end), None)
        budget = PullBudget(
            min(max_messages, limits.pull_messages_max),
            min(max_bytes, limits.pull_bytes_max),
            limits.pull_messages_max,
            limits.pull_bytes_max,
        )
        following = position
        while following < end and budget.messages > 0 and budget.may_look:
            try:
                stop = self._take(key, following, end, budget)
            except (ReadNeeded, StoreError):
                if not budget.parts:
                    raise
                break
            if stop == following:
                break
            following = stop
        first = self.bounds(subject)[0]
        if position < first:  # retention had removed the messages, and not yet their index rows
            return Looked(RETIRED, first, end, first, None)
        return Looked(FOUND, first, end, following, budget.pulled())

    def _take(self, key: QueueKey, start: int, end: int, budget: PullBudget) -> int:
        """Take rows of the run at `start`, as many as fit. Returns the position behind them."""
        run = self._state.messages.run_at(key, start)
        count = min(end, run.position + run.row_count) - start
        given_back = run.store_offset < self._state.files.store.first
        if given_back and cut_removed(self._state, key):
            return start
        batch = None if given_back else self._state.messages.read_for(budget.wanted, run, self._state.queues[key])
        if batch is None:
            budget.pass_over(count, 0)
            return start + count
        row = run.row_start + start - run.position
        count, size = budget.fitting(batch, row, count)
        if count:
            positions = np.arange(start, start + count, dtype=np.int64)
            budget.take(batch.slice(row, row + count), positions, np.zeros(count, np.int64), size)
        return start + count
