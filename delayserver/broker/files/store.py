"""The broker's message store: one append-only log of `StoredBatch` records for all subjects, and a cache over it.

It knows offsets and bytes, but no positions, queues or groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray

from delayserver.broker.limits import BrokerLimits
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, StoreError
from store.logs.message_log import LogDamage, MessageLog
from store.records.batches import StoredBatch
from store.records.record import HEADER_BYTES, BadRecordError, decode_header, verify_columns
from store.records.segment import FILE_HEADER_BYTES, FILE_STORE, Segment


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns of one stored record without its blobs."""

    offset: int
    stop: int
    columns: dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StoreSync:
    """One sync of the store, captured on the event loop. `run` may be called in a thread, in parallel with appends."""

    segment: Segment
    stop: int

    def run(self) -> None:
        """Sync. Raises SyncFailedError (final)."""
        self.segment.sync()


# The most bytes that the columns of a row and its share of a header take.
ROW_BYTES = 128


class BrokerStore:
    """Append, sync, read by offset, retire."""

    def __init__(self, log: MessageLog, limits: BrokerLimits) -> None:
        self._log = log
        self._limits = limits
        self._cache: OrderedDict[int, StoredBatch] = OrderedDict()
        self.cache_bytes = 0

    @classmethod
    def open(cls, fs: FileSystem, directory: str, server_id: int, limits: BrokerLimits, valid_to: int) -> BrokerStore:
        """Open or create. Cuts off a torn tail behind `valid_to`, a logical offset. All records below it are whole."""
        log = MessageLog.open(
            fs, directory, server_id, segment_bytes=limits.segment_bytes, valid_to=valid_to, kind=FILE_STORE
        )
        return cls(log, limits)

    @property
    def damages(self) -> list[LogDamage]:
        """Corruption found while opening."""
        return self._log.damages

    @property
    def first(self) -> int:
        """Offset of the oldest record kept."""
        return self._log.first

    @property
    def end(self) -> int:
        """Offset behind the last record."""
        return self._log.end

    @property
    def synced(self) -> int:
        """Offset below which everything is durable."""
        return self._log.synced

    def growth_bytes(self, batch: StoredBatch) -> int:
        """About how many new bytes of the disk an append of this batch takes."""
        return self._log.growth_bytes(
            len(batch.bodies) + len(batch.properties) + len(batch.ids) + ROW_BYTES * len(batch)
        )

    def append(self, batch: StoredBatch) -> tuple[int, int]:
        """Write one record without syncing; returns its start and end offset. Raises DiskFullError, StoreError."""
        entry = self._log.append([batch])[0]
        self._remember(entry.start, batch)
        return entry.start, entry.end

    def sync_plan(self) -> StoreSync:
        """Capture the sync of all records. It is one file: a sealed segment was synced when its successor was made."""
        base, segment = self._log.locate(self._log.end)
        return StoreSync(segment, base + segment.end)

    def batch(self, offset: int) -> StoredBatch:
        """The record that begins at an offset. Raises CorruptionError if none does."""
        found = self._cache.get(offset)
        if found is not None:
            return found
        entries = self._log.read(offset, self._log.end, self._limits.read_ahead_bytes)
        if not entries or entries[0].start != offset:
            raise CorruptionError(self._log.locate(offset)[1].path, offset, "no record where the queue points to")
        for entry in reversed(entries):
            self._remember(entry.start, cast(StoredBatch, entry.batch))
        return cast(StoredBatch, entries[0].batch)

    def columns(self, start: int, stop: int) -> Iterator[StoredColumns]:
        """The columns of all records between two offsets, without reading blobs. Raises CorruptionError."""
        offset = max(start, self.first)
        while offset < stop:
            base, segment = self._log.locate(offset)
            position = max(offset - base, FILE_HEADER_BYTES)
            if position >= segment.end:
                if base + segment.end >= self._log.end:
                    return
                following = self._log.skip_damage(base + segment.end)
                if following > base + segment.end:
                    raise CorruptionError(segment.path, segment.end, f"the store goes on at offset {following} only")
                offset = following + FILE_HEADER_BYTES
                continue
            found = _read_columns(segment, base, position)
            yield found
            offset = found.stop

    def readable_columns(self, start: int, stop: int, told: Callable[[str], None]) -> Iterator[StoredColumns]:
        """`columns`, passing over damage. `told` is called with a text for each unreadable range."""
        offset = start
        while offset < stop:
            try:
                for record in self.columns(offset, stop):
                    yield record
                    offset = record.stop
                return
            except CorruptionError as error:
                told(str(error))
                damaged, offset = offset, self.skip_damage(offset)
                told(f"store offsets {damaged} to {offset} are passed over")

    def base_of(self, offset: int) -> int:
        """The base of the segment that holds an offset."""
        return int(self._log.locate(offset)[0])

    def skip_damage(self, offset: int) -> int:
        """The offset of the first readable record behind damage that begins at `offset`."""
        base, segment = self._log.locate(offset)
        if offset - base >= segment.end:  # the end of a sealed segment: the damage begins with the next one
            offset = base + segment.end + FILE_HEADER_BYTES
        return self._log.skip_damage(max(offset, base + FILE_HEADER_BYTES))

    def segments(self) -> list[tuple[int, int, str]]:
        """(base, end, path) of every segment, oldest first."""
        return self._log.segments()

    def retire(self, below: int) -> list[str]:
        """Remove the segments that end at or below an offset; returns their paths."""
        removed = self._log.retire(below)
        for offset in [offset for offset in self._cache if offset < self._log.first]:
            self.cache_bytes -= _batch_bytes(self._cache.pop(offset))
        return removed

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    def _remember(self, offset: int, batch: StoredBatch) -> None:
        if offset in self._cache:
            return
        # First in, first out: batches that were read together share one buffer, so they should leave together.
        self._cache[offset] = batch
        self.cache_bytes += _batch_bytes(batch)
        while self.cache_bytes > self._limits.cache_bytes_max:
            _, dropped = self._cache.popitem(last=False)
            self.cache_bytes -= _batch_bytes(dropped)


def _read_columns(segment: Segment, base: int, position: int) -> StoredColumns:
    try:
        header = decode_header(segment.file.pread(position, HEADER_BYTES), position)
        if header.end > segment.end:
            raise BadRecordError("reaches beyond the end of the file")
        columns = verify_columns(header, segment.file.pread(position + HEADER_BYTES, header.columns_bytes))
    except BadRecordError as error:
        raise CorruptionError(segment.path, position, str(error)) from error
    if header.kind != StoredBatch.schema.kind:
        raise StoreError(f"{segment.path}: a record of kind {header.kind} at {position} where messages are expected")
    return StoredColumns(base + position, base + header.end, columns)


def _batch_bytes(batch: StoredBatch) -> int:
    """Bytes of memory of a batch. A constant column takes none."""
    columns = [getattr(batch, name) for name, _ in batch.schema.fields]
    blobs = len(batch.ids) + len(batch.properties) + len(batch.bodies)
    return int(blobs + sum([column.nbytes for column in columns if column.strides != (0,)])) + 2048
