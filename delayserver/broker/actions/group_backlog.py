"""The state of each consumer group as a row: lag, leases, redeliveries. A bounded number of rows per call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey

# Records with redeliveries of a group in which the oldest one is looked for: half a millisecond.
RECORDS_LOOKED_AT = 32
# Above every subject code and every group code.
_CODE_MAX = 1 << 32


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group of one subject. Subject and group are codes of the names table.

    `position`: every message before it is acked. `end`: the position of the subject's next message. `lag`: messages not
    acked, redeliveries included. `leased`, `retrying` and `waiting_in_place` count parts of the lag; the last one is
    messages to be redelivered from their place. `waiting_keys`: order keys that wait for a message that has failed.
    `expired`: messages that expired before the group acked them.
    `filtered`: messages that its filter, `tags` and `where`, kept from it since the start.
    `redelivery_bytes`: the disk space of the group's redeliveries. `oldest_ms`: the due time of the oldest message
    that is not acked (of a redelivery that of its message); None if there is none or its record is damaged. Redeliveries on
    their way through the delay pipeline are not in these numbers: the server counts them.
    """

    subject: int
    group: int
    position: int
    end: int
    lag: int
    leased: int
    retrying: int
    expired: int
    filtered: int
    tags: str | None
    where: str | None
    waiting_in_place: int
    waiting_keys: int
    redelivery_bytes: int
    oldest_ms: int | None


class GroupBacklog(NamedTuple):
    """What a consumer group has before it; see `GroupRow`. `oldest_place`: where its oldest messages stand, in its queue and
    among its redeliveries (-1 where there is none), the end of its redeliveries, and how many of them are acked. As long as
    this is the same, `oldest_ms` is too."""

    key: GroupKey
    lag: int
    leased: int
    retrying: int
    waiting_keys: int
    oldest_place: tuple[int, int, int, int]


class ConsumerGroupRows:
    """Shows the state of groups. It changes nothing."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def keys(self, after: GroupKey, subject: int, count_max: int) -> list[GroupKey]:
        """The first `count_max` keys behind `after`, in the order of the codes; of one subject if `subject` is not 0."""
        if subject:
            low, high = max(after, (subject, 0)), (subject, _CODE_MAX)
        else:
            low, high = after, (_CODE_MAX, 0)
        return list(islice(self._state.groups.between(low, high, inclusive=False), count_max))

    def backlogs(self, keys: Sequence[GroupKey]) -> Iterator[GroupBacklog]:
        """The backlogs of those of these groups that are there. Needs no stored record, and wakes no queue."""
        group_of, end_of = self._state.groups.get, self._state.queues.end
        for key in keys:
            group = group_of(key)
            if group is None:
                continue
            main, retry = group.main, group.retry
            end, retry_end = end_of((key[0], 0)), end_of(key)
            lag, leased, retrying = main.backlog(end)
            retry_lag, retry_leased, retry_retrying = retry.backlog(retry_end)
            place = (
                main.committed if main.committed < end else -1,
                retry.committed if retry.committed < retry_end else -1,
                retry_end,
                retry.acked.count(),
            )
            counts = (lag + retry_lag, leased + retry_leased, retrying + retry_retrying, group.waiting_keys())
            yield GroupBacklog(key, *counts, place)

    def row(self, key: GroupKey) -> GroupRow | None:
        """The row of a group; None if there is no such group. Raises ReadNeeded, for `oldest_ms`."""
        state = self._state
        group = state.groups.get(key)
        if group is None:
            return None
        end, retry_end = state.queues.end((key[0], 0)), state.queues.end(key)
        (lag, leased, retrying), of_retries = group.main.backlog(end), group.retry.backlog(retry_end)
        policy = state.policies.of(key)
        parts = ((key[0], 0), group.main), (key, group.retry)
        return GroupRow(
            *key,
            position=group.main.committed,
            end=end if (key[0], 0) in state.queues else group.main.committed,
            lag=lag + of_retries[0],
            leased=leased + of_retries[1],
            retrying=retrying + of_retries[2],
            expired=group.expired,
            filtered=group.filtered,
            tags=policy.tags,
            where=policy.where,
            waiting_in_place=group.main.in_place() + group.retry.in_place(),
            waiting_keys=group.waiting_keys(),
            redelivery_bytes=group.redelivery_bytes,
            oldest_ms=_oldest_ms(state, *parts),
        )


def _oldest_ms(state: BrokerState, *parts: tuple[QueueKey, Cursor]) -> int | None:
    """Since when the messages wait at which cursors stand, the earliest: that of the subject, and that of redeliveries."""
    found = [due_ms for key, cursor in parts if (due_ms := _due_ms(state, key, cursor)) is not None]
    return min(found, default=None)


def _due_ms(state: BrokerState, key: QueueKey, cursor: Cursor) -> int | None:
    queue = state.queues.get(key)
    if queue is None or cursor.committed >= queue.end:
        return None
    run = state.messages.run_at(key, cursor.committed)
    if run.store_offset < state.files.store.first:  # retention removed it, and the cut of the index rows comes
        return None
    batch = state.messages.read(run)
    if batch is None:
        return None
    row = run.row_start + cursor.committed - run.position
    if not key[1]:
        return int(batch.due_ms[row])
    # A redelivery is as old as its message. They stand in the order in which they came back, so an old one may be behind.
    ages = [int(batch.accepted_us[row]), *_ages_behind(state, queue, cursor)]
    return min(ages) // 1000


def _ages_behind(state: BrokerState, queue: ConsumeQueue, cursor: Cursor) -> Iterator[int]:
    """Of each of the next records with redeliveries that are not acked: since when its oldest message waits (microseconds).
    Records that are not in memory are passed over."""
    runs = queue.runs_between(cursor.committed, queue.end, state.files.blocks)
    for run in islice(runs, RECORDS_LOOKED_AT):
        batch = state.files.store.in_memory(run.store_offset)
        if batch is None:
            continue
        positions = np.arange(run.position, run.position + run.row_count)
        open_rows = ~cursor.acked.covers(positions, positions + 1) & (positions >= cursor.committed)
        if open_rows.any():
            yield int(batch.accepted_us[run.row_start : run.row_start + run.row_count][open_rows].min())
