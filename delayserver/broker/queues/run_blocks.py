"""Blocks of spilled index rows: a rolling log of `RunBatch` records, each with the rows of one queue.

A block stays until retention removes the store segments that it points to. After a crash only the blocks that the
checkpoint names are used. The rows of the others are made again from the store.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.reads import BLOCKS, ReadNeeded, ReadPlan, Reads
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.logs.message_log import MessageLog
from store.records.batches import RunBatch
from store.records.segment import FILE_QUEUE, Segment

# Memory of a block of 2,048 index rows, with the bytes of its read.
BLOCK_BYTES_MAX = 128 << 10


class RunBlocks:
    """Append and read blocks. A bounded number of them is cached."""

    def __init__(self, log: MessageLog, limits: BrokerLimits, reads: Reads) -> None:
        self.log = self._log = log
        self._limits = limits
        self._reads = reads
        self._cache: OrderedDict[int, RunBatch] = OrderedDict()

    @classmethod
    def open(
        cls, fs: FileSystem, directory: str, server_id: int, limits: BrokerLimits, valid_to: int, reads: Reads
    ) -> RunBlocks:
        """Open or create. Blocks behind `valid_to`, from the checkpoint, may be torn and are not used."""
        log = MessageLog.open(
            fs, directory, server_id, segment_bytes=limits.queue_segment_bytes, valid_to=valid_to, kind=FILE_QUEUE
        )
        return cls(log, limits, reads)

    @property
    def end(self) -> int:
        """Offset behind the last block."""
        return self._log.end

    def append(self, runs: RunBatch) -> int:
        """Write a block without syncing; returns its offset. Raises DiskFullError, StoreError."""
        return self._log.append([runs])[0].start

    def read(self, offset: int) -> RunBatch:
        """The block at an offset. Raises ReadNeeded if it is not in memory, CorruptionError."""
        found = self._cache.get(offset)
        if found is not None:
            self._cache.move_to_end(offset)
            return found
        held: RunBatch | None = self._reads.find(BLOCKS, offset)
        if held is None:
            read = partial(self._read, offset, self._log.end)
            raise ReadNeeded(ReadPlan(BLOCKS, offset, (offset, offset), BLOCK_BYTES_MAX, read, self.keep))
        return held

    def _read(self, offset: int, end: int) -> dict[int, RunBatch]:
        entries = self._log.read(offset, end, 1)
        if not entries or entries[0].start != offset or not isinstance(entries[0].batch, RunBatch):
            raise CorruptionError(self._log.locate(offset)[1].path, offset, "no block of index rows")
        found = entries[0].batch
        # A view would keep all bytes of the read in memory.
        return {offset: RunBatch(*[getattr(found, name).copy() for name, _ in RunBatch.schema.fields])}

    def keep(self, found: dict[int, RunBatch]) -> None:
        """Put blocks, by their offsets, into the cache."""
        self._cache |= found
        while len(self._cache) > self._limits.blocks_cached_max:
            self._cache.popitem(last=False)

    def load(self, offset: int) -> RunBatch:
        """The block at an offset, read anew. May run in another thread. Raises CorruptionError."""
        return self._read(offset, self._log.end)[offset]

    def tail(self) -> Segment:
        """The file to sync before a checkpoint names its blocks. Earlier files were synced when sealed."""
        return self._log.locate(self._log.end)[1]

    def retire(self, below: int) -> None:
        """Remove the files that lie below `below`, the offset of the oldest block in use, and below all running reads."""
        reading = self._reads.lowest(BLOCKS)
        self._log.retire(below if reading is None else min(below, reading))

    def close(self) -> None:
        """Close the files."""
        self._log.close()
