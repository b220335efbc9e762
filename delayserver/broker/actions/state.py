"""The state that the broker's parts share: queues, groups, store, progress. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from sortedcontainers import SortedDict

from delayserver.broker.actions.delivering import grouped_columns
from delayserver.broker.actions.policies import Letters, Policies
from delayserver.broker.files.progress import (
    ACKED,
    IN_PLACE,
    KEPT,
    MOVED,
    REMOVED,
    TIMES_MAX,
    UNTIL,
    ProgressLog,
    ProgressRows,
)
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.filters.filter import Filter
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.queues.deadlines import Deadlines
from delayserver.broker.queues.groups import ConsumerGroup, Cursor, GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, Run, SpilledBlock
from delayserver.broker.queues.queue_table import QueueTable, RecoveredEnds
from delayserver.broker.queues.ranges import Range
from delayserver.broker.queues.run_blocks import BLOCK_BYTES_MAX, RunBlocks
from delayserver.broker.queues.windows import WindowTable
from delayserver.broker.reads import REBUILD, STORE, ReadNeeded, ReadPlan, Reads
from delayserver.broker.redelivery import KeptBytes
from delayserver.broker.room import Room
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, StoreError, UnreadableError
from store.records.batches import RunBatch, StoredBatch

# Damaged messages are all counted. Only this many texts are kept.
_DAMAGES_TOLD_MAX = 1000
# From so many rows on, the progress log gets them in one step.
_MANY = 16
# This many reads of a message must fail before it is passed over as damaged. Until then the pull raises the error.
READ_TRIES = 3


@dataclass(slots=True)
class BrokerState:
    """The state of one broker.

    `progress_ahead`: the progress log has acks of positions that the store lost. The log must be replaced before new
    messages get these positions. `recovered_ends`: the end of each queue at the last start.
    `capturing`: a checkpoint copies the queues in steps, so none of them may spill.
    `moves` counts seeks and removals. `removed`: groups removed since the last checkpoint, with their moves and the end
    of their retry queue, which older checkpoints still know.
    """

    fs: FileSystem
    directory: str
    server_id: int
    epoch: int
    limits: BrokerLimits
    store: BrokerStore
    blocks: RunBlocks
    progress: ProgressLog
    queues: QueueTable
    windows: WindowTable
    segment_newest_us: dict[int, int]
    room: Room
    reads: Reads
    policies: Policies
    letters: Letters = field(default_factory=Letters)
    groups: SortedDict = field(default_factory=SortedDict)
    recovered_ends: RecoveredEnds = field(default_factory=RecoveredEnds)
    capturing: bool = False
    progress_ahead: bool = False
    pending: ProgressRows = field(default_factory=ProgressRows)
    seen_changed: set[GroupKey] = field(default_factory=set)
    deadlines: Deadlines = field(default_factory=Deadlines)
    damages: list[str] = field(default_factory=list)
    damaged_messages: int = 0
    expired_messages: int = 0
    moves: int = 0
    removed: dict[GroupKey, int] = field(default_factory=dict)
    filters: dict[GroupKey, Filter] = field(default_factory=dict)
    filtered_messages: int = 0
    passed_over: set[GroupKey] = field(default_factory=set)

    def queue(self, key: QueueKey) -> ConsumeQueue:
        """The queue; an empty one is made if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues.add(key, ConsumeQueue())
        return queue

    def group(self, key: GroupKey) -> ConsumerGroup:
        """The group; a new one is made if there is none, and starts at the earliest position kept."""
        group: ConsumerGroup | None = self.groups.get(key)
        if group is None:
            main, retry = [self.queues.bounds(queue) or (0, 0) for queue in ((key[0], 0), key)]
            group = ConsumerGroup(Cursor(main[0], self.moves), Cursor(retry[0], self.moves))
            self.groups[key] = group
            self.seen_changed.add(key)
            if group.main.committed:  # a start must know later that the group never had what was before it
                self.moved_up(key, False, group.main)
            if group.retry.committed:
                self.moved_up(key, True, group.retry)
        return group

    def move(self, key: GroupKey, main: int, retry: int) -> None:
        """Let a group go on at these positions of its two queues, as at its first pull. Its leases end."""
        self.moves += 1
        group = self.group(key)
        for cursor, position, of_retries in ((group.main, main, False), (group.retry, retry, True)):
            cursor.move_to(position, self.moves)
            self.moved(key, of_retries, cursor)
        self.deadlines.forget(key)
        self.seen_changed.add(key)

    def moved(self, key: GroupKey, retry: bool, cursor: Cursor, rows: ProgressRows | None = None) -> None:
        """Note where a group goes on, for the progress log (or a snapshot of it)."""
        rows = self.pending if rows is None else rows
        rows.add(MOVED, *key, retry, 0, cursor.committed, cursor.moves & TIMES_MAX)

    def moved_up(self, key: GroupKey, retry: bool, cursor: Cursor) -> None:
        """Note for the progress log that a group has nothing to get below its position."""
        self.pending.add(ACKED, *key, retry, 0, cursor.committed)

    def recovered_moves(self, moves: int) -> None:
        """The progress log knows a group with this count of moves."""
        self.moves = max(self.moves, moves)

    def remove_group(self, key: GroupKey) -> None:
        """Forget a group, and the messages in its retry queue."""
        self.moves += 1
        del self.groups[key]
        self.deadlines.forget(key)
        self.seen_changed.discard(key)
        self.passed_over.discard(key)
        retry = self.queues.get(key)
        end = 0 if retry is None else retry.end
        if retry is not None:
            retry.drop_below(end)
        self.removed[key] = end
        self.pending.add(REMOVED, *key, False, 0, end)

    def checkpoint_covers(self, removed: dict[GroupKey, int]) -> None:
        """A checkpoint is durable that was captured behind these removals."""
        for key, end in removed.items():
            if self.removed.get(key) == end:
                del self.removed[key]

    def acked(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note an acked range for the progress log."""
        self.pending.add(ACKED, *key, retry, start, stop)

    def acked_all(self, key: GroupKey, retry: bool, ranges: list[Range]) -> None:
        """`acked` for several ranges."""
        if len(ranges) < _MANY:
            for start, stop in ranges:
                self.acked(key, retry, start, stop)
        else:
            self.pending.add_all(ACKED, *key, retry, ranges)

    def expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note and count a range that is done for a group because its messages have expired."""
        self.pending.add(ACKED, *key, retry, start, stop, stop - start)
        self.groups[key].count_expired(stop - start)
        self.expired_messages += stop - start

    def pass_over(self, key: GroupKey, gaps: list[Range], *, again: bool = False) -> None:
        """Count positions of the subject's queue that a filter keeps from a group. The progress log learns of them with
        the next acks, or with the next sync. `again`: positions in their place, which a restart left there."""
        group: ConsumerGroup = self.groups[key]
        if again:
            group.main.pass_over_again(gaps)
            for start, stop in gaps:  # at once: the log has them as handed out from their place
                self.acked(key, False, start, stop)
        else:
            group.main.pass_over(gaps)
        count = sum([stop - start for start, stop in gaps])
        group.count_filtered(count)
        self.filtered_messages += count
        self.passed_over.add(key)

    def in_place(self, key: GroupKey, retry: bool, place: Place, rows: ProgressRows | None = None) -> None:
        """Note a range that is redelivered in its place, for the progress log (or a snapshot of it)."""
        rows = self.pending if rows is None else rows
        if place.until_ms:
            rows.add(UNTIL, *key, retry, 0, place.until_ms)
        rows.add(IN_PLACE, *key, retry, place.start, place.stop, place.times)

    def capture(self, *, on: bool) -> None:
        """A checkpoint begins or ends to copy the queues."""
        self.capturing = on

    def lost(self, messages: int) -> None:
        """These messages cannot be read, and are passed over."""
        self.damaged_messages += messages

    def take_pending(self) -> ProgressRows:
        """Take the rows of progress that are not in the log yet, to be written."""
        rows, self.pending = self.pending, ProgressRows()
        return rows

    def found_ahead(self, detail: str) -> None:
        """The log speaks of positions that the store does not have."""
        self.progress_ahead = True
        self.damages.append(detail)

    def kept(self, key: GroupKey) -> KeptBytes:
        """The count of a group's redelivery bytes on disk."""
        group: ConsumerGroup = self.groups[key]
        return group.kept(self.limits.redelivery_kept_ms)

    def wrote_redeliveries(self, key: GroupKey, start_ms: int, count: int, rows: ProgressRows | None = None) -> None:
        """Note bytes of durable redeliveries for the progress log (or a snapshot of it)."""
        (self.pending if rows is None else rows).add(KEPT, *key, False, start_ms, count)

    def run_at(self, key: QueueKey, position: int) -> Run:
        """The run that holds a position of a queue. A damaged block of index rows is made again from the store.

        Where the store is damaged too, an unreadable run stands for the lost messages. Raises ReadNeeded."""
        queue = self.queues[key]
        try:
            return queue.run_at(position, self.blocks)
        except CorruptionError as error:
            self.damaged(str(error))
        block, stop = queue.block_at(position)
        self.reads.find(REBUILD, (key, block.position))  # raises the error of a read that failed
        raise ReadNeeded(self._rebuild_plan(key, block, stop))

    def _rebuild_plan(self, key: QueueKey, block: SpilledBlock, stop: int) -> ReadPlan:
        """A read of the store from which a block is made again, up to the position `stop`."""
        first, last, position = block.store_offset_first, block.store_offset_last, block.position
        told: list[str] = []

        def read() -> dict[str, RunBatch]:
            runs = self._runs_of(key, (first, last), (position, stop), told.append)
            columns = dict(zip(("position", "store_offset", "row_start", "row_count"), np.array(runs).T, strict=True))
            return {"block": RunBatch.filled(len(runs), **columns)}

        reach = (max(first, self.store.first), last + 1)
        return ReadPlan(REBUILD, (key, position), reach, BLOCK_BYTES_MAX, read, partial(self._rebuilt, block, told))

    def _rebuilt(self, block: SpilledBlock, told: list[str], found: dict[str, RunBatch]) -> None:
        for text in told:
            self.damaged(text)
        if not found:
            return
        with suppress(StoreError):  # it is in memory; without room on the disk a later read makes it again
            block.move(self.blocks.append(found["block"]))
        self.blocks.keep({block.block_offset: found["block"]})

    def _runs_of(
        self, key: QueueKey, offsets: Range, positions: Range, told: Callable[[str], None]
    ) -> list[tuple[int, int, int, int]]:
        """The runs of the records in a range of store offsets (both ends count), for a range of positions. Runs in a
        worker thread. `told` is called with texts about damage."""
        expected, stop = positions
        runs: list[tuple[int, int, int, int]] = []
        for record in self.store.readable_columns(offsets[0], offsets[1] + 1, told):
            for run in grouped_columns(record.columns["subject"], record.columns["target_group"]):
                if run.key == key:
                    first = int(record.columns["position"][run.row_start])
                    if first > expected:
                        runs.append((expected, offsets[0], 0, first - expected))
                    runs.append((first, record.offset, run.row_start, run.row_count))
                    expected = first + run.row_count
        if expected < stop:
            runs.append((expected, offsets[1], 0, stop - expected))
        return runs

    def read(self, run: Run, *, patient: bool = False) -> StoredBatch | None:
        """The stored batch of a run; None, with a damage noted, if it cannot be read or is another record. Raises
        ReadNeeded if it is not in memory.

        With `patient` the first failed reads of the disk raise UnreadableError, because a later read may succeed."""
        try:
            batch = self.store.batch(run.store_offset)
            if int(batch.position[run.row_start]) == run.position:
                return batch
            detail = f"store offset {run.store_offset}: position {run.position} is not there"
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError) and self._may_read_soon(run.store_offset):
                raise
            detail = str(error)
        self.damaged(detail)
        return None

    def read_for(self, wanted: tuple[int, int], run: Run, queue: ConsumeQueue) -> StoredBatch | None:
        """`read`, patiently, for a pull that wants this many messages and bytes: a plan reads those behind the run too."""
        try:
            return self.read(run, patient=True)
        except ReadNeeded:
            messages, bytes_max = wanted
            offsets = queue.store_offsets(run.position, run.position + messages, self.blocks)
            raise ReadNeeded(self.store.read_plan(run.store_offset, offsets[1:], bytes_max)) from None

    def _may_read_soon(self, store_offset: int) -> bool:
        """Whether fewer than READ_TRIES reads at this offset have failed, the last one included."""
        return self.reads.failed(STORE, store_offset) < READ_TRIES

    def damaged(self, detail: str) -> None:
        """Note a damage, up to the bound."""
        if len(self.damages) < _DAMAGES_TOLD_MAX:
            self.damages.append(detail)

    def close(self) -> None:
        """Close the files without making anything durable."""
        self.store.close()
        self.blocks.close()
        self.progress.close()
