"""Marks restored messages that are copies of an earlier one, as the replayer did when it placed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from delayserver.recover.capture import Capture
from store.batches import I64, MessageBatch
from store.columns import ragged_offsets
from store.schedule_log import ScheduleKey, Source
from store.windows import day_of

Read = Callable[[ScheduleKey], Iterator[MessageBatch]]


def mark_copies(taken: Capture, key: ScheduleKey, restored: list[MessageBatch], read: Read) -> list[MessageBatch]:
    """The restored rows of a file with `duplicate_of` set. `read` gives the valid records of a schedule file."""
    if not any(bool(batch.id_hash.any()) for batch in restored):
        return restored
    hashes = np.unique(np.concatenate([batch.id_hash for batch in restored]))
    hashes = hashes[hashes != 0]
    originals: dict[tuple[int, int, bytes], int] = {}
    for file in _files(taken, key):
        for batch in read(file):
            _note(batch, np.flatnonzero(np.isin(batch.id_hash, hashes)), originals)
    for batch in restored:
        _note(batch, np.flatnonzero(batch.id_hash != 0), originals)
    return [_marked(batch, originals) for batch in restored]


def _files(taken: Capture, key: ScheduleKey) -> list[ScheduleKey]:
    day = ScheduleKey(day_of(key.start_ms), Source.DAY)
    keys = [day] if key.source == Source.DAY else [
        ScheduleKey(key.start_ms, Source.DIRECT), ScheduleKey(key.start_ms, Source.FROM_DAY), day,
    ]  # fmt: skip
    return [file for file in keys if file in taken.schedule]


def _note(batch: MessageBatch, rows: I64, originals: dict[tuple[int, int, bytes], int]) -> None:
    """The smallest sequence of each (subject, due time, id)."""
    for row, name in zip(rows.tolist(), _names(batch, rows), strict=True):
        if not batch.origin_sequence[row]:
            sequence = int(batch.sequence[row])
            originals[name] = min(originals.get(name, sequence), sequence)


def _marked(batch: MessageBatch, originals: dict[tuple[int, int, bytes], int]) -> MessageBatch:
    rows = np.flatnonzero((batch.id_hash != 0) & (batch.origin_sequence == 0) & (batch.replaces_sequence == 0))
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
