"""Consume queues at rest: all of them in a few arrays, as the checkpoint has them. Pure; the arrays never change.

A queue at rest takes 57 bytes and its index rows 24 bytes each; as an object it takes about 900 bytes. So a hundred
thousand subjects cost a start no time, and the event loop no step over all of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock
from store.records.batches import I64, U32

Bools = NDArray[np.bool_]
_LOW = (1 << 32) - 1


def code_of(key: QueueKey) -> int:
    """The key of a queue as one number, which orders as the keys do."""
    return key[0] << 32 | key[1]


def key_of(code: int) -> QueueKey:
    """The key of a number of `code_of`."""
    return code >> 32, code & _LOW


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """Queues in ascending order of `codes`. i64[queues]: `codes`, `first`, `end`; u32[queues]: `runs` and `blocks`, how
    many entries each has below. The index rows i64 `positions` and `offsets`, u32 `rows` and `counts` stand one queue
    behind the other, as do the rows of `spilled` i64[blocks, 4] (`SpilledBlock`)."""

    codes: I64
    first: I64
    end: I64
    runs: U32
    blocks: U32
    positions: I64
    offsets: I64
    rows: U32
    counts: U32
    spilled: I64
    run_starts: I64 = field(init=False)
    block_starts: I64 = field(init=False)
    _index: array[int] = field(init=False)

    def __post_init__(self) -> None:
        """Raises ValueError if the columns contradict each other."""
        queues, runs = len(self.codes), len(self.positions)
        if {len(column) for column in (self.first, self.end, self.runs, self.blocks)} != {queues}:
            raise ValueError("columns of queues have different lengths")
        if {len(column) for column in (self.offsets, self.rows, self.counts)} != {runs}:
            raise ValueError("columns of index rows have different lengths")
        if self.spilled.ndim != 2 or self.spilled.shape[1] != 4:
            raise ValueError("a block has four numbers")
        run_starts, block_starts = _starts(self.runs), _starts(self.blocks)
        if int(run_starts[-1]) != runs or int(block_starts[-1]) != len(self.spilled):
            raise ValueError("index rows or blocks are missing")
        if bool((self.codes[1:] <= self.codes[:-1]).any()) or (queues and int(self.codes[0]) < 0):
            raise ValueError("queues are not in order")
        object.__setattr__(self, "run_starts", run_starts)
        object.__setattr__(self, "block_starts", block_starts)
        index = array("q")
        index.frombytes(np.ascontiguousarray(self.codes, np.int64).tobytes())
        object.__setattr__(self, "_index", index)

    def __len__(self) -> int:
        return len(self.codes)

    @staticmethod
    def of(queues: Mapping[QueueKey, ConsumeQueue]) -> QueueColumns:
        """The columns of these queues."""
        gathered = QueueGather()
        for key, queue in queues.items():
            gathered.add(key, queue, 1 << 62)
        return gathered.columns(QueueColumns.of_none(), np.zeros(0, bool))

    @staticmethod
    def of_none() -> QueueColumns:
        """No queues."""
        none, none_short = np.zeros(0, np.int64), np.zeros(0, np.uint32)
        none_of_four = np.zeros((0, 4), np.int64)
        return QueueColumns(none, none, none, none_short, none_short, none, none, none_short, none_short, none_of_four)

    def row_of(self, key: QueueKey) -> int:
        """The row of a queue; -1 if it is not among these."""
        code = code_of(key)
        row = bisect_left(self._index, code)
        return row if row < len(self._index) and self._index[row] == code else -1

    def queue(self, row: int) -> ConsumeQueue:
        """The queue of a row as an object."""
        queue = ConsumeQueue(int(self.first[row]), int(self.end[row]))
        low, high = int(self.block_starts[row]), int(self.block_starts[row + 1])
        queue.blocks = [SpilledBlock(*block) for block in self.spilled[low:high].tolist()]
        span = slice(int(self.run_starts[row]), int(self.run_starts[row + 1]))
        queue.restore_runs(
            array("q", self.positions[span].tobytes()),
            array("q", self.offsets[span].tobytes()),
            array("I", self.rows[span].tobytes()),
            array("I", self.counts[span].tobytes()),
        )
        return queue

    def lowest_offsets(self) -> I64:
        """For each queue the store offset of its first index row (of a block, of its first row), i64[queues]; the largest
        number for a queue without any."""
        lowest = np.full(len(self), np.iinfo(np.int64).max)
        some = np.flatnonzero(self.runs)
        lowest[some] = self.offsets[self.run_starts[some]]
        some = np.flatnonzero(self.blocks)
        lowest[some] = self.spilled[self.block_starts[some], 1]
        return lowest

    def retired(self, below: int) -> QueueColumns:
        """The same without index rows of records below a store offset, in queues without blocks."""
        gone = (self.offsets < below) & np.repeat(self.blocks == 0, self.runs)
        if not gone.any():
            return self
        kept = ~gone
        runs = np.diff(np.concatenate(([0], np.cumsum(kept)))[self.run_starts]).astype(np.uint32)
        positions = self.positions[kept]
        first, starts = self.first.copy(), _starts(runs)[:-1]
        empty, some = (runs == 0) & (self.blocks == 0), (runs != self.runs) & (runs != 0)
        first[empty] = self.end[empty]
        first[some] = np.maximum(first[some], positions[starts[some]])
        return QueueColumns(
            self.codes, first, self.end, runs, self.blocks,
            positions, self.offsets[kept], self.rows[kept], self.counts[kept], self.spilled,
        )  # fmt: skip

    def selected(self, rows: Bools) -> QueueColumns:
        """The queues that `rows` bool[queues] names."""
        runs, blocks = np.repeat(rows, self.runs), np.repeat(rows, self.blocks)
        return QueueColumns(
            self.codes[rows], self.first[rows], self.end[rows], self.runs[rows], self.blocks[rows],
            self.positions[runs], self.offsets[runs], self.rows[runs], self.counts[runs], self.spilled[blocks],
        )  # fmt: skip

    def check_invariants(self) -> None:
        """Every queue is in order."""
        for row in range(len(self)):
            self.queue(row).check_invariants()


class QueueGather:
    """Copies of queues as they were up to a store offset, added one by one. `columns` may run in another thread."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._positions, self._offsets = array("q"), array("q")
        self._rows, self._counts = array("I"), array("I")
        self._spilled = array("q")

    def add(self, key: QueueKey, queue: ConsumeQueue, below: int) -> None:
        """Add a queue with its index rows of records below a store offset. All its blocks lie below it."""
        positions, offsets, rows, counts = queue.memory_runs()
        count, end = len(offsets), queue.end
        if count and offsets[-1] >= below:
            count = bisect_left(offsets, below)
            end = positions[count]
            positions, offsets, rows, counts = (
                positions[:count], offsets[:count], rows[:count], counts[:count],
            )  # fmt: skip
        self._positions.extend(positions)
        self._offsets.extend(offsets)
        self._rows.extend(rows)
        self._counts.extend(counts)
        for block in queue.blocks:
            self._spilled.extend(
                (block.position, block.store_offset_first, block.store_offset_last, block.block_offset)
            )
        self._numbers.extend((code_of(key), min(queue.first, end), end, count, len(queue.blocks)))

    def columns(self, resting: QueueColumns, kept: Bools) -> QueueColumns:
        """The queues of `resting` that `kept` names, and the added ones."""
        numbers = _numbers(self._numbers, np.int64).reshape(-1, 5)
        old = resting if bool(kept.all()) else resting.selected(kept)
        if not len(numbers):
            return old
        codes = np.concatenate((old.codes, numbers[:, 0]))
        runs = np.concatenate((old.runs, numbers[:, 3].astype(np.uint32)))
        blocks = np.concatenate((old.blocks, numbers[:, 4].astype(np.uint32)))
        order = np.argsort(codes, kind="stable")
        by_run, by_block = _ragged_order(runs, order), _ragged_order(blocks, order)
        spilled = _numbers(self._spilled, np.int64).reshape(-1, 4)
        return QueueColumns(
            codes[order],
            np.concatenate((old.first, numbers[:, 1]))[order],
            np.concatenate((old.end, numbers[:, 2]))[order],
            runs[order],
            blocks[order],
            np.concatenate((old.positions, _numbers(self._positions, np.int64)))[by_run],
            np.concatenate((old.offsets, _numbers(self._offsets, np.int64)))[by_run],
            np.concatenate((old.rows, _numbers(self._rows, np.uint32)))[by_run],
            np.concatenate((old.counts, _numbers(self._counts, np.uint32)))[by_run],
            np.concatenate((old.spilled, spilled))[by_block],
        )


def _numbers(values: array[int], dtype: Any) -> NDArray[Any]:
    return np.frombuffer(values.tobytes(), dtype)


def _starts(counts: U32) -> I64:
    """Where the entries of each queue begin, and the end of the last one, i64[queues + 1]."""
    starts: I64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
    return starts


def _ragged_order(counts: U32, order: NDArray[np.intp]) -> I64:
    """The places of entries, `counts` of each queue one behind the other, if the queues are put into an order."""
    starts, taken = _starts(counts)[:-1][order], counts[order].astype(np.int64)
    shifts = starts - _starts(taken.astype(np.uint32))[:-1]
    places: I64 = np.repeat(shifts, taken) + np.arange(int(taken.sum()), dtype=np.int64)
    return places
