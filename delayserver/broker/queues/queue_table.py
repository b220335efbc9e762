"""The queues of a broker by key: those in use as objects, and the others at rest in columns.

A queue wakes when it is asked for, and rests again when a checkpoint finds it as the checkpoint before. So what goes
over all queues (checkpoints, retention) goes over arrays, and over the few objects in use.

A checkpoint copies the queues in steps of some thousand. Queues do not spill meanwhile, so index rows behind the
captured offset are recognised by their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.queues.queue_columns import Bools, QueueColumns, QueueGather, code_of, key_of
from delayserver.broker.queues.ranges import Range
from store.records.batches import I64

# Queues that wake at once to be spilled, when all queues together have too many index rows in memory.
_LARGEST = 256


class QueueTable:
    """Queues by key."""

    def __init__(self, resting: QueueColumns | None = None) -> None:
        self._awake: dict[QueueKey, ConsumeQueue] = {}
        self._resting = QueueColumns.of_none() if resting is None else resting
        # Of the queues at rest those that are not awake.
        self._asleep: Bools = np.ones(len(self._resting), bool)
        self._asleep_count = len(self._resting)
        self._at_start = RecoveredEnds()
        # A checkpoint copies the queues in steps, so none of them may spill.
        self.capturing = False

    def __len__(self) -> int:
        return len(self._awake) + self._asleep_count

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._awake or self._sleeping_row(key) >= 0

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        """The queue, awake; None if there is none."""
        queue = self._awake.get(key)
        if queue is None and self._asleep_count:
            row = self._sleeping_row(key)
            if row >= 0:
                queue = self._wake(key, row)
        return queue

    def __getitem__(self, key: QueueKey) -> ConsumeQueue:
        queue = self.get(key)
        if queue is None:
            raise KeyError(key)
        return queue

    def get_or_make(self, key: QueueKey) -> ConsumeQueue:
        """Returns the queue. Makes an empty one if there is none."""
        queue = self.get(key)
        return self.add(key, ConsumeQueue()) if queue is None else queue

    def add(self, key: QueueKey, queue: ConsumeQueue) -> ConsumeQueue:
        """Add a queue that is not there; returns it."""
        self._awake[key] = queue
        return queue

    def bounds(self, key: QueueKey) -> Range | None:
        """First position and end of a queue, which does not wake; None if there is none."""
        queue = self._awake.get(key)
        if queue is not None:
            return queue.first, queue.end
        row = self._sleeping_row(key)
        return None if row < 0 else (int(self._resting.first[row]), int(self._resting.end[row]))

    def end(self, key: QueueKey) -> int:
        """The end of a queue, which does not wake; 0 if there is none."""
        queue = self._awake.get(key)
        if queue is not None:
            return queue.end
        row = self._sleeping_row(key)
        return 0 if row < 0 else int(self._resting.end[row])

    def _sleeping_row(self, key: QueueKey) -> int:
        row = self._resting.row_of(key) if self._asleep_count else -1
        return row if row >= 0 and self._asleep[row] else -1

    def _wake(self, key: QueueKey, row: int) -> ConsumeQueue:
        self._asleep[row] = False
        self._asleep_count -= 1
        queue = self._awake[key] = self._resting.queue(row)
        return queue

    def awake(self) -> Iterator[tuple[QueueKey, ConsumeQueue]]:
        """The queues in use."""
        return iter(self._awake.items())

    @property
    def awake_count(self) -> int:
        """How many queues are in use, about 900 bytes each."""
        return len(self._awake)

    def asleep(self) -> QueueColumns:
        """The queues at rest."""
        return self._resting if bool(self._asleep.all()) else self._resting.selected(self._asleep)

    def items(self) -> Iterator[tuple[QueueKey, ConsumeQueue]]:
        """All queues. Those at rest are copies. For tools and tests."""
        yield from self._awake.items()
        for row in np.flatnonzero(self._asleep).tolist():
            yield key_of(int(self._resting.codes[row])), self._resting.queue(row)

    def values(self) -> Iterator[ConsumeQueue]:
        """All queues, as `items` has them."""
        return (queue for _, queue in self.items())

    def runs_in_memory(self) -> int:
        """Index rows of all queues in memory."""
        awake = sum([queue.runs_in_memory for queue in self._awake.values()])
        return awake + int(self._resting.runs[self._asleep].sum())

    def largest(self) -> list[ConsumeQueue]:
        """The queues with the most index rows in memory, awake; those at rest only up to a bound."""
        runs = np.where(self._asleep, self._resting.runs, 0)
        for row in np.argsort(runs, kind="stable")[-_LARGEST:].tolist():
            if runs[row]:
                self._wake(key_of(int(self._resting.codes[row])), row)
        return sorted(self._awake.values(), key=lambda queue: -queue.runs_in_memory)

    def retire(self, below: int) -> None:
        """Drop the index rows of records below a store offset from all queues."""
        with_blocks = np.flatnonzero(self._asleep & (self._resting.blocks > 0))
        for row in with_blocks.tolist():
            if int(self._resting.spilled[self._resting.block_starts[row], 1]) < below:
                self._wake(key_of(int(self._resting.codes[row])), row)
        for queue in self._awake.values():
            queue.retire(below)
        self._resting = self._resting.retired(below)

    def blocks_in_use(self) -> int | None:
        """The lowest offset of a block of index rows that is in use; None if none is."""
        asleep = np.repeat(self._asleep, self._resting.blocks)
        offsets = [int(offset) for offset in self._resting.spilled[asleep, 3].min(initial=1 << 62, keepdims=True)]
        offsets += [block.block_offset for queue in self._awake.values() for block in queue.blocks]
        lowest = min(offsets)
        return None if lowest == 1 << 62 else lowest

    def keep_ends(self) -> None:
        """Keeps the present ends of all queues, after a start has read all files."""
        self._at_start = RecoveredEnds(self._resting, {key: queue.end for key, queue in self._awake.items()})

    def recovered_end(self, key: QueueKey) -> int:
        """The end of a queue at the start; 0 if there was none."""
        return self._at_start.end(key)

    # A checkpoint

    def capture(self) -> QueueCapture:
        """Begin to copy the queues. `retire` must not be called before `end_capture`."""
        self.capturing = True
        return QueueCapture(self._resting, self._asleep.copy(), list(self._awake.items()))

    def end_capture(self) -> None:
        """Ends the capture: the queues are copied, or the checkpoint is given up."""
        self.capturing = False

    def rest(self, captured: CapturedQueues) -> Iterator[None]:
        """Put the queues to rest that are as a capture found them. A pause may follow each step."""
        columns = captured.columns
        woken = list(islice(self._awake, len(captured.keys), None))  # since the capture began
        self._resting, self._asleep = columns, np.ones(len(columns), bool)
        self._asleep[captured.rows] = False
        self._asleep[[row for row in map(columns.row_of, woken) if row >= 0]] = False
        self._asleep_count = int(self._asleep.sum())
        steps = zip(captured.keys, captured.rows.tolist(), strict=True)
        while part := list(islice(steps, STEP_QUEUES)):
            yield
            if self._resting is not columns:  # retention came between
                return
            for key, row in part:
                queue = self._awake.get(key)
                if queue is not None and _is_as(columns, row, queue):
                    del self._awake[key]
                    self._asleep[row] = True
                    self._asleep_count += 1

    def check_invariants(self) -> None:
        """Every queue is in order, and is either awake or at rest."""
        assert self._asleep_count == int(self._asleep.sum())
        for key in self._awake:
            row = self._resting.row_of(key)
            assert row < 0 or not self._asleep[row], f"{key} is awake and at rest"
        for queue in self.values():
            queue.check_invariants()


class RecoveredEnds:
    """The ends that the queues had at the start, as long as the process lives: 16 bytes a queue."""

    def __init__(self, columns: QueueColumns | None = None, later: Mapping[QueueKey, int] | None = None) -> None:
        """`columns`: the queues of the checkpoint. `later`: the ends of those that the start changed."""
        self._columns = QueueColumns.of_none() if columns is None else columns
        self._later = {} if later is None else later

    def end(self, key: QueueKey) -> int:
        """The end of a queue at the start; 0 if there was none."""
        end = self._later.get(key)
        if end is None:
            row = self._columns.row_of(key)
            end = int(self._columns.end[row]) if row >= 0 else 0
        return end


# Queues that are copied, or put to rest, in one step: about 2 ms.
STEP_QUEUES = 1000


@dataclass(frozen=True, slots=True)
class CapturedQueues:
    """The result of a capture: all queues, and which of them were awake, with their rows i64[keys]."""

    columns: QueueColumns
    keys: list[QueueKey]
    rows: I64


class QueueCapture:
    """The queues as of a store offset, copied in steps while more is appended."""

    def __init__(self, resting: QueueColumns, asleep: Bools, awake: list[tuple[QueueKey, ConsumeQueue]]) -> None:
        self._resting = resting
        self._asleep = asleep
        self._awake = awake
        self._steps = iter(awake)
        self._gathered = QueueGather()

    def step(self, below: int) -> bool:
        """Copy some queues up to a store offset, the same in all steps. True while there are more."""
        part = list(islice(self._steps, STEP_QUEUES))
        for key, queue in part:
            self._gathered.add(key, queue, below)
        return len(part) == STEP_QUEUES

    def captured(self) -> CapturedQueues:
        """The capture, made from what was gathered. May run in any thread."""
        columns = self._gathered.columns(self._resting, self._asleep)
        keys = [key for key, _ in self._awake]
        codes = np.array([code_of(key) for key in keys], np.int64)
        return CapturedQueues(columns, keys, np.searchsorted(columns.codes, codes).astype(np.int64))


def _is_as(columns: QueueColumns, row: int, queue: ConsumeQueue) -> bool:
    """Whether a queue without blocks is as in a row. Index rows are only added at the end and dropped at the front."""
    return (
        not queue.blocks
        and not columns.blocks[row]
        and queue.end == columns.end[row]
        and queue.first == columns.first[row]
        and queue.runs_in_memory == columns.runs[row]
    )
