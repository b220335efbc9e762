"""The consume queue of one (subject, target group): positions that count up from 0, and the records of their messages.

Its index rows are *runs*: `row_count` messages from `position` on are in the stored record at `store_offset`, from row
`row_start` on. The newest runs are in memory as arrays of fixed-width numbers, older ones in blocks on disk.

There are no rows for each message. A run takes 24 bytes for the messages of a record. Measured, columns read without
blobs cost 30 ns a message in records of 1,000, 1 µs in records of 100, and 60 to 90 µs in records of one. Rows of 40
bytes would cost 3 ns. But a pull reads the record anyway, messages of single sends are joined into records, and such
rows would have to be written, synced and rebuilt.

Runs are never the truth: a start makes them from the store, and a damaged block is made again when it is read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from delayserver.broker.queues.run_blocks import RunBlocks
from store.errors import DiskFullError
from store.records.batches import RunBatch

# Runs whose offsets `store_offsets` gives at most. A read of the store has enough with fewer.
OFFSETS_MAX = 256

QueueKey = tuple[int, int]
"""(subject code, target group code); target group 0 is the queue for all groups."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Consecutive messages in one stored record. `position` is that of the first one."""

    position: int
    store_offset: int
    row_start: int
    row_count: int


@dataclass(slots=True)
class SpilledBlock:
    """A block on disk: its first position, the store offsets of its first and last run, its own offset."""

    position: int
    store_offset_first: int
    store_offset_last: int
    block_offset: int

    def move(self, block_offset: int) -> None:
        """Notes the offset at which the block was written again."""
        self.block_offset = block_offset

    def begin_at(self, position: int, store_offset: int) -> None:
        """Drops the runs below a position, which are of no use any more."""
        self.position, self.store_offset_first = position, store_offset


class ConsumeQueue:
    """Append runs at the end, find the run of a position, spill and retire from the front."""

    __slots__ = ("_counts", "_offsets", "_positions", "_rows", "blocks", "end", "first")

    def __init__(self, first: int = 0, end: int = 0) -> None:
        self.first = first
        self.end = end
        self.blocks: list[SpilledBlock] = []
        self._positions = array("q")
        self._offsets = array("q")
        self._rows = array("I")
        self._counts = array("I")

    @property
    def runs_in_memory(self) -> int:
        """Count of index rows in memory, 24 bytes each."""
        return len(self._positions)

    def append(self, store_offset: int, row_start: int, row_count: int) -> int:
        """Add a run at the end; returns its first position."""
        position = self.end
        self._positions.append(position)
        self._offsets.append(store_offset)
        self._rows.append(row_start)
        self._counts.append(row_count)
        self.end = position + row_count
        return position

    def run_at(self, position: int, blocks: RunBlocks) -> StoredRun:
        """The run that holds `position` (first <= position < end), whole. Raises ReadNeeded if its block is not in
        memory, CorruptionError for a bad block."""
        assert self.first <= position < self.end, f"position {position} outside {self.first} to {self.end}"
        index = bisect_right(self._positions, position) - 1
        if index >= 0:
            return StoredRun(self._positions[index], self._offsets[index], self._rows[index], self._counts[index])
        runs = blocks.read(self.block_at(position)[0].block_offset)
        row = int(np.searchsorted(runs.position, position, side="right")) - 1
        return StoredRun(
            int(runs.position[row]), int(runs.store_offset[row]), int(runs.row_start[row]), int(runs.row_count[row])
        )

    def newest(self) -> StoredRun | None:
        """The last run, if it is in memory."""
        if not self._positions:
            return None
        return StoredRun(self._positions[-1], self._offsets[-1], self._rows[-1], self._counts[-1])

    def store_offset_of(self, position: int) -> int | None:
        """The lowest store offset that positions from `position` on need; None if there are no such positions.

        For a spilled block it is the offset of its first run, so that retention reads no block.
        """
        if position >= self.end:
            return None
        index = bisect_right(self._positions, position) - 1
        if index >= 0:
            return self._offsets[index]
        return self.block_at(position)[0].store_offset_first

    def store_offsets(self, position: int, stop: int, blocks: RunBlocks) -> list[int]:
        """The store offsets of the runs from the one that begins at `position` up to the position `stop`, ascending: the
        first ones that are in memory, or in the same block, which must have been read."""
        index = bisect_right(self._positions, position) - 1
        if index >= 0:
            behind = bisect_left(self._positions, stop, index)
            return self._offsets[index : min(behind, index + OFFSETS_MAX)].tolist()
        runs = blocks.read(self.block_at(position)[0].block_offset)
        first, behind = np.searchsorted(runs.position, (position, stop)).tolist()
        found: list[int] = runs.store_offset[first : min(behind, first + OFFSETS_MAX)].tolist()
        return found

    def runs_between(self, position: int, stop: int, blocks: RunBlocks) -> Iterator[StoredRun]:
        """The runs from the one that holds `position` up to the position `stop`, ascending: at most OFFSETS_MAX of those
        that are in memory, or in the same block, which must have been read."""
        index = bisect_right(self._positions, position) - 1
        if index >= 0:
            behind = min(bisect_left(self._positions, stop, index), index + OFFSETS_MAX)
            columns = [column[index:behind] for column in self.memory_runs()]
        else:
            runs = blocks.read(self.block_at(position)[0].block_offset)
            first = int(np.searchsorted(runs.position, position, side="right")) - 1
            behind = min(int(np.searchsorted(runs.position, stop)), first + OFFSETS_MAX)
            table = (runs.position, runs.store_offset, runs.row_start, runs.row_count)
            columns = [column[first:behind].tolist() for column in table]
        return map(StoredRun, *columns)

    def block_at(self, position: int) -> tuple[SpilledBlock, int]:
        """The block on disk that holds a position below the runs in memory, and the position behind the block."""
        following = bisect_right(self.blocks, position, key=_position)
        if following < len(self.blocks):
            return self.blocks[following - 1], self.blocks[following].position
        return self.blocks[following - 1], self._positions[0] if self._positions else self.end

    def spill_above(self, runs_max: int, blocks: RunBlocks) -> int:
        """If more than `runs_max` runs are in memory, move the older half to disk; returns how many moved.

        If the disk is full they stay in memory, because their messages are already stored.
        """
        if len(self._positions) <= runs_max:
            return 0
        try:
            return self.spill((runs_max + 1) // 2, blocks)
        except DiskFullError:
            return 0

    def spill(self, count: int, blocks: RunBlocks) -> int:
        """Move the oldest `count` runs from memory to disk; returns how many.

        Raises DiskFullError (nothing moved), StoreError."""
        count = min(count, len(self._positions))
        if count == 0:
            return 0
        batch = RunBatch.filled(
            count,
            position=np.array(self._positions[:count], np.int64),
            store_offset=np.array(self._offsets[:count], np.int64),
            row_start=np.array(self._rows[:count], np.uint32),
            row_count=np.array(self._counts[:count], np.uint32),
        )
        block_offset = blocks.append(batch)
        self.blocks.append(SpilledBlock(self._positions[0], self._offsets[0], self._offsets[count - 1], block_offset))
        self._drop_memory(count)
        return count

    def retire(self, below: int) -> None:
        """Drop the runs of records below a store offset, and move `first` up."""
        gone = [block for block in self.blocks if block.store_offset_last < below]
        del self.blocks[: len(gone)]
        if not self.blocks:
            self._drop_memory(bisect_left(self._offsets, below))
            self.first = max(self.first, self._positions[0] if self._positions else self.end)
        elif gone:
            self.first = max(self.first, self.blocks[0].position)

    def reaches_below(self, below: int) -> bool:
        """Whether the first block has runs of records below a store offset. `cut` drops them."""
        return bool(self.blocks) and self.blocks[0].store_offset_first < below

    def cut(self, below: int, runs: RunBatch) -> None:
        """Drop the runs of records below a store offset from the first block, whose rows are `runs`, and move `first` up."""
        row = int(np.searchsorted(runs.store_offset, below))
        if row < len(runs):
            self.blocks[0].begin_at(int(runs.position[row]), int(runs.store_offset[row]))
            self.first = max(self.first, self.blocks[0].position)

    def go_on_at(self, position: int) -> None:
        """Let an empty queue go on at a higher position: the ones below were used."""
        assert self.first == self.end <= position
        self.first = self.end = position

    def drop_below(self, position: int) -> None:
        """Drop the runs below a position: their messages are of no use any more. A block that reaches behind it stays."""
        self.first = max(self.first, min(position, self.end))
        if self.first == self.end:
            self.blocks.clear()
            self._drop_memory(len(self._positions))
            return
        behind = self._positions[0] if self._positions else self.end
        while self.blocks and (self.blocks[1].position if len(self.blocks) > 1 else behind) <= self.first:
            del self.blocks[0]
        if not self.blocks:
            self._drop_memory(max(bisect_right(self._positions, self.first) - 1, 0))

    def _drop_memory(self, count: int) -> None:
        for column in (self._positions, self._offsets, self._rows, self._counts):
            del column[:count]

    def memory_runs(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """The arrays of the runs in memory (position, store offset, row start, row count), for the checkpoint."""
        return self._positions, self._offsets, self._rows, self._counts

    def restore_runs(self, positions: array[int], offsets: array[int], rows: array[int], counts: array[int]) -> None:
        """Set the arrays of the runs in memory, from a checkpoint."""
        self._positions, self._offsets, self._rows, self._counts = positions, offsets, rows, counts

    def check_invariants(self) -> None:
        """Runs in memory have no gaps and reach the end; blocks and store offsets ascend."""
        expected = self._positions[0] if self._positions else self.end
        for position, count in zip(self._positions, self._counts, strict=True):
            assert position == expected and count > 0, "a gap between runs"
            expected = position + count
        assert expected == self.end, "the runs do not reach the end"
        firsts = [block.position for block in self.blocks]
        assert firsts == sorted(firsts), "blocks out of order"
        assert self.first <= self.end
        assert list(self._offsets) == sorted(self._offsets), "store offsets fall"


def _position(block: SpilledBlock) -> int:
    return block.position
