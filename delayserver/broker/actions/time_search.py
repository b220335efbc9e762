"""Finds the first message of a queue that was dispatched at or after a time: a binary search over its index rows.

A record counts by the `dispatched_us` of its first row: the moment of the hand-off to this node. These times rise with
the positions, but for clock steps and servers whose clocks differ. Where a record or a block of index rows cannot be
read, the search goes on before it, so that no message is passed over.

The search asks for its reads one by one, at most about `log2(records)`. Records that retention removes meanwhile are from
before those that stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.reads import Steps, having_read
from store.errors import StoreError
from store.records.batches import I64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Runs:
    """Index rows in order, and the position behind them."""

    positions: I64
    offsets: I64
    rows: I64
    stop: int


def search_time(state: BrokerState, key: QueueKey, time_us: int) -> Steps[int]:
    """The search for a time in a queue that exists. Its result may be the end of the queue as it was at the start."""
    queue = state.queues[key]
    first, end = queue.first, queue.end
    blocks = [(block.position, block.store_offset_first, block.block_offset) for block in queue.blocks]
    memory = _memory(queue.memory_runs(), end)
    heads = [offset for _, offset, _ in blocks]
    if len(memory.positions):
        heads.append(int(memory.offsets[0]))
    index = yield from _last_before(state, heads, time_us)
    if index < 0:
        return first
    runs = memory
    if index < len(blocks):
        stop = blocks[index + 1][0] if index + 1 < len(blocks) else _start(memory)
        block = yield from _readable(partial(state.files.blocks.read, blocks[index][2]))
        if block is None:
            return max(blocks[index][0], first)
        runs = _Runs(block.position, block.store_offset, block.row_start.astype(np.int64), stop)
    last = yield from _last_before(state, runs.offsets.tolist(), time_us)
    last = max(last, 0)
    start = int(runs.positions[last])
    stop = int(runs.positions[last + 1]) if last + 1 < len(runs.positions) else runs.stop
    offset = int(runs.offsets[last])
    if offset < state.files.store.first:  # retention has removed it
        return max(stop, queue.first)
    times = yield from _readable(partial(state.files.store.times, offset))
    if times is None:
        return max(start, first)
    row = int(runs.rows[last])
    late = np.flatnonzero(times[row : row + stop - start] >= time_us)
    return max(start + int(late[0]) if len(late) else stop, first)


def _readable(ask: Callable[[], T]) -> Steps[T | None]:
    """What `ask` reads; None if the read failed."""
    try:
        return (yield from having_read(ask))
    except StoreError:
        return None


def _last_before(state: BrokerState, offsets: list[int], time_us: int) -> Steps[int]:
    """The index of the last record (by store offsets) whose first row is before the time; -1 if none is."""
    store = state.files.store
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        removed, times = offsets[middle] < store.first, None
        if not removed:
            times = yield from _readable(partial(store.times, offsets[middle]))
        if removed or (times is not None and int(times[0]) < time_us):
            low = middle + 1
        else:
            high = middle
    return low - 1


def _memory(runs: tuple[array[int], array[int], array[int], array[int]], end: int) -> _Runs:
    """Copies: the arrays of the queue change while the search waits."""
    positions, offsets, rows, _ = runs
    return _Runs(np.array(positions, np.int64), np.array(offsets, np.int64), np.array(rows, np.int64), end)


def _start(runs: _Runs) -> int:
    return int(runs.positions[0]) if len(runs.positions) else runs.stop
