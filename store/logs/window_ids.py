"""Reads message ids from schedule_log, for the index of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from store.errors import CorruptionError
from store.indexes.id_index import IdIndex, StoredIds, id_keys
from store.logs.schedule_key import ScheduleKey
from store.logs.schedule_log import ScheduleLog
from store.records.batches import I64, MessageBatch
from store.records.scan import Damage

_IDENTIFYING = ("sequence", "due_ms", "origin_sequence", "duplicate_of", "id_hash", "subject")


def read_stored_ids(
    log: ScheduleLog, keys: Iterable[ScheduleKey], sequences: I64, told: Callable[[CorruptionError], None]
) -> StoredIds:
    """The ids, subjects and due times of these messages in these files. Calls `told` with damage that was passed over."""
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
        told(damage.error(log.path(key)))


def load_id_index(log: ScheduleLog, keys: Iterable[ScheduleKey], told: Callable[[CorruptionError], None]) -> IdIndex:
    """The index of the originals in these files, from their columns: no ids and no bodies are read.

    Duplicates and internal records are left out. A damaged message is left out too, because it could not be delivered in
    place of its duplicate. Calls `told` with the damage.
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
