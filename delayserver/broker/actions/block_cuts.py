"""When a segment of the broker's store may be removed: consumed by every group, old enough, no repeats to expect.

- A segment that a group still needs stays, however old it is, unless the group lags by more than the bounds allow.
- Dead letters that their group has not taken stay as long as messages of a subject that no group ever pulled from.
- A subject that no group ever pulled from keeps its messages for `unconsumed_retention_ms`.
- A window that its server has not declared complete keeps its records, for `unconsumed_retention_ms` at most.
- Ages count to the believable time: a clock that is ahead or behind for a moment removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from delayserver.broker.actions.given_up import FirstKept
from delayserver.broker.actions.group_table import GroupTable
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.store_index import index_path
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock
from delayserver.broker.queues.queue_columns import QueueColumns
from store.errors import StoreError
from store.records.batches import RunBatch

# Blocks of one cut, which are in memory together: some MiB.
CUT_BLOCKS_MAX = 64


def retirable(state: BrokerState, now_us: int, latest_us: int) -> int:
    """The store offset below which all segments may be removed; 0 if none may.

    Ages count to `now_us`, a time that has surely come. `latest_us` is a time that has surely not been passed."""
    limits = state.limits
    for base, newest_us in state.files.segment_newest_us.items():
        if newest_us > latest_us:  # the clock was ahead when it was stored: the segment ages from now on
            state.files.segment_newest_us[base] = latest_us
    below = _older_than(state, limits.retention_ms, now_us)
    if not below:
        return 0
    abandoned = _older_than(state, limits.unconsumed_retention_ms, now_us)
    lowest = state.windows.lowest()
    if lowest is not None:
        below = min(below, max(lowest, abandoned))
    passed = _passed(state, now_us)
    letter_groups = state.policies.letter_groups()
    committed = _lowest_committed(state.groups, letter_groups)
    asleep = state.queues.asleep()
    consumed = []
    for key, position in committed.items():
        row = asleep.row_of(key)
        if row >= 0:
            consumed.append(row)
            if position < asleep.end[row]:
                offset = asleep.queue(row).store_offset_of(position)
                below = min(below, max(offset or 0, passed))
    for key, queue in state.queues.awake():
        known = committed.get(key)
        offset = queue.store_offset_of(queue.first if known is None else known)
        if offset is not None:
            below = min(below, max(offset, passed if known is not None else abandoned))
    below = min(below, max(_lowest_unconsumed(asleep, consumed), abandoned))
    for key in [key for key in letter_groups if key in state.groups]:
        letters = state.queues.get((key[0], 0))
        offset = None if letters is None else letters.store_offset_of(state.groups[key].main.committed)
        if offset is not None:
            below = min(below, max(offset, abandoned, passed))
    return max([end for _, end, _ in state.files.store.log.segments()[:-1] if end <= below], default=0)


def retire_store(state: BrokerState, below: int) -> list[str]:
    """Remove the segments below a store offset, oldest first, and move the queues up; returns the removed paths.

    The checkpoint on disk must not point into these segments: a start would report them as lost.
    """
    before = [base for base, _, _ in state.files.store.log.segments()]
    removed = state.files.store.retire(below)
    if removed:
        for base in before[: len(removed)]:  # a segment that a read needs stays, and so do those behind it
            state.files.fs.remove(index_path(state.files.directory, base))
        _move_up(state)
    return removed


def kept_from(state: BrokerState) -> int:
    """The store offset below which nothing counts any more: it was removed, or given up by the log of a shard."""
    return max(state.files.store.first, state.given_up.below)


def give_up(state: BrokerState) -> bool:
    """Let queues, windows and groups have nothing in front of the first record that the log of the shard keeps. Not while a
    checkpoint copies the queues. False where nothing was to be done. Segments go later: see `retire_store`."""
    below = _offset_of(state, state.given_up.first)
    if below <= kept_from(state):
        return False
    state.given_up.move_to(below)
    _drop_below(state, below)
    return True


def _offset_of(state: BrokerState, first: FirstKept | None) -> int:
    """The store offset of a record, or of one before it where a block of index rows is damaged; 0: it is gone already."""
    queue = None if first is None else state.queues.get((first.subject, first.target_group))
    if first is None or queue is None or not queue.first <= first.position < queue.end:
        return 0
    offset = queue.store_offset_of(first.position)
    assert offset is not None, "the queue has the position"
    if queue.blocks and offset <= queue.blocks[-1].store_offset_last:
        block, _ = queue.block_at(first.position)
        with suppress(StoreError):
            runs = state.files.blocks.load(block.block_offset)
            offset = int(runs.store_offset[np.searchsorted(runs.position, first.position, side="right") - 1])
    return offset


def may_pass(state: BrokerState) -> bool:
    """Whether retention may remove messages that a group has not acked."""
    return bool(state.limits.lag_bytes_max or state.limits.lag_ms_max)


def _passed(state: BrokerState, now_us: int) -> int:
    """The store offset below which a group that lags holds nothing back."""
    limits = state.limits
    by_bytes = state.files.store.end - limits.lag_bytes_max if limits.lag_bytes_max else 0
    return max(by_bytes, _older_than(state, limits.lag_ms_max, now_us) if limits.lag_ms_max else 0)


def _older_than(state: BrokerState, age_ms: int, now_us: int) -> int:
    """The end of the leading sealed segments that are all older than `age_ms`; 0 if the first one is not."""
    below = 0
    for base, end, _ in state.files.store.log.segments()[:-1]:
        if now_us - state.files.segment_newest_us.get(base, now_us) <= age_ms * 1000:
            break
        below = end
    return below


def _lowest_committed(groups: GroupTable, letter_groups: set[GroupKey]) -> dict[QueueKey, int]:
    """The committed position of the slowest group of every queue. A group does not hold its dead letters in this way: the
    rest of their queue counts as taken then."""
    lowest: dict[QueueKey, int] = {}
    for (subject, group), state in groups.items():
        main = (subject, 0)
        if (subject, group) not in letter_groups:
            lowest[main] = min(lowest.get(main, state.main.committed), state.main.committed)
        else:
            lowest.setdefault(main, 1 << 62)
        lowest[subject, group] = state.retry.committed
    return lowest


def _lowest_unconsumed(asleep: QueueColumns, consumed: list[int]) -> int:
    """The lowest store offset that queues at rest need, without the rows of those that have a group."""
    offsets = asleep.lowest_offsets()
    offsets[consumed] = np.iinfo(np.int64).max
    return int(offsets.min(initial=np.iinfo(np.int64).max))


def _move_up(state: BrokerState) -> None:
    """Drop the removed segments from queues, windows, cursors and blocks of index rows."""
    _drop_below(state, kept_from(state))
    for base in [base for base in state.files.segment_newest_us if base < state.files.store.log.segments()[0][0]]:
        del state.files.segment_newest_us[base]
    in_use = state.queues.blocks_in_use()
    state.files.blocks.retire(state.files.blocks.end if in_use is None else in_use)


def _drop_below(state: BrokerState, below: int) -> None:
    state.queues.retire(below)
    state.windows.retire(below)
    _move_groups_up(state)


def _move_groups_up(state: BrokerState, keys: Iterable[GroupKey] | None = None) -> None:
    """`keys`: these groups; None: all."""
    lagging, letter_groups = may_pass(state), state.policies.letter_groups()
    for key in state.groups if keys is None else keys:
        group = state.groups[key]
        for cursor, queue_key in ((group.main, (key[0], 0)), (group.retry, key)):
            bounds = state.queues.bounds(queue_key)
            if bounds is not None:
                if cursor is group.main and key in letter_groups:
                    state.letters.retire(sum([stop - start for start, stop in cursor.unclaimed(bounds[0])]))
                cursor.skip_to(bounds[0], lagging=lagging)


def cut_removed(state: BrokerState, key: QueueKey) -> bool:
    """Drop the rows of removed records from a queue, and move its groups up, before retention comes to it (`BlockCuts`): a
    pull or a read has met one. False if there are none. Raises ReadNeeded, CorruptionError."""
    queue, below = state.queues[key], kept_from(state)
    if not queue.reaches_below(below):
        return False
    before = queue.first
    queue.cut(below, state.files.blocks.read(queue.blocks[0].block_offset))
    if queue.first == before:
        return False
    _move_groups_up(state, state.groups.between(key, key if key[1] else (key[0] + 1, -1), inclusive=True))
    return True


class BlockCuts:
    """Blocks of index rows that reach below the first record of the store. The rows below are dropped, so that a group that
    lost their messages gets the error, with the right first position.

    `load` reads the blocks, in a worker thread. Then `finish` is called on the event loop. Nothing is removed between."""

    def __init__(self, state: BrokerState, queues: list[ConsumeQueue]) -> None:
        self._state = state
        self._below = kept_from(state)
        self._blocks = [(queue, queue.blocks[0], queue.blocks[0].block_offset) for queue in queues]
        self._found: list[tuple[ConsumeQueue, SpilledBlock, RunBatch]] = []

    def load(self) -> None:
        """Read the blocks. A damaged one stays for a later cut: the first pull that needs it makes it again."""
        for queue, block, offset in self._blocks:
            with suppress(StoreError):
                self._found.append((queue, block, self._state.files.blocks.load(offset)))

    def finish(self) -> None:
        """Drop the rows, and move the groups up."""
        for queue, block, runs in self._found:
            if queue.blocks and queue.blocks[0] is block:
                queue.cut(self._below, runs)
        if self._found:
            _move_groups_up(self._state)
