"""Finding messages of a schedule file by sequence or by id, reading only the stretches that may hold them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from store.failed_reads import READ_TRIES, FailedReads
from store.indexes.schedule_index import ScheduleIndex, blob_places, build_index
from store.indexes.sequence_map import EVERYTHING, Gap, SequenceMap
from store.logs.schedule_key import ScheduleKey
from store.logs.window_files import WindowFiles
from store.records.batches import I64, U32, MessageBatch
from store.records.column_batch import concatenate_columns
from store.records.column_blocks import Columns
from store.records.message_name import MessageName, NamesFound
from store.records.ragged_reads import read_ragged
from store.records.record_reader import RecordReader
from store.records.record_rows import RecordRows, collect_rows
from store.records.segment import Appended, Damage, Segment

T = TypeVar("T")

# Sparse tables kept in memory: lookups by receipt touch few files at a time, and a table is rebuilt from headers.
SEQUENCE_MAPS_MAX = 64


@dataclass(frozen=True, slots=True)
class FoundRows:
    """For n sequences asked: which are in the file (bool[n]), and their rows as n columns, zeros where they are not.

    `hidden` bool[n]: not found, and it may stand in one of the `damages` that were met on the way, or the file lost it.
    """

    mask: NDArray[np.bool_]
    index: ScheduleIndex
    hidden: NDArray[np.bool_]
    damages: list[Damage]

    @property
    def due_ms(self) -> I64:
        return self.index.due_ms

    @property
    def subject(self) -> U32:
        return self.index.subject

    @property
    def duplicate_of(self) -> I64:
        return self.index.duplicate_of

    @property
    def origin_sequence(self) -> I64:
        return self.index.origin_sequence


class _Table:
    """The sparse table of one file. `lock` is held while the file is read into it, which may take seconds."""

    __slots__ = ("lock", "map")

    def __init__(self) -> None:
        self.map = SequenceMap()
        self.lock = threading.Lock()


class ScheduleFinder:
    """Keeps a bounded number of sparse tables, built on the first lookup in a file and kept up by its appends."""

    def __init__(self, files: WindowFiles[ScheduleKey]) -> None:
        self._files = files
        self._tables: OrderedDict[ScheduleKey, _Table] = OrderedDict()
        # A table is made anew so often where the disk cannot read all of a file. Then it is kept: making it reads the
        # whole file.
        self._failed_reads = FailedReads[ScheduleKey](SEQUENCE_MAPS_MAX)
        # Held for moments only; a thread that holds the lock of a table may take it too.
        self._lock = threading.Lock()

    def add_record(self, key: ScheduleKey, first_sequence: int, last_sequence: int, place: Appended) -> None:
        """Adds a record that the writer has put behind all others of a file. It does not wait for a lookup that reads
        the file: the next lookup finds the record."""
        known = self._tables.get(key)
        if known is None or not known.lock.acquire(blocking=False):
            return
        try:
            if known.map.end == place.start and known.map.last_sequence < first_sequence:
                known.map.add(first_sequence, last_sequence, place.start, place.end)
        finally:
            known.lock.release()

    def forget(self, key: ScheduleKey) -> None:
        """Forgets a file that is going to be removed."""
        with self._lock:
            self._tables.pop(key, None)

    def _stretches(
        self, key: ScheduleKey, segment: Segment, sequences: I64, damages: list[Damage], gaps: list[Gap]
    ) -> I64:
        return self._in_map(key, segment, damages, gaps, lambda table: table.stretches(sequences))

    def _in_map(
        self,
        key: ScheduleKey,
        segment: Segment,
        damages: list[Damage],
        gaps: list[Gap],
        look: Callable[[SequenceMap], T],
    ) -> T:
        """What `look` finds in the table of a file, which is first read up to the file's end."""
        with self._lock:
            end = self._files.states[key].end  # of a file that is being removed no table is made behind its `forget`
            known = self._tables.get(key)
            if known is None:
                known = self._tables[key] = _Table()
                if len(self._tables) > SEQUENCE_MAPS_MAX:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(key)
        with known.lock:
            table = known.map
            met: list[Damage] = []
            for header, _, _ in RecordReader(segment.file, table.end, end, blobs=False, damages=met):
                if table.last_sequence < header.first_sequence <= header.last_sequence:
                    table.add(header.first_sequence, header.last_sequence, header.offset, header.end)
                else:
                    met.append(Damage(header.offset, header.end, "its sequences do not rise"))
                    table.pass_over()
            damages += met
            if any(damage.errno for damage in met):
                self._make_anew(key, known)
            if table.end < end:  # damage up to the end: read and reported again when a record stands behind it
                gaps.append((table.last_sequence, EVERYTHING))
            gaps += table.gaps
            return look(table)

    def _make_anew(self, key: ScheduleKey, known: _Table) -> None:
        """The disk could not read all of a file: the first times its table is not kept."""
        with self._lock:
            if self._failed_reads.count(key) < READ_TRIES and self._tables.get(key) is known:
                del self._tables[key]

    def _rows_near(
        self,
        key: ScheduleKey,
        segment: Segment,
        sequences: I64,
        names: Sequence[str],
        damages: list[Damage] | None = None,
        gaps: list[Gap] | None = None,
        *,
        blobs: bool = False,
    ) -> RecordRows | None:
        """All rows of the stretches that may hold the sequences, ascending, the blobs verified with `blobs`.

        Sequences between the two of a gap may be hidden by damage. Raises CorruptionError, or fills `damages`.
        """
        parts = []
        passed_over: list[Damage] = []
        gaps = [] if gaps is None else gaps
        for start, stop in self._stretches(key, segment, sequences, passed_over, gaps).tolist():
            met: list[Damage] = []
            records = RecordReader(segment.file, start, stop, blobs=blobs, damages=None if damages is None else met)
            parts.append(collect_rows(records, segment.path, MessageBatch, names))
            gaps += [_gap(damage, parts[-1]) for damage in met]
            passed_over += met
        if damages is not None:
            damages += passed_over
        if not parts:
            return None
        types = dict(MessageBatch.schema.fields)
        columns = {name: concatenate_columns([part.columns[name] for part in parts], types[name]) for name in names}
        counts = np.concatenate([part.counts for part in parts])
        return RecordRows(columns, counts, np.concatenate([part.blob_offsets for part in parts]))

    def start_behind(self, key: ScheduleKey, sequence: int) -> int:
        """An offset from which on the file has all records with sequences above this one. Raises KeyError, CorruptionError,
        FormatError."""
        with self._files.reading(key) as segment:
            return self._in_map(key, segment, [], [], lambda table: table.start_behind(sequence))

    def find(self, key: ScheduleKey, sequences: I64) -> FoundRows:
        """See `ScheduleLog.find`."""
        count = len(sequences)
        mask, index = np.zeros(count, np.bool_), ScheduleIndex.zeros(count)
        damages: list[Damage] = []
        gaps: list[Gap] = []
        if key in self._files.states and count:
            with self._files.reading(key) as segment:
                rows = self._rows_near(key, segment, sequences, ScheduleIndex.FROM_BATCH, damages, gaps)
            if rows is not None and len(rows.columns["sequence"]):
                near = build_index(rows.columns, rows.counts, rows.blob_offsets)
                place, mask = _locate(near.sequence, sequences)
                index = near.take(place).masked(mask)
        hidden = ~mask & (sequences <= self._files.hidden_up_to(key))
        for before, behind in gaps:
            hidden |= ~mask & (sequences > before) & (sequences < behind)
        return FoundRows(mask, index, hidden, damages)

    def find_ids(self, key: ScheduleKey, names: Collection[MessageName], damages: list[Damage]) -> NamesFound:
        """See `ScheduleLog.find_ids`."""
        if key not in self._files.states:
            return NamesFound()
        with self._files.reading(key) as segment:
            end = self._files.states[key].end
            records = RecordReader(segment.file, 0, end, blobs=False, damages=damages)
            rows = collect_rows(records, segment.path, MessageBatch, (*_NAMING, *_LENGTHS))
            hits = _rows_like(names, rows.columns)
            offsets = blob_places(rows.columns, rows.counts, rows.blob_offsets)[0][hits]
            ids = bytes(read_ragged(segment.file, offsets, rows.columns["ids_length"][hits]))
        return _compare_ids(names, {name: rows.columns[name][hits] for name in _NAMING}, ids, offsets)

    def read_rows(
        self, key: ScheduleKey, sequences: I64, blobs: Sequence[str], damages: list[Damage] | None = None
    ) -> MessageBatch:
        """Whole rows with the named blobs, verified if they are all; a blob that is left out has length 0 on every row."""
        names = tuple(name for name, _ in MessageBatch.schema.fields)
        sequences = np.unique(sequences)
        if key not in self._files.states or not len(sequences):
            return MessageBatch.filled(0)
        with self._files.reading(key) as segment:
            whole = set(blobs) == set(MessageBatch.schema.blobs)
            rows = self._rows_near(key, segment, sequences, names, damages, blobs=whole)
            if rows is None or not len(rows.columns["sequence"]):
                return MessageBatch.filled(0)
            place, mask = _locate(rows.columns["sequence"], sequences)
            place = place[mask]
            columns: dict[str, Any] = {name: rows.columns[name][place] for name in names}
            places = blob_places(rows.columns, rows.counts, rows.blob_offsets)
            for blob, offsets in zip(MessageBatch.schema.blobs, places, strict=True):
                if blob in blobs:
                    columns[blob] = read_ragged(segment.file, offsets[place], columns[f"{blob}_length"])
                else:
                    columns[f"{blob}_length"] = 0
        return MessageBatch.filled(len(place), **columns)


_LENGTHS = ("ids_length", "properties_length", "bodies_length", "order_keys_length")
_NAMING = ("sequence", "id_hash", "due_ms", "subject", "ids_length", "origin_sequence", "duplicate_of")


def _rows_like(names: Collection[MessageName], columns: Columns) -> NDArray[np.intp]:
    """The messages, but for copies, whose hash of the id, due time and subject are each those of some name."""
    rows: NDArray[np.intp] = np.flatnonzero(
        np.isin(columns["id_hash"], np.array([name.id_hash for name in names], np.uint64))
    )
    rows = rows[(columns["origin_sequence"][rows] == 0) & (columns["duplicate_of"][rows] == 0)]
    rows = rows[np.isin(columns["due_ms"][rows], np.array([name.due_ms for name in names], np.int64))]
    rows = rows[np.isin(columns["subject"][rows], np.array([name.subject for name in names], np.uint32))]
    return rows


def _compare_ids(names: Collection[MessageName], columns: Columns, ids: bytes, offsets: I64) -> NamesFound:
    """Which of n rows the names stand for, by the bytes of their ids; these lie end to end, and at `offsets` in the file."""
    alike: dict[tuple[int, ...], list[MessageName]] = {}
    for name in names:
        alike.setdefault((name.id_hash, name.due_ms, name.subject), []).append(name)
    found = NamesFound()
    stop = 0
    rows = zip(*[columns[column].tolist() for column in _NAMING[:5]], offsets.tolist(), strict=True)
    for sequence, id_hash, due_ms, subject, length, offset in rows:
        start, stop = stop, stop + length
        for name in alike.get((id_hash, due_ms, subject), ()):
            if ids[start:stop] == name.message_id:
                found.last[name] = sequence  # they rise
            elif length == len(name.message_id):
                found.hidden[name] = Damage(offset, offset + length, "the bytes of an id do not fit its hash")
    return found


def _gap(damage: Damage, rows: RecordRows) -> Gap:
    """The sequences around damage among the records of a stretch."""
    sequence = rows.columns["sequence"]
    first = int(rows.counts[: np.searchsorted(rows.blob_offsets, damage.start, side="right")].sum())
    before = int(sequence[first - 1]) if first else 0
    return before, int(sequence[first]) if first < len(sequence) else EVERYTHING


def _locate(ascending: I64, sequences: I64) -> tuple[I64, NDArray[np.bool_]]:
    """Row of each sequence i64[n] (any row where there is none) and whether it is there bool[n]."""
    place = np.minimum(np.searchsorted(ascending, sequences), len(ascending) - 1)
    return place, ascending[place] == sequences
