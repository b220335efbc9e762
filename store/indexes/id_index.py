"""An index of the message ids of a window, in memory. A duplicate has the id, subject and due time of its original.

The index holds a 64-bit key for each message. Equal keys make a candidate: the caller compares the bytes of the ids, so
that two different messages are never taken for one. FORMAT.md has the hash of ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.indexes.sorted_table import SortedTable
from store.records.batches import I64, U32, U64, MessageBatch
from store.records.column_batch import gather_ragged
from store.records.id_hash import mix

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
    """Sequences, due times, subjects and ids of n messages, in ascending sequence; the ids are laid end to end."""

    sequence: I64
    due_ms: I64
    subject: U32
    ids_length: U32
    ids: memoryview


def confirm_by_bytes(batch: MessageBatch, read_stored: Callable[[I64], StoredIds]) -> Confirm:
    """A `confirm` that compares due time, subject and the bytes of the ids with rows of `batch` and with stored messages.

    The sequences of `batch` ascend. `read_stored(sequences i64[k], ascending and distinct)` reads stored messages. It
    leaves out messages that are gone; they are no originals any more.
    """
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
