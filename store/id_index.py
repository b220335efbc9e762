"""Which message ids a window has seen, in memory: a copy of a message is told by its id, subject and due time.

The index holds a 64-bit key for each, and equal keys are only candidates: whoever asks confirms them by the bytes of
the ids, so that two different messages are never taken for one. FORMAT.md has the hash of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.batches import I64, U32, U64, MessageBatch
from store.columns import gather_ragged
from store.errors import CorruptionError
from store.id_hash import hash_id, hash_ids, mix
from store.index_cache import IndexCache
from store.scan import Damage
from store.schedule_log import ScheduleKey, ScheduleLog
from store.sorted_table import SortedTable

__all__ = [
    "IdIndex",
    "IdIndexCache",
    "StoredIds",
    "confirm_by_bytes",
    "hash_id",
    "hash_ids",
    "id_keys",
    "load_id_index",
    "read_stored_ids",
]

_IDENTIFYING = ("sequence", "due_ms", "origin_sequence", "duplicate_of", "id_hash", "subject")
Confirm = Callable[[I64, I64], NDArray[np.bool_]]
_SUBJECT_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def id_keys(id_hash: U64, subject: U32, due_ms: I64) -> U64:
    """Keys u64[n] of (id, subject, due time); 0 where there is no id, and only there."""
    keys = mix(id_hash ^ mix(subject.astype(np.uint64) * _SUBJECT_FACTOR + due_ms.astype(np.uint64)))
    keys[keys == 0] = 1
    keys[id_hash == 0] = 0
    return keys


class IdIndex:
    """Keys to the sequences of the originals. Different ids with one key stand side by side."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = SortedTable(np.uint64, np.int64)

    def __len__(self) -> int:
        return self._table.rows

    @property
    def nbytes(self) -> int:
        """Memory held: 16 bytes an id."""
        return self._table.nbytes

    def add(self, keys: U64, sequences: I64) -> None:
        """Originals known as such; rows with key 0 are left out."""
        some = keys != 0
        self._table.add(keys[some], sequences[some])

    def probe(self, keys: U64, confirm: Confirm) -> I64:
        """For each of n keys the sequence of the original i64[n], or 0. See `probe_and_add` for `confirm`."""
        duplicate_of = np.zeros(len(keys), np.int64)
        asked = np.flatnonzero(keys)
        position, candidates = self._table.all_matches(keys[asked])
        rows = asked[position]
        order = np.lexsort((candidates, rows))
        rows, candidates = rows[order], candidates[order]
        while len(rows):
            first = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
            same = confirm(rows[first], candidates[first])
            duplicate_of[rows[first][same]] = candidates[first][same]
            later = np.ones(len(rows), np.bool_)
            later[first] = False
            later &= duplicate_of[rows] == 0
            rows, candidates = rows[later], candidates[later]
        return duplicate_of

    def probe_and_add(self, keys: U64, sequences: I64, confirm: Confirm) -> I64:
        """For each of n rows the sequence of the message it repeats i64[n]; 0 for an original, which is added.

        Copies within the batch count: the smallest sequence is the original. Key 0 is never a copy. `confirm(rows,
        candidates)` gets positions in the batch i64[k] and sequences i64[k] (stored, or of the same batch) and says
        whether id, subject and due time are the same, bool[k].
        """
        duplicate_of = self.probe(keys, confirm)
        rows = np.flatnonzero((keys != 0) & (duplicate_of == 0))
        rows = rows[np.lexsort((sequences[rows], keys[rows]))]
        while len(rows):
            # The first of each group of equal keys is an original; the others are asked about, and those that only
            # share its key form the groups of the next round.
            first = np.concatenate([[True], keys[rows[1:]] != keys[rows[:-1]]])
            originals = rows[first]
            self._table.add(keys[originals], sequences[originals])
            others = rows[~first]
            if not len(others):
                break
            candidates = sequences[originals][np.cumsum(first) - 1][~first]
            same = confirm(others, candidates)
            duplicate_of[others[same]] = candidates[same]
            rows = others[~same]
        return duplicate_of

    def check_invariants(self) -> None:
        """For tests."""
        self._table.check_invariants()


@dataclass(frozen=True, slots=True)
class StoredIds:
    """What identifies messages: n rows in ascending sequence, and their ids laid end to end."""

    sequence: I64
    due_ms: I64
    subject: U32
    ids_length: U32
    ids: memoryview


def confirm_by_bytes(batch: MessageBatch, read_stored: Callable[[I64], StoredIds]) -> Confirm:
    """A `confirm` that compares due time, subject and the bytes of the ids: for `batch`, whose sequences ascend, and
    for stored messages, which `read_stored(sequences i64[k], ascending and distinct)` reads (those that are gone are
    left out, and are no originals any more)."""
    own = StoredIds(batch.sequence, batch.due_ms, batch.subject, batch.ids_length, batch.ids)

    def confirm(rows: I64, candidates: I64) -> NDArray[np.bool_]:
        same = np.zeros(len(rows), np.bool_)
        inside = np.isin(candidates, batch.sequence)
        for which, other in ((np.flatnonzero(inside), own), (np.flatnonzero(~inside), None)):
            if len(which):
                theirs = other if other is not None else read_stored(np.unique(candidates[which]))
                same[which] = _same_ids(own, rows[which], theirs, candidates[which])
        return same

    return confirm


def _same_ids(left: StoredIds, rows: I64, right: StoredIds, sequences: I64) -> NDArray[np.bool_]:
    same = np.zeros(len(rows), np.bool_)
    if not len(right.sequence):
        return same
    place = np.minimum(np.searchsorted(right.sequence, sequences), len(right.sequence) - 1)
    alike = np.flatnonzero(
        (right.sequence[place] == sequences)
        & (right.due_ms[place] == left.due_ms[rows])
        & (right.subject[place] == left.subject[rows])
        & (right.ids_length[place] == left.ids_length[rows])
        & (left.ids_length[rows] > 0)
    )
    if not len(alike):
        return same
    lengths = left.ids_length[rows[alike]].astype(np.int64)
    mine = np.frombuffer(gather_ragged(left.ids, left.ids_length, rows[alike]), np.uint8)
    theirs = np.frombuffer(gather_ragged(right.ids, right.ids_length, place[alike]), np.uint8)
    same[alike] = np.logical_and.reduceat(mine == theirs, np.cumsum(lengths) - lengths)
    return same


def read_stored_ids(
    log: ScheduleLog, keys: Iterable[ScheduleKey], sequences: I64, told: Callable[[CorruptionError], None]
) -> StoredIds:
    """What identifies these messages, as far as these files can tell; `told` hears of damage that was passed over."""
    parts = []
    for key in keys:
        damages: list[Damage] = []
        try:
            parts.append(log.read_ids(key, sequences, damages=damages))
        except CorruptionError as error:  # it cannot be read at all
            told(error)
        _tell(log, key, damages, told)
    part = MessageBatch.concatenate(parts) if parts else MessageBatch.filled(0)
    order = np.argsort(part.sequence, kind="stable")
    part = part.take(order)
    return StoredIds(part.sequence, part.due_ms, part.subject, part.ids_length, part.ids)


def _tell(log: ScheduleLog, key: ScheduleKey, damages: list[Damage], told: Callable[[CorruptionError], None]) -> None:
    for damage in damages:
        told(CorruptionError(log.path(key), damage.start, damage.detail))


def load_id_index(log: ScheduleLog, keys: Iterable[ScheduleKey], told: Callable[[CorruptionError], None]) -> IdIndex:
    """The index of the originals in these files, from their columns: no ids and no bodies are read.

    Copies and internal records are left out. What is damaged is no original any more: it could not be delivered instead
    of its copy. `told` hears of it.
    """
    index = IdIndex()
    for key in keys:
        damages: list[Damage] = []
        try:
            columns = log.read_columns(key, _IDENTIFYING, damages=damages)
        except CorruptionError as error:  # it cannot be read at all
            told(error)
            continue
        _tell(log, key, damages, told)
        own = (columns["origin_sequence"] == 0) & (columns["duplicate_of"] == 0)
        some = np.flatnonzero(own & (columns["id_hash"] != 0))
        keys_of_ids = id_keys(columns["id_hash"][some], columns["subject"][some], columns["due_ms"][some])
        index.add(keys_of_ids, columns["sequence"][some])
    return index


class IdIndexCache(IndexCache[Any, IdIndex]):
    """Id indexes of windows, bounded by bytes; `load(key)` scans the columns of the window's files."""
