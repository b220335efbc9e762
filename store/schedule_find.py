"""Finding messages of a schedule file by sequence or by id, reading only the stretches that may hold them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.batches import I64, U32, MessageBatch
from store.columns import concatenate_columns
from store.ragged_reads import read_ragged
from store.record_reader import RecordReader
from store.record_rows import RecordRows, collect_rows
from store.schedule_index import ScheduleIndex, blob_places, build_index
from store.schedule_key import ScheduleKey
from store.segment import Appended, Damage, Segment
from store.sequence_map import EVERYTHING, Gap, SequenceMap
from store.window_files import WindowFiles

# Sparse tables kept in memory: lookups by receipt touch few files at a time, and a table is rebuilt from headers.
SEQUENCE_MAPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Found:
    """For n sequences asked: which are in the file (bool[n]), and their rows as n columns, zeros where they are not.

    `hidden` bool[n]: not found, and it may stand in one of the `damages` that were met on the way.
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


class ScheduleFinder:
    """Keeps a bounded number of sparse tables, built on the first lookup in a file and kept up by its appends."""

    def __init__(self, files: WindowFiles[ScheduleKey]) -> None:
        self._files = files
        self._maps: OrderedDict[ScheduleKey, SequenceMap] = OrderedDict()
        self._lock = threading.Lock()

    def appended(self, key: ScheduleKey, first_sequence: int, last_sequence: int, place: Appended) -> None:
        """The writer has put a record behind all others of a file."""
        table = self._maps.get(key)
        if table is not None:
            with self._lock:
                if table.end == place.start and table.last_sequence < first_sequence:
                    table.add(first_sequence, last_sequence, place.start, place.end)

    def forget(self, key: ScheduleKey) -> None:
        """The file is going to be removed."""
        with self._lock:
            self._maps.pop(key, None)

    def _stretches(
        self, key: ScheduleKey, segment: Segment, sequences: I64, damages: list[Damage], gaps: list[Gap]
    ) -> I64:
        with self._lock:
            end = self._files.states[key].end  # of a file that is being removed no table is made behind its `forget`
            table = self._maps.get(key)
            if table is None:
                table = self._maps[key] = SequenceMap()
                if len(self._maps) > SEQUENCE_MAPS_MAX:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(key)
            for header, _, _ in RecordReader(segment.file, table.end, end, blobs=False, damages=damages):
                if table.last_sequence < header.first_sequence <= header.last_sequence:
                    table.add(header.first_sequence, header.last_sequence, header.offset, header.end)
                else:
                    damages.append(Damage(header.offset, header.end, "its sequences do not rise"))
                    table.pass_over()
            if table.end < end:  # damage up to the end: looked at again, and told again, when more stands behind it
                gaps.append((table.last_sequence, EVERYTHING))
            gaps += table.gaps
            return table.stretches(sequences)

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

    def find(self, key: ScheduleKey, sequences: I64) -> Found:
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
        hidden = np.zeros(count, np.bool_)
        for before, behind in gaps:
            hidden |= ~mask & (sequences > before) & (sequences < behind)
        return Found(mask, index, hidden, damages)

    def find_ids(
        self, key: ScheduleKey, subject: int, due_ms: int, id_hash: int, message_id: bytes, damages: list[Damage]
    ) -> I64:
        """See `ScheduleLog.find_ids`."""
        names = ("sequence", "due_ms", "origin_sequence", "duplicate_of", "id_hash", "subject", *_LENGTHS)
        if key not in self._files.states:
            return np.zeros(0, np.int64)
        with self._files.reading(key) as segment:
            end = self._files.states[key].end
            records = RecordReader(segment.file, 0, end, blobs=False, damages=damages)
            rows = collect_rows(records, segment.path, MessageBatch, names)
            columns = rows.columns
            hits = np.flatnonzero(
                (columns["id_hash"] == np.uint64(id_hash))
                & (columns["due_ms"] == due_ms)
                & (columns["subject"] == subject)
                & (columns["ids_length"] == len(message_id))
                & (columns["origin_sequence"] == 0)
                & (columns["duplicate_of"] == 0)
            )
            if not len(hits):
                return np.zeros(0, np.int64)
            offsets = blob_places(columns, rows.counts, rows.blob_offsets)[0][hits]
            ids = bytes(read_ragged(segment.file, offsets, columns["ids_length"][hits]))
        width = len(message_id)
        same = [ids[place * width : (place + 1) * width] == message_id for place in range(len(hits))]
        for place in np.flatnonzero(~np.array(same)).tolist():
            start = int(offsets[place])
            damages.append(Damage(start, start + width, "the bytes of an id do not fit its hash"))
        found: I64 = columns["sequence"][hits[np.array(same)]]
        return found

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


_LENGTHS = ("ids_length", "properties_length", "bodies_length")


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
