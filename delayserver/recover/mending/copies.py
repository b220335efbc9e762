"""Marks restored messages that are copies of an earlier one, as the replayer did when it placed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from delayserver.recover.reading.capture import Capture
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64, U64, MessageBatch
from store.records.column_batch import ragged_offsets

Read = Callable[[ScheduleKey], Iterator[MessageBatch]]


def mark_copies(
    taken: Capture, key: ScheduleKey, restored: Callable[[], Iterator[MessageBatch]], read: Read
) -> Iterator[MessageBatch]:
    """The restored rows of a file with `duplicate_of` set. `restored` reads them anew at each call, `read` gives the valid
    records of a schedule file.

    Holds eight bytes for each message with an id, and the names of those that more than one message has.
    """
    repeated = _repeated(taken, key, restored, read)
    originals: dict[tuple[int, int, bytes], int] = {}
    if len(repeated):
        for batches in (*map(read, _files(taken, key)), restored()):
            for batch in batches:
                _note(batch, np.flatnonzero(_find(repeated, batch.id_hash)[1]), originals)
    for batch in restored():
        yield _marked(batch, repeated, originals) if len(repeated) else batch


def _repeated(taken: Capture, key: ScheduleKey, restored: Callable[[], Iterator[MessageBatch]], read: Read) -> U64:
    """The hashes of ids that a restored row shares with another row, ascending."""
    parts = [batch.id_hash[batch.id_hash != 0] for batch in restored()]
    if not any(len(part) for part in parts):
        return np.zeros(0, np.uint64)
    hashes, counts = np.unique(np.concatenate(parts), return_counts=True)
    shared = counts > 1
    for file in _files(taken, key):
        for batch in read(file):
            places, there = _find(hashes, batch.id_hash)
            shared[places[there]] = True
    return hashes[shared]


def _find(ascending: U64, hashes: U64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The place of each hash in the other array, which is not empty, and whether it is there. Costs nothing for each hash
    of that one: `numpy.isin` would sort all of them once more, record by record."""
    places = np.minimum(np.searchsorted(ascending, hashes), len(ascending) - 1)
    return places, ascending[places] == hashes


def _files(taken: Capture, key: ScheduleKey) -> list[ScheduleKey]:
    day = ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY)
    keys = [day] if key.source == ScheduleSource.DAY else [
        ScheduleKey(key.start_ms, ScheduleSource.DIRECT), ScheduleKey(key.start_ms, ScheduleSource.FROM_DAY), day,
    ]  # fmt: skip
    return [file for file in keys if file in taken.files.schedule]


def _note(batch: MessageBatch, rows: I64, originals: dict[tuple[int, int, bytes], int]) -> None:
    """The smallest sequence of each (subject, due time, id)."""
    for row, name in zip(rows.tolist(), _names(batch, rows), strict=True):
        if not batch.origin_sequence[row]:
            sequence = int(batch.sequence[row])
            originals[name] = min(originals.get(name, sequence), sequence)


def _marked(batch: MessageBatch, repeated: U64, originals: dict[tuple[int, int, bytes], int]) -> MessageBatch:
    may_be = _find(repeated, batch.id_hash)[1] & (batch.origin_sequence == 0) & (batch.replaces_sequence == 0)
    rows = np.flatnonzero(may_be)
    duplicate_of = np.zeros(len(batch), np.int64)
    for row, name in zip(rows.tolist(), _names(batch, rows), strict=True):
        original = originals[name]
        if original != int(batch.sequence[row]):
            duplicate_of[row] = original
    return batch.with_columns(duplicate_of=duplicate_of) if duplicate_of.any() else batch


def _names(batch: MessageBatch, rows: I64) -> Iterator[tuple[int, int, bytes]]:
    places = list(pairwise(ragged_offsets(batch.ids_length).tolist()))
    for row in rows.tolist():
        start, stop = places[row]
        yield int(batch.subject[row]), int(batch.due_ms[row]), bytes(batch.ids[start:stop])
