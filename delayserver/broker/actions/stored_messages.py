"""Reading stored messages by their position in a queue. A damaged block of index rows is made again from the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from delayserver.broker.actions.delivered_batch import grouped_columns
from delayserver.broker.files.broker_files import BrokerFiles
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey, SpilledBlock, StoredRun
from delayserver.broker.queues.queue_table import QueueTable
from delayserver.broker.queues.ranges import Range
from delayserver.broker.queues.run_blocks import BLOCK_BYTES_MAX
from delayserver.broker.reads import REBUILD, STORE, ReadNeeded, ReadPlan
from store.errors import CorruptionError, StoreError, UnreadableError
from store.failed_reads import READ_TRIES
from store.records.batches import RunBatch, StoredBatch

# Damaged messages are all counted. Only this many texts are kept.
_TEXTS_MAX = 1000


class Damages:
    """The damage that the broker found: `texts` for people, up to a bound, and how many `messages` it lost."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.messages = 0

    def add(self, text: str) -> None:
        """Note a damage, up to the bound."""
        if len(self.texts) < _TEXTS_MAX:
            self.texts.append(text)

    def count_lost(self, messages: int) -> None:
        """Counts messages that cannot be read and are passed over."""
        self.messages += messages


class StoredMessages:
    """Finds the record of a position and reads it, from memory or by a plan for a worker thread."""

    def __init__(self, files: BrokerFiles, queues: QueueTable, damages: Damages) -> None:
        self._files = files
        self._queues = queues
        self._damages = damages

    def run_at(self, key: QueueKey, position: int) -> StoredRun:
        """The run that holds a position of a queue. A damaged block of index rows is made again from the store.

        Where the store is damaged too, an unreadable run stands for the lost messages. Raises ReadNeeded."""
        queue = self._queues[key]
        try:
            return queue.run_at(position, self._files.blocks)
        except CorruptionError as error:
            self._damages.add(str(error))
        block, stop = queue.block_at(position)
        self._files.reads.find(REBUILD, (key, block.position))  # raises the error of a read that failed
        raise ReadNeeded(self._rebuild_plan(key, block, stop))

    def _rebuild_plan(self, key: QueueKey, block: SpilledBlock, stop: int) -> ReadPlan:
        """A read of the store from which a block is made again, up to the position `stop`."""
        first, last, position = block.store_offset_first, block.store_offset_last, block.position
        told: list[str] = []
        reach = (max(first, self._files.store.first), last + 1)
        # The block stands for good: messages that it does not have are lost to consumers.
        patient = self._files.reads.failures(REBUILD, reach[0]) + 1 < READ_TRIES

        def read() -> dict[str, RunBatch]:
            runs = self._runs_of(key, (first, last), (position, stop), told.append, patient=patient)
            columns = dict(zip(("position", "store_offset", "row_start", "row_count"), np.array(runs).T, strict=True))
            return {"block": RunBatch.filled(len(runs), **columns)}

        return ReadPlan(REBUILD, (key, position), reach, BLOCK_BYTES_MAX, read, partial(self._rebuilt, block, told))

    def _rebuilt(self, block: SpilledBlock, told: list[str], found: dict[str, RunBatch]) -> None:
        for text in told:
            self._damages.add(text)
        if not found:
            return
        with suppress(StoreError):  # it is in memory; without room on the disk a later read makes it again
            block.move(self._files.blocks.append(found["block"]))
        self._files.blocks.keep({block.block_offset: found["block"]})

    def _runs_of(
        self, key: QueueKey, offsets: Range, positions: Range, told: Callable[[str], None], *, patient: bool
    ) -> list[tuple[int, int, int, int]]:
        """The runs of the records in a range of store offsets (both ends count), for a range of positions. Runs in a
        worker thread. `told` is called with texts about damage."""
        expected, stop = positions
        runs: list[tuple[int, int, int, int]] = []
        for record in self._files.store.readable_columns(offsets[0], offsets[1] + 1, told, patient=patient):
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

    def read(self, run: StoredRun, *, patient: bool = False) -> StoredBatch | None:
        """The stored batch of a run; None, with a damage noted, if it cannot be read or is another record. Raises
        ReadNeeded if it is not in memory.

        With `patient` the first failed reads of the disk raise UnreadableError, because a later read may succeed."""
        try:
            batch = self._files.store.batch(run.store_offset)
            if int(batch.position[run.row_start]) == run.position:
                return batch
            detail = f"store offset {run.store_offset}: position {run.position} is not there"
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError) and self._may_read_soon(run.store_offset):
                raise
            detail = str(error)
        self._damages.add(detail)
        return None

    def read_for(self, wanted: tuple[int, int], run: StoredRun, queue: ConsumeQueue) -> StoredBatch | None:
        """`read`, patiently, for a pull that wants this many messages and bytes: a plan reads those behind the run too."""
        try:
            return self.read(run, patient=True)
        except ReadNeeded:
            messages, bytes_max = wanted
            offsets = queue.store_offsets(run.position, run.position + messages, self._files.blocks)
            raise ReadNeeded(self._files.store.read_plan(run.store_offset, offsets[1:], bytes_max)) from None

    def _may_read_soon(self, store_offset: int) -> bool:
        """Whether fewer than READ_TRIES reads at this offset have failed, the last one included."""
        return self._files.reads.failures(STORE, store_offset) < READ_TRIES
