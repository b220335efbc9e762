"""When a segment of the broker's store may be removed: consumed by every group, old enough, no repeats to expect.

- A segment that a group still needs stays, however old it is.
- A subject that no group ever pulled from keeps its messages for `unconsumed_retention_ms`.
- A window that its server has not declared complete keeps its records, for `unconsumed_retention_ms` at most.
- Ages count to the believable time: a clock that is ahead or behind for a moment removes nothing.
"""

from __future__ import annotations

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.groups import ConsumerGroup, GroupKey
from delayserver.broker.queues.queue import QueueKey


def retirable(state: BrokerState, now_us: int, latest_us: int) -> int:
    """The store offset below which all segments may be removed; 0 if none may.

    Ages count to `now_us`, a time that has surely come. `latest_us` is a time that has surely not been passed."""
    limits = state.limits
    for base, newest_us in state.segment_newest_us.items():
        if newest_us > latest_us:  # the clock was ahead when it was stored: the segment ages from now on
            state.segment_newest_us[base] = latest_us
    below = _older_than(state, limits.retention_ms, now_us)
    if not below:
        return 0
    abandoned = _older_than(state, limits.unconsumed_retention_ms, now_us)
    lowest = state.windows.lowest()
    if lowest is not None:
        below = min(below, max(lowest, abandoned))
    committed = _lowest_committed(state.groups)
    for key, queue in state.queues.items():
        position = committed.get(key)
        offset = queue.store_offset_of(queue.first if position is None else position)
        if offset is not None:
            below = min(below, offset if position is not None else max(offset, abandoned))
    return max([end for _, end, _ in state.store.segments()[:-1] if end <= below], default=0)


def retire_store(state: BrokerState, below: int) -> list[str]:
    """Remove the segments below a store offset, oldest first, and move the queues up; returns the removed paths.

    The checkpoint on disk must not point into these segments: a start would report them as lost.
    """
    removed = state.store.retire(below)
    if removed:
        _move_up(state)
    return removed


def _older_than(state: BrokerState, age_ms: int, now_us: int) -> int:
    """The end of the leading sealed segments that are all older than `age_ms`; 0 if the first one is not."""
    below = 0
    for base, end, _ in state.store.segments()[:-1]:
        if now_us - state.segment_newest_us.get(base, now_us) <= age_ms * 1000:
            break
        below = end
    return below


def _lowest_committed(groups: dict[GroupKey, ConsumerGroup]) -> dict[QueueKey, int]:
    """The committed position of the slowest group of every queue."""
    lowest: dict[QueueKey, int] = {}
    for (subject, group), state in groups.items():
        main = (subject, 0)
        lowest[main] = min(lowest.get(main, state.main.committed), state.main.committed)
        lowest[subject, group] = state.retry.committed
    return lowest


def _move_up(state: BrokerState) -> None:
    """Drop the removed segments from queues, windows, cursors and blocks of index rows."""
    first = state.store.first
    for queue in state.queues.values():
        queue.retire(first)
    state.windows.retire(first)
    for base in [base for base in state.segment_newest_us if base < state.store.segments()[0][0]]:
        del state.segment_newest_us[base]
    for key, group in state.groups.items():
        for cursor, queue_key in ((group.main, (key[0], 0)), (group.retry, key)):
            if queue_key in state.queues:
                cursor.skip_to(state.queues[queue_key].first)
    in_use = [block.block_offset for queue in state.queues.values() for block in queue.blocks]
    state.blocks.retire(min(in_use, default=state.blocks.end))
