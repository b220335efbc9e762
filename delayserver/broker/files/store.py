"""The broker's message store: one append-only log of `StoredBatch` records for all subjects, and a cache over it.

It knows offsets and bytes, but no positions, queues or groups.

Batches that were read back have half of the cache at most, so readers of a backlog do not displace new messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from numpy.typing import NDArray

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.reads import KEYS, REBUILD, SELECTED, STORE, TIMES, ReadNeeded, ReadPlan, Reads
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, StoreError, UnreadableError
from store.logs.message_log import LogDamage, LogEntry, MessageLog
from store.records.batches import I64, StoredBatch
from store.records.lazy_record import LazyRecord
from store.records.record import HEADER_BYTES, BadRecordError, decode_header, verify_columns
from store.records.scan import read_ahead
from store.records.segment import FILE_HEADER_BYTES, FILE_STORE, Segment
from store.records.stored_rows import StoredRows


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
ROW_BYTES = 148
# About the columns of a record of some hundred messages, for the bound of all reads.
TIMES_BYTES_MAX = 64 << 10


class BrokerStore:
    """Append, sync, read by offset, retire."""

    def __init__(self, log: MessageLog, limits: BrokerLimits, reads: Reads) -> None:
        self.log = log
        self._limits = limits
        self._reads = reads
        # Batches that were appended lately, and batches that were read. Readers of a backlog do not displace the former.
        self._appended = _Batches()
        self._read_back = _Batches()
        # In a member of a cluster: records that were made here and that its log has not been offered yet.
        self._made: list[StoredBatch | StoredRows] | None = None

    @classmethod
    def open(
        cls, fs: FileSystem, directory: str, server_id: int, limits: BrokerLimits, valid_to: int, reads: Reads
    ) -> BrokerStore:
        """Open or create. Cuts off a torn tail behind `valid_to`, a logical offset. All records below it are whole."""
        log = MessageLog.open(
            fs, directory, server_id, segment_bytes=limits.segment_bytes, valid_to=valid_to, kind=FILE_STORE
        )
        return cls(log, limits, reads)

    @property
    def damages(self) -> list[LogDamage]:
        """Corruption found while opening."""
        return self.log.damages

    @property
    def first(self) -> int:
        """Offset of the oldest record kept."""
        return self.log.first

    @property
    def end(self) -> int:
        """Offset behind the last record."""
        return self.log.end

    @property
    def synced(self) -> int:
        """Offset below which everything is durable."""
        return self.log.synced

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cached batches."""
        return self._appended.bytes + self._read_back.bytes

    def keep_made(self) -> None:
        """From now on, keep what is appended for `take_made`."""
        self._made = []

    def take_made(self) -> list[StoredBatch | StoredRows]:
        """Take what was appended since the last call, in order."""
        made, self._made = self._made or [], []
        return made

    @property
    def waits(self) -> bool:
        """Whether a record waits for a sync, or in a member of a cluster for its log."""
        return self.log.end > self.log.synced if self._made is None else bool(self._made)

    def growth_bytes(self, *batches: StoredBatch | StoredRows) -> int:
        """About how many new bytes of the disk an append of these batches takes."""
        return self.log.growth_bytes(sum([size_of(batch) for batch in batches]))

    def append(self, batch: StoredBatch) -> tuple[int, int]:
        """Write one record without syncing; returns its start and end offset. Raises DiskFullError, StoreError."""
        entry = self.log.append([batch])[0]
        if self._made is not None:
            self._made.append(batch)
        self._appended.add(entry.start, batch)
        self._appended.shrink(self._limits.cache_bytes_max - self._read_back.bytes)
        return entry.start, entry.end

    def append_all(self, batches: Sequence[StoredBatch | StoredRows], *, durably: bool) -> list[LogEntry]:
        """Write records, all or none. `keep` follows. With `durably` they are synced as well, as quick as the disk can.

        Raises DiskFullError (nothing appended), StoreError, SyncFailedError (final)."""
        assert not durably or self._made is None, "a member has its log to make records durable"
        if self._made is None:
            return self.log.append_durably(batches) if durably else self.log.append(batches)
        entries = self.log.append(batches)
        self._made += batches
        return entries

    def keep(self, entries: Sequence[LogEntry]) -> None:
        """Keep records that `append_all` wrote in memory, for consumers that keep up."""
        for entry in entries:
            self._appended.add(entry.start, cast(StoredBatch | StoredRows, entry.batch))
        self._appended.shrink(self._limits.cache_bytes_max - self._read_back.bytes)

    def sync_plan(self) -> StoreSync:
        """Capture the sync of all records. It is one file: a sealed segment was synced when its successor was made."""
        base, segment = self.log.locate(self.log.end)
        return StoreSync(segment, base + segment.end)

    def batch(self, offset: int) -> StoredBatch:
        """The record that begins at an offset. Raises ReadNeeded if it is not in memory, CorruptionError if it is not on
        the disk either."""
        found = self.in_memory(offset)
        if found is None:
            found = self._reads.find(STORE, offset)
        if found is None:
            raise ReadNeeded(self.read_plan(offset))
        return found

    def read_plan(self, offset: int, others: Sequence[int] = (), bytes_max: int = 0) -> ReadPlan:
        """A read of the record that begins at an offset, and of those behind it that one read of the disk brings.

        Then of the records at the offsets `others`, ascending and above the first, until `bytes_max` bytes were read."""
        ahead, end = self._limits.read_ahead_bytes, self.log.end
        read = partial(self._read, [offset, *others], end, bytes_max)
        return ReadPlan(STORE, offset, (offset, min(offset + ahead, end)), max(ahead, bytes_max), read, self._put)

    def _read(self, offsets: list[int], end: int, bytes_max: int) -> dict[int, StoredBatch]:
        found: dict[int, StoredBatch] = {}
        total = 0
        for offset in offsets:
            if offset in found:
                continue
            if found and total >= bytes_max:
                break
            try:
                entries = self.log.read(offset, end, self._limits.read_ahead_bytes)
            except CorruptionError:
                if found:
                    break  # the call that needs this record reads it again, and gets the error
                raise
            if entries and entries[0].start == offset:
                total += entries[-1].end - offset
                found |= {entry.start: cast(StoredBatch, entry.batch) for entry in entries}
        if offsets[0] not in found:
            path = self.log.locate(offsets[0])[1].path
            raise CorruptionError(path, offsets[0], "no record where the queue points to")
        return found

    def _put(self, found: dict[int, StoredBatch]) -> None:
        for offset in reversed(found):
            if offset >= self.log.first and self._appended.get(offset) is None:
                self._read_back.add(offset, found[offset])
        self._read_back.shrink(self._limits.cache_bytes_max // 2)
        self._appended.shrink(self._limits.cache_bytes_max - self._read_back.bytes)

    def in_memory(self, offset: int) -> StoredBatch | None:
        """The record that begins at an offset, if it is in memory."""
        found: StoredBatch | None = self._appended.get(offset)
        return self._read_back.get(offset) if found is None else found

    def columns(self, start: int, stop: int) -> Iterator[StoredColumns]:
        """The columns of all records between two offsets, without reading blobs. Raises CorruptionError."""
        offset = max(start, self.first)
        while offset < stop:
            base, segment = self.log.locate(offset)
            position = max(offset - base, FILE_HEADER_BYTES)
            if position >= segment.end:
                if base + segment.end >= self.log.end:
                    return
                following = self.log.skip_damage(base + segment.end)
                if following > base + segment.end:
                    raise CorruptionError(segment.path, segment.end, f"the store goes on at offset {following} only")
                offset = following + FILE_HEADER_BYTES
                continue
            found = _read_columns(segment, base, position)
            yield found
            offset = found.stop

    def holds(self, offset: int) -> bool:
        """Whether the record that begins at an offset is in memory."""
        return self._appended.holds(offset) or self._read_back.holds(offset)

    def records_at(self, offsets: Sequence[int], end: int) -> Iterator[LazyRecord]:
        """The records that begin at these offsets, which ascend, below `end`. Those that stand together are read together.
        For a worker thread. Ends before the first record that cannot be read or does not verify."""
        reader, read_from = None, -1
        for offset in offsets:
            base, segment = self.log.locate(offset)
            if reader is None or base != read_from:
                reader, read_from = _RecordReader(segment, min(segment.end, end - base), self._limits), base
            record = reader.record(offset - base)
            if record is None:
                return
            yield record

    def times(self, offset: int) -> I64:
        """The `dispatched_us` column of the record at an offset. Raises ReadNeeded if it is not read, StoreError."""
        found: I64 | None = self._reads.find(TIMES, offset)
        if found is None:
            read = partial(self._read_times, offset)
            raise ReadNeeded(ReadPlan(TIMES, offset, (offset, offset), TIMES_BYTES_MAX, read, _keep_nothing))
        return found

    def _read_times(self, offset: int) -> dict[int, I64]:
        base, segment = self.log.locate(offset)
        return {offset: _read_columns(segment, base, offset - base).columns["dispatched_us"]}

    def readable_columns(
        self, start: int, stop: int, told: Callable[[str], None], *, patient: bool = False
    ) -> Iterator[StoredColumns]:
        """`columns`, passing over damage. Calls `told` with texts about each unreadable range. With `patient` raises
        UnreadableError where the disk cannot read: it may read that later."""
        offset = start
        while offset < stop:
            try:
                for record in self.columns(offset, stop):
                    yield record
                    offset = record.stop
                return
            except CorruptionError as error:
                if patient and isinstance(error, UnreadableError):
                    raise
                told(str(error))
                damaged, offset = offset, self.skip_damage(offset)
                told(f"store offsets {damaged} to {offset} are passed over")

    def base_of(self, offset: int) -> int:
        """The base of the segment that holds an offset."""
        return int(self.log.locate(offset)[0])

    def skip_damage(self, offset: int) -> int:
        """The offset of the first readable record behind damage that begins at `offset`."""
        base, segment = self.log.locate(offset)
        if offset - base >= segment.end:  # the end of a sealed segment: the damage begins with the next one
            offset = base + segment.end + FILE_HEADER_BYTES
        return self.log.skip_damage(max(offset, base + FILE_HEADER_BYTES))

    def retire(self, below: int) -> list[str]:
        """Remove the segments that end at or below an offset; returns their paths. A segment that a read needs stays."""
        reading = self._reads.lowest(STORE, REBUILD, KEYS, SELECTED, TIMES)
        removed = self.log.retire(below if reading is None else min(below, reading))
        self._appended.drop_below(self.log.first)
        self._read_back.drop_below(self.log.first)
        return removed

    def close(self) -> None:
        """Close the files."""
        self.log.close()


class _RecordReader:
    """Reads records of one segment that stand at known places below `stop`, some read-ahead at a time."""

    def __init__(self, segment: Segment, stop: int, limits: BrokerLimits) -> None:
        self._file = segment.file
        self._stop = stop
        self._ahead_bytes = limits.read_ahead_bytes
        self._buffer = memoryview(b"")
        self._start = 0

    def record(self, position: int) -> LazyRecord | None:
        """The record of a message at a position; None if it cannot be read or does not verify."""
        try:
            header = decode_header(self._bytes(position, HEADER_BYTES), position)
            if header.end > self._stop or header.kind != StoredBatch.schema.kind:
                return None
            return LazyRecord(header, self._bytes(position + HEADER_BYTES, header.body_bytes))
        except BadRecordError:
            return None

    def _bytes(self, position: int, length: int) -> memoryview:
        begin = position - self._start
        if begin < 0 or begin + length > len(self._buffer):
            want = min(max(length, self._ahead_bytes), max(self._stop - position, length))
            self._buffer = memoryview(read_ahead(self._file, position, length, want))
            self._start, begin = position, 0
        return self._buffer[begin : begin + length]


class _Batches:
    """Cached batches by offset, first in, first out: batches that were read together share one buffer, so they should
    leave together."""

    __slots__ = ("_batches", "bytes")

    def __init__(self) -> None:
        # Each with the bytes that it counts for. Those of rows are enough for their columns too.
        self._batches: OrderedDict[int, tuple[StoredBatch | StoredRows, int]] = OrderedDict()
        self.bytes = 0

    def get(self, offset: int) -> StoredBatch | None:
        """The batch at an offset, if it is there. Rows become columns when they are asked for."""
        found = self._batches.get(offset)
        if found is None:
            return None
        batch, size = found
        if type(batch) is StoredRows:
            batch = batch.to_batch()
            self._batches[offset] = batch, size
        return cast(StoredBatch, batch)

    def holds(self, offset: int) -> bool:
        """Whether the batch at an offset is there."""
        return offset in self._batches

    def add(self, offset: int, batch: StoredBatch | StoredRows) -> None:
        """Add a batch behind all others, if it is not there."""
        if offset not in self._batches:
            size = _batch_bytes(batch)
            self._batches[offset] = batch, size
            self.bytes += size

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest batches until the rest takes `bytes_max` at most."""
        while self.bytes > max(bytes_max, 0):
            _, (_, size) = self._batches.popitem(last=False)
            self.bytes -= size

    def drop_below(self, offset: int) -> None:
        """Drop the batches below an offset."""
        for place in [place for place in self._batches if place < offset]:
            self.bytes -= self._batches.pop(place)[1]


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


def _keep_nothing(found: dict[int, I64]) -> None:
    """The times of a record are no use to later calls."""


def size_of(batch: StoredBatch | StoredRows) -> int:
    """About the bytes of a record."""
    if type(batch) is StoredRows:
        return batch.blob_bytes + ROW_BYTES * len(batch)
    assert isinstance(batch, StoredBatch)
    blobs = len(batch.ids) + len(batch.properties) + len(batch.bodies) + len(batch.order_keys)
    return blobs + ROW_BYTES * len(batch)


def _batch_bytes(batch: StoredBatch | StoredRows) -> int:
    """Bytes of memory of a batch. A constant column takes none."""
    if type(batch) is StoredRows:
        return size_of(batch) + 2048
    assert isinstance(batch, StoredBatch)
    columns = [getattr(batch, name) for name, _ in batch.schema.fields]
    blobs = len(batch.ids) + len(batch.properties) + len(batch.bodies) + len(batch.order_keys)
    return int(blobs + sum([column.nbytes for column in columns if column.strides != (0,)])) + 2048
