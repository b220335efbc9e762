"""Finding stored messages by their id or by a key. A search runs in a worker thread, with files of its own.

The indexes of the segments propose rows. The search reads their records and compares the bytes, so it does not confuse
two messages with one hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.indexing import (
    IndexPlan,
    StoreSegment,
    TailIndex,
    hash_of_derived,
    hash_of_id,
    hash_of_key,
    keys_of,
    open_segment,
    origins,
    rows_of_segment,
)
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.store_index import IndexRows, base_of, index_path, search_index
from delayserver.broker.pulled_batch import PullBudget
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, DiskFullError, FormatError, UnreadableError
from store.logs.message_log_opening import segment_path
from store.records.batches import U32, StoredBatch
from store.records.column_batch import ragged_rows
from store.records.record import HEADER_BYTES, BadRecordError, decode_body, decode_header
from store.records.segment import FILE_HEADER_BYTES

Place = tuple[int, int]
"""Store offset of a record, and a row in it."""


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A search for stored messages with an id or with a key; exactly one of `message_id` and `key` is given.

    `derived`: server id and sequence, if the id has the form of one that a server derives for a message without an id.
    `subject`: a code, 0 for all. `from_us` and `to_us` (not included) bound the time of dispatch. The search begins behind
    `after` and ends with `messages_max` messages, or before the message that goes beyond `bytes_max` bytes, but finds one
    at least. All bytes of a message count, as in a pull.
    """

    message_id: bytes | None = None
    derived: tuple[int, int] | None = None
    key: bytes | None = None
    subject: int = 0
    from_us: int = 0
    to_us: int = 1 << 62
    after: Place = (-1, 0)
    messages_max: int = 1
    bytes_max: int = 1 << 62

    def hashes(self) -> list[int]:
        """The hashes under which an index has such messages."""
        if self.key is not None:
            return [hash_of_key(self.key)]
        assert self.message_id is not None
        derived = [] if self.derived is None else [hash_of_derived(*self.derived)]
        return [hash_of_id(self.message_id), *derived]

    def matches(self, batch: StoredBatch) -> NDArray[np.bool_]:
        """The rows that match, bool[n]."""
        right = (batch.dispatched_us >= self.from_us) & (batch.dispatched_us < self.to_us)
        if self.subject:
            right &= batch.subject == self.subject
        named = self._has_key(batch) if self.key is not None else self._has_id(batch)
        return right & np.array(named, np.bool_)

    def _has_key(self, batch: StoredBatch) -> list[bool]:
        return [
            bool(properties) and self.key in keys_of(properties)
            for properties in ragged_rows(batch.properties, batch.properties_length)
        ]

    def _has_id(self, batch: StoredBatch) -> list[bool]:
        named = zip(batch.server_id.tolist(), origins(batch).tolist(), strict=True)
        ids = ragged_rows(batch.ids, batch.ids_length)
        return [own == self.message_id if own else who == self.derived for own, who in zip(ids, named, strict=True)]


@dataclass(slots=True)
class FindResult:
    """Found messages in the order of the store. `next`: the search goes on behind it; None if it is complete.

    `made`: segments whose index was made on the way. `damages`: what was met, with path and offset."""

    batches: list[StoredBatch] = field(default_factory=list)
    next: Place | None = None
    made: list[int] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    count: int = 0
    last: Place = (-1, 0)
    """The place of the last message."""

    def add(self, batch: StoredBatch, last: Place) -> None:
        """Take found messages; the last of them is at `last`."""
        self.batches.append(batch)
        self.count += len(batch)
        self.last = last

    def go_on(self) -> None:
        """Notes that there is no room for more: the caller goes on with another request."""
        self.next = self.last

    def messages(self) -> StoredBatch:
        """The found messages as one batch."""
        return StoredBatch.concatenate(self.batches) if self.batches else StoredBatch.filled(0)


@dataclass(frozen=True, slots=True)
class FindPlan:
    """One search, captured on the event loop. `run` blocks, in any thread, one search at a time."""

    fs: FileSystem
    directory: str
    server_id: int
    segments: list[StoreSegment]
    tail: TailIndex
    query: StoredQuery

    def run(self) -> FindResult:
        """Search all segments, oldest first. Raises StoreError if the disk refuses."""
        result = FindResult()
        room = PullBudget(self.query.messages_max, self.query.bytes_max)
        for segment in self.segments:
            if segment.end > self.query.after[0]:
                with suppress(FileNotFoundError):  # retention removed the segment meanwhile
                    self._search(segment, result, room)
            if result.next is not None:
                break
        return result

    def _search(self, segment: StoreSegment, result: FindResult, room: PullBudget) -> None:
        query = self.query
        for place, rows in _by_record(self._proposed(segment, result), query.after):
            batch = self._read(segment, place, result)
            if batch is None:
                continue
            inside = rows[rows < len(batch)].astype(np.intp)
            inside = inside[query.matches(batch.take(inside))]
            if not len(inside):
                continue
            count, size = room.fitting_rows(batch, inside)
            if count:
                found = batch.take(inside[:count])
                result.add(found, (place, int(inside[count - 1])))
                room.take(found, np.full(count, place), np.zeros(count, np.int64), size)
            if count < len(inside) or not room.messages:
                result.go_on()
                return

    def _proposed(self, segment: StoreSegment, result: FindResult) -> IndexRows:
        """The rows of a segment that may match."""
        hashes = self.query.hashes()
        if not segment.sealed:
            self.tail.extend(self.fs, segment, self.server_id)
            return IndexRows.joined([self.tail.with_hash(hashed) for hashed in hashes])
        path = index_path(self.directory, segment.base)
        try:
            return IndexRows.joined(
                [search_index(self.fs, path, self.server_id, segment.base, hashed) for hashed in hashes]
            )
        except FileNotFoundError:
            pass
        except (CorruptionError, FormatError) as error:
            result.damages.append(f"{error}; the index is made again from the store")
        try:
            IndexPlan(self.fs, segment, self.server_id, path).run()
            result.made.append(segment.base)
        except (DiskFullError, UnreadableError):  # it is made later
            pass
        rows = rows_of_segment(self.fs, segment, self.server_id)
        return IndexRows.joined([rows.with_hash(hashed) for hashed in hashes])

    def _read(self, segment: StoreSegment, place: int, result: FindResult) -> StoredBatch | None:
        """A stored record; None, with a damage noted, if it cannot be read."""
        opened = open_segment(self.fs, segment, self.server_id)
        try:
            position = place - segment.base
            if not FILE_HEADER_BYTES <= position < segment.end - segment.base:
                raise BadRecordError("the index points out of the segment")
            header = decode_header(opened.file.pread(position, HEADER_BYTES), position)
            batch = decode_body(header, opened.file.pread(position + HEADER_BYTES, header.body_bytes))
            return batch if isinstance(batch, StoredBatch) else None
        except (BadRecordError, CorruptionError) as error:
            result.damages.append(f"{segment.path}: offset {place - segment.base}: {error}")
            return None
        finally:
            opened.file.close()


def _by_record(proposed: IndexRows, after: Place) -> Iterator[tuple[int, U32]]:
    """(store offset, rows u32[n]) of each record with proposed rows behind `after`, in the order of the store."""
    order = np.lexsort((proposed.row, proposed.place))
    places, rows = proposed.place[order], proposed.row[order]
    behind = (places > after[0]) | ((places == after[0]) & (rows > after[1]))
    places, rows = places[behind], rows[behind]
    cuts = np.flatnonzero(np.diff(places)) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(places)]):
        if start < stop:
            yield int(places[start]), np.unique(rows[start:stop])


class Indexes:
    """Knows which sealed segments have an index, and plans searches and the making of further indexes."""

    def __init__(self, state: BrokerState) -> None:
        """Removes the indexes of segments that are gone, and that of the segment that grows: a crash took its successor
        before that had a durable record."""
        self._state = state
        self._tail = TailIndex()
        bases = {base for base, _, _ in state.files.store.log.segments()[:-1]}
        folder = f"{state.files.directory}/index"
        named = {name: base_of(name) for name in state.files.fs.listdir(folder)}
        for name, base in named.items():
            if base not in bases:
                state.files.fs.remove(f"{folder}/{name}")
        self._made = {base for base in named.values() if base in bases}

    def _segments(self) -> list[StoreSegment]:
        segments = self._state.files.store.log.segments()
        last = segments[-1][0]
        folder = f"{self._state.files.directory}/store"
        return [
            StoreSegment(base, end, path, segment_path(folder, base), sealed=base != last)
            for base, end, path in segments
        ]

    def find_plan(self, query: StoredQuery) -> FindPlan:
        """Capture a search; one at a time. Call `finish_find` with its result."""
        state = self._state
        return FindPlan(
            state.files.fs, state.files.directory, state.files.server_id, self._segments(), self._tail, query
        )

    def finish_find(self, result: FindResult) -> None:
        """Take note of the indexes that a search has made, and of the damage that it met."""
        for base in result.made:
            self.finish_index(base)
        for damage in result.damages:
            self._state.damages.add(damage)

    def index_plan(self, but: Collection[int] = ()) -> IndexPlan | None:
        """Capture the making of one index; None if every sealed segment has one, except those with a base in `but`. Call
        `finish_index` when it is made."""
        state = self._state
        for segment in self._segments():
            if segment.sealed and segment.base not in self._made and segment.base not in but:
                return IndexPlan(
                    state.files.fs, segment, state.files.server_id, index_path(state.files.directory, segment.base)
                )
        return None

    def finish_index(self, base: int) -> None:
        """Ends the making of a segment's index. Removes it if retention has removed the segment meanwhile."""
        if any(base == known for known, _, _ in self._state.files.store.log.segments()):
            self._made.add(base)
        else:
            self._made.discard(base)
            self._state.files.fs.remove(index_path(self._state.files.directory, base))
