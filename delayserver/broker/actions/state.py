"""The state that the broker's parts share: queues, groups, store, progress. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sortedcontainers import SortedDict

from delayserver.broker.actions.delivering import grouped_columns
from delayserver.broker.files.progress import ACKED, IN_PLACE, KEPT, UNTIL, ProgressLog, ProgressRows
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.queues.deadlines import Deadlines
from delayserver.broker.queues.groups import ConsumerGroup, Cursor, GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, Run, SpilledBlock
from delayserver.broker.queues.run_blocks import RunBlocks
from delayserver.broker.queues.windows import WindowTable
from delayserver.broker.redelivery import KeptBytes
from delayserver.broker.room import Room
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, DiskFullError, UnreadableError
from store.records.batches import RunBatch, StoredBatch

# Damaged messages are all counted. Only this many texts are kept.
_DAMAGES_TOLD_MAX = 1000
# This many reads of a message must fail before it is passed over as damaged. Until then the pull raises the error.
READ_TRIES = 3
_FAILED_READS_MAX = 1024


@dataclass(slots=True)
class BrokerState:
    """The state of one broker.

    `progress_ahead`: the progress log has acks of positions that the store lost. The log must be replaced before new
    messages get these positions. `recovered_ends`: the end of each queue at the last start.
    """

    fs: FileSystem
    directory: str
    server_id: int
    epoch: int
    limits: BrokerLimits
    store: BrokerStore
    blocks: RunBlocks
    progress: ProgressLog
    queues: dict[QueueKey, ConsumeQueue]
    windows: WindowTable
    segment_newest_us: dict[int, int]
    room: Room
    groups: SortedDict = field(default_factory=SortedDict)
    recovered_ends: dict[QueueKey, int] = field(default_factory=dict)
    progress_ahead: bool = False
    pending: ProgressRows = field(default_factory=ProgressRows)
    seen_changed: set[GroupKey] = field(default_factory=set)
    deadlines: Deadlines = field(default_factory=Deadlines)
    damages: list[str] = field(default_factory=list)
    damaged_messages: int = 0
    expired_messages: int = 0
    _failed_reads: dict[int, int] = field(default_factory=dict)

    def queue(self, key: QueueKey) -> ConsumeQueue:
        """The queue; an empty one is made if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = ConsumeQueue()
        return queue

    def group(self, key: GroupKey) -> ConsumerGroup:
        """The group; a new one is made if there is none, and starts at the earliest position kept."""
        group: ConsumerGroup | None = self.groups.get(key)
        if group is None:
            main, retry = self.queues.get((key[0], 0)), self.queues.get(key)
            group = ConsumerGroup(Cursor(main.first if main else 0), Cursor(retry.first if retry else 0))
            self.groups[key] = group
            self.seen_changed.add(key)
        return group

    def acked(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note an acked range for the progress log."""
        self.pending.add(ACKED, *key, retry, start, stop)

    def expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note and count a range that is done for a group because its messages have expired."""
        self.pending.add(ACKED, *key, retry, start, stop, stop - start)
        self.groups[key].count_expired(stop - start)
        self.expired_messages += stop - start

    def in_place(self, key: GroupKey, retry: bool, place: Place, rows: ProgressRows | None = None) -> None:
        """Note a range that is redelivered in its place, for the progress log (or a snapshot of it)."""
        rows = self.pending if rows is None else rows
        if place.until_ms:
            rows.add(UNTIL, *key, retry, 0, place.until_ms)
        rows.add(IN_PLACE, *key, retry, place.start, place.stop, place.times)

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

        Where the store is damaged too, an unreadable run stands for the lost messages."""
        queue = self.queues[key]
        try:
            return queue.run_at(position, self.blocks)
        except CorruptionError as error:
            self.damaged(str(error))
        block, stop = queue.block_at(position)
        runs = self._runs_of(key, block, stop)
        try:
            columns = dict(zip(("position", "store_offset", "row_start", "row_count"), np.array(runs).T, strict=True))
            block.move(self.blocks.append(RunBatch.filled(len(runs), **columns)))
        except DiskFullError:
            pass  # the next call makes it again
        return next(Run(*run) for run in reversed(runs) if run[0] <= position)

    def _runs_of(self, key: QueueKey, block: SpilledBlock, stop: int) -> list[tuple[int, int, int, int]]:
        """The runs of a block, up to the position `stop`, made from the store."""
        expected = block.position
        runs: list[tuple[int, int, int, int]] = []
        for record in self.store.readable_columns(block.store_offset_first, block.store_offset_last + 1, self.damaged):
            for run in grouped_columns(record.columns["subject"], record.columns["target_group"]):
                if run.key == key:
                    first = int(record.columns["position"][run.row_start])
                    if first > expected:
                        runs.append((expected, block.store_offset_first, 0, first - expected))
                    runs.append((first, record.offset, run.row_start, run.row_count))
                    expected = first + run.row_count
        if expected < stop:
            runs.append((expected, block.store_offset_last, 0, stop - expected))
        return runs

    def read(self, run: Run, *, patient: bool = False) -> StoredBatch | None:
        """The stored batch of a run; None, with a damage noted, if it cannot be read or is another record.

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

    def _may_read_soon(self, store_offset: int) -> bool:
        """Whether fewer than READ_TRIES reads at this offset have failed, this one included."""
        failed = self._failed_reads.pop(store_offset, 0) + 1
        self._failed_reads[store_offset] = failed
        if len(self._failed_reads) > _FAILED_READS_MAX:
            del self._failed_reads[next(iter(self._failed_reads))]
        return failed < READ_TRIES

    def damaged(self, detail: str) -> None:
        """Note a damage, up to the bound."""
        if len(self.damages) < _DAMAGES_TOLD_MAX:
            self.damages.append(detail)

    def close(self) -> None:
        """Close the files without making anything durable."""
        self.store.close()
        self.blocks.close()
        self.progress.close()
