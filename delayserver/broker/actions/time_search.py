"""Finds the first message of a queue that was dispatched at or after a time: a binary search over its index rows.

A record counts by the `dispatched_us` of its first row: the moment of the hand-off to this node. These times rise with
the positions, but for clock steps and servers whose clocks differ. Where a record or a block of index rows cannot be
read, the search goes on before it, so that no message is passed over.

The search asks for its reads one by one, at most about `log2(records)`. Each read may run in a worker thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.queue import QueueKey
from store.errors import StoreError
from store.records.batches import I64, RunBatch

Read = Callable[[], "I64 | RunBatch"]
"""One read of the disk: the times of a record, or a block of index rows. It blocks, in any thread. Raises StoreError."""
Search = Generator[Read, "I64 | RunBatch | None", int]
"""Yields reads, takes their results (None for a read that failed), and returns a position."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Index rows in order, and the position behind them."""

    positions: I64
    offsets: I64
    rows: I64
    stop: int


def search_time(state: BrokerState, key: QueueKey, time_us: int) -> Search:
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
        block = yield lambda: state.files.blocks.load(blocks[index][2])
        if not isinstance(block, RunBatch):
            return max(blocks[index][0], first)
        runs = _Runs(block.position, block.store_offset, block.row_start.astype(np.int64), stop)
    last = yield from _last_before(state, runs.offsets.tolist(), time_us)
    last = max(last, 0)
    start = int(runs.positions[last])
    stop = int(runs.positions[last + 1]) if last + 1 < len(runs.positions) else runs.stop
    times = yield lambda: state.files.store.times(int(runs.offsets[last]))
    if not isinstance(times, np.ndarray):
        return max(start, first)
    row = int(runs.rows[last])
    late = np.flatnonzero(times[row : row + stop - start] >= time_us)
    return max(start + int(late[0]) if len(late) else stop, first)


def finish(search: Search) -> int:
    """Run a search to its end in this thread."""
    try:
        read = next(search)
        while True:
            read = search.send(result_of(read))
    except StopIteration as stop:
        return int(stop.value)


def result_of(read: Read) -> I64 | RunBatch | None:
    """The result of a read; None if it failed."""
    try:
        return read()
    except StoreError:
        return None


def _last_before(state: BrokerState, offsets: list[int], time_us: int) -> Generator[Read, I64 | RunBatch | None, int]:
    """The index of the last record (by store offsets) whose first row is before the time; -1 if none is."""
    low, high = 0, len(offsets)
    while low < high:
        middle = (low + high) // 2
        times = yield lambda offset=offsets[middle]: state.files.store.times(offset)  # type: ignore[misc]
        if isinstance(times, np.ndarray) and int(times[0]) < time_us:
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
