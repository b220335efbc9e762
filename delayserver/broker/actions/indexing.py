"""The entries of a segment's index, made from the segment. Runs in a worker thread, with files of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.broker.files.store_index import IndexRows, write_index
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.records.batches import I64, U64, StoredBatch
from store.records.column_batch import ragged_offsets
from store.records.id_hash import hash_id, hash_ids, mix
from store.records.scan import Damage, ScanReport
from store.records.segment import FILE_HEADER_BYTES, FILE_STORE, FileHeader, Segment

KEYS_PROPERTY = "keys"
"""The property with the words by which a message can be found, separated by spaces."""

# Ids, ids that follow from the sequence, and keys share one index: each kind has hashes of its own.
_ID, _DERIVED, _KEY = (np.uint64(salt) for salt in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
# Blobs without the name of the property are not unpacked. msgpack has several forms for its length.
_NAME = KEYS_PROPERTY.encode()


# The records of a step of work: about 3 ms.
STEP_ROWS = 8_192
STEP_BYTES = 4 << 20


class StoredRecord(NamedTuple):
    """A record of the store, with the store offsets of its start and its end."""

    offset: int
    end: int
    batch: StoredBatch


@dataclass(frozen=True, slots=True)
class StoreSegment:
    """A segment of the store as it was on the event loop: its first store offset, the end of its records, its path, and
    the path under which a start finds it."""

    base: int
    end: int
    path: str
    name: str
    sealed: bool


def hash_of_id(message_id: bytes) -> int:
    """Where the index has messages with this id of the client."""
    return _signed(hash_id(message_id), _ID)


def hash_of_derived(server_id: int, sequence: int) -> int:
    """Where the index has the message with this sequence that was sent without an id."""
    return int(_derived(np.array([server_id], np.int64), np.array([sequence], np.int64))[0])


def hash_of_key(key: bytes) -> int:
    """Where the index has messages with this key."""
    return _signed(hash_id(key), _KEY)


def _signed(hashed: int, salt: np.uint64) -> int:
    return int(mix(np.array([hashed], np.uint64) ^ salt).view(np.int64)[0])


def _derived(server_id: I64, sequence: I64) -> I64:
    mixed: U64 = mix(mix(server_id.astype(np.uint64) ^ _DERIVED) ^ sequence.astype(np.uint64))
    return mixed.view(np.int64)


def origins(batch: StoredBatch) -> I64:
    """The sequence that names each message, i64[n]: that of the original where the row is a redelivery of it."""
    return _origins(batch.origin_sequence, batch.sequence)


def _origins(origin_sequence: I64, sequence: I64) -> I64:
    named: I64 = np.where(origin_sequence != 0, origin_sequence, sequence)
    return named


def keys_of(properties: bytes) -> list[bytes]:
    """The keys in a msgpack map of properties."""
    value = msgpack.unpackb(properties).get(KEYS_PROPERTY, "")
    return list(dict.fromkeys(value.encode().split()))


def index_rows(records: Sequence[StoredRecord]) -> IndexRows:
    """The rows of some stored records for the index, unordered. Redeliveries, which go to one group, are left out.

    Records are taken together, because each call of numpy in a thread makes the event loop wait for the GIL."""
    batches = [record.batch for record in records]
    counts = [len(batch) for batch in batches]

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(batch, name) for batch in batches])

    hashes = _derived(column("server_id"), _origins(column("origin_sequence"), column("sequence")))
    lengths = column("ids_length")
    if lengths.any():
        ids = hash_ids(b"".join([batch.ids for batch in batches]), lengths)
        hashes = np.where(lengths != 0, mix(ids ^ _ID).view(np.int64), hashes)
    places = np.repeat(np.array([record.offset for record in records], np.int64), counts)
    rows = np.concatenate([np.arange(count, dtype=np.uint32) for count in counts])
    wanted = np.flatnonzero(column("target_group") == 0)
    return IndexRows.together([IndexRows(hashes[wanted], places[wanted], rows[wanted]), _key_rows(records)])


def _key_rows(records: Sequence[StoredRecord]) -> IndexRows:
    """The rows of the keys in some records, unordered."""
    found = [
        (hash_of_key(key), record.offset, row)
        for record in records
        for row, key in _keys(record.batch)
        if not record.batch.target_group[row]
    ]
    hashes, places, rows = zip(*found, strict=True) if found else ((), (), ())
    return IndexRows(np.array(hashes, np.int64), np.array(places, np.int64), np.array(rows, np.uint32))


def _keys(batch: StoredBatch) -> Iterator[tuple[int, bytes]]:
    """(row, key) of each key in a batch."""
    blob = bytes(batch.properties)
    if _NAME not in blob:
        return
    offsets = ragged_offsets(batch.properties_length).tolist()
    for row in range(len(batch)):
        properties = blob[offsets[row] : offsets[row + 1]]
        if _NAME in properties:
            yield from ((row, key) for key in keys_of(properties))


def open_segment(fs: FileSystem, segment: StoreSegment, server_id: int) -> Segment:
    """The file of a segment, to read. The segment that grows gets its name with its first sync, which may come meanwhile.

    Raises FileNotFoundError if retention removed the segment, StoreError."""
    for path in (segment.name, segment.path):
        with suppress(FileNotFoundError):
            return _open(fs, path, segment.base, server_id)
    return _open(fs, segment.name, segment.base, server_id)


def _open(fs: FileSystem, path: str, base: int, server_id: int) -> Segment:
    try:
        return Segment.open(fs, path, FILE_STORE, server_id, write=False)
    except CorruptionError:  # of its header: the start reported it
        return Segment.open_by_name(fs, path, FileHeader(FILE_STORE, server_id, base), write=False)


def records_of(
    fs: FileSystem, segment: StoreSegment, server_id: int, report: ScanReport
) -> Generator[StoredRecord, None, None]:
    """Yields the readable records of a segment from the offset `report.end` of its file on. Damaged records go to
    `report` and are skipped, as pulls skip them. Raises FileNotFoundError if retention removed the segment, StoreError."""
    opened = open_segment(fs, segment, server_id)
    try:
        opened.trust(segment.end - segment.base, segment.end - segment.base)
        for header, batch in opened.records(report.end, segment.end - segment.base, report):
            if isinstance(batch, StoredBatch):
                yield StoredRecord(segment.base + header.offset, segment.base + header.end, batch)
    finally:
        opened.file.close()


def _runs_of(fs: FileSystem, segment: StoreSegment, server_id: int, report: ScanReport) -> Iterator[list[StoredRecord]]:
    """The records of `records_of`, as many together as make a step of work."""
    run: list[StoredRecord] = []
    rows = 0
    with closing(records_of(fs, segment, server_id, report)) as records:
        for record in records:
            run.append(record)
            rows += len(record.batch)
            if rows >= STEP_ROWS or record.end - run[0].offset >= STEP_BYTES:
                yield run
                run, rows = [], 0
    if run:
        yield run


def _unreadable(report: ScanReport) -> Damage | None:
    """The first range that the disk could not read. It may read that later."""
    return next((damage for damage in report.damages if damage.errno), None)


def rows_of_segment(fs: FileSystem, segment: StoreSegment, server_id: int) -> IndexRows:
    """All rows for the index of a segment, in the order of their hashes. Raises as `records_of`."""
    report = ScanReport(FILE_HEADER_BYTES)
    return IndexRows.joined([index_rows(run) for run in _runs_of(fs, segment, server_id, report)])


@dataclass(slots=True)
class TailIndex:
    """The index of the segment that grows, in memory: 20 bytes a message. It grows when somebody searches.

    One search at a time uses it, in any thread. `behind`: rows behind a range that the disk could not read. The next search
    reads them again."""

    base: int = -1
    covered: int = 0
    behind: IndexRows = field(default_factory=partial(IndexRows.joined, []))
    _parts: list[IndexRows] = field(default_factory=list)

    def extend(self, fs: FileSystem, segment: StoreSegment, server_id: int) -> None:
        """Take in what was stored since the last search. Raises as `records_of`; then it takes in nothing."""
        if self.base != segment.base:
            self.base, self.covered, self._parts = segment.base, segment.base + FILE_HEADER_BYTES, []
        report = ScanReport(self.covered - segment.base)
        new = IndexRows.joined([index_rows(run) for run in _runs_of(fs, segment, server_id, report)])
        damage = _unreadable(report)
        covered = segment.base + (report.end if damage is None else damage.start)
        before = new.place < covered
        self.behind = new.where(~before)
        self.covered = covered
        if before.any():
            self._parts.append(new.where(before))
        # As in a log-structured merge tree: few parts, and each row is merged few times.
        while len(self._parts) > 1 and len(self._parts[-1]) * 4 >= len(self._parts[-2]):
            self._parts[-2:] = [IndexRows.joined(self._parts[-2:])]

    def with_hash(self, hashed: int) -> IndexRows:
        """The rows with one hash."""
        return IndexRows.joined([part.with_hash(hashed) for part in (*self._parts, self.behind)])


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Making the index of one sealed segment, by `run` or by all of `steps`; then call `Indexes.finish_index`."""

    fs: FileSystem
    segment: StoreSegment
    server_id: int
    path: str

    def run(self) -> None:
        """Read the segment and write its index, in any thread. Raises what a step raises."""
        for _ in self.steps():
            pass

    def steps(self) -> Generator[None, None, None]:
        """Read the segment and write its index. Each step blocks for some milliseconds, in any thread. Raises
        FileNotFoundError if retention removed the segment, UnreadableError where the disk cannot read it, DiskFullError,
        StoreError."""
        parts = []
        report = ScanReport(FILE_HEADER_BYTES)
        for run in _runs_of(self.fs, self.segment, self.server_id, report):
            parts.append(index_rows(run))
            yield
        if (damage := _unreadable(report)) is not None:  # an index without these messages would hide them for ever
            raise damage.error(self.segment.path)
        rows = IndexRows.joined(parts)
        yield
        yield from write_index(self.fs, self.path, self.server_id, self.segment.base, rows)
