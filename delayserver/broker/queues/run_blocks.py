"""Blocks of spilled index rows: a rolling log of `RunBatch` records, each with the rows of one queue.

A block stays until retention removes the store segments that it points to. After a crash only the blocks that the
checkpoint names are used. The rows of the others are made again from the store.
"""

from __future__ import annotations

from collections import OrderedDict

from delayserver.broker.limits import BrokerLimits
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.logs.message_log import MessageLog
from store.records.batches import RunBatch
from store.records.segment import FILE_QUEUE, Segment


class RunBlocks:
    """Append and read blocks. A bounded number of them is cached."""

    def __init__(self, log: MessageLog, limits: BrokerLimits) -> None:
        self._log = log
        self._limits = limits
        self._cache: OrderedDict[int, RunBatch] = OrderedDict()

    @classmethod
    def open(cls, fs: FileSystem, directory: str, server_id: int, limits: BrokerLimits, valid_to: int) -> RunBlocks:
        """Open or create. Blocks behind `valid_to`, from the checkpoint, may be torn and are not used."""
        log = MessageLog.open(
            fs, directory, server_id, segment_bytes=limits.queue_segment_bytes, valid_to=valid_to, kind=FILE_QUEUE
        )
        return cls(log, limits)

    @property
    def end(self) -> int:
        """Offset behind the last block."""
        return self._log.end

    def append(self, runs: RunBatch) -> int:
        """Write a block without syncing; returns its offset. Raises DiskFullError, StoreError."""
        return self._log.append([runs])[0].start

    def read(self, offset: int) -> RunBatch:
        """The block at an offset. Raises CorruptionError."""
        found = self._cache.get(offset)
        if found is None:
            entries = self._log.read(offset, self._log.end, 1)
            if not entries or entries[0].start != offset or not isinstance(entries[0].batch, RunBatch):
                raise CorruptionError(self._log.locate(offset)[1].path, offset, "no block of index rows")
            found = entries[0].batch
            # A view would keep all bytes of the read in memory.
            found = RunBatch(*[getattr(found, name).copy() for name, _ in RunBatch.schema.fields])
            self._cache[offset] = found
            while len(self._cache) > self._limits.blocks_cached_max:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(offset)
        return found

    def tail(self) -> Segment:
        """The file to sync before a checkpoint names its blocks. Earlier files were synced when sealed."""
        return self._log.locate(self._log.end)[1]

    def retire(self, below: int) -> None:
        """Remove the files that lie below `below`, the offset of the oldest block in use."""
        self._log.retire(below)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
