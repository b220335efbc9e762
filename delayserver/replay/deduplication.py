"""Marks copies of messages (same id, subject and due time) as rows are placed, so that each is delivered once.

The smaller sequence is always the original, whatever became of it: an id stays used after delivery, cancel or expiry.
Runs wherever the replayer places rows; no other part touches the indexes.
"""

from __future__ import annotations

import numpy as np

from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.windows.retired import Retired
from store.errors import CorruptionError, UnreadableError
from store.failed_reads import READ_TRIES
from store.indexes.id_index import Confirm, IdIndex, StoredIds, confirm_by_bytes, id_keys
from store.indexes.index_cache import IndexCache
from store.logs.due_windows import day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.logs.window_ids import load_id_index, read_stored_ids
from store.records.batches import I64, MessageBatch

# 16 bytes an id: two million ids of windows in use. One that is dropped is read again from the columns of its files.
INDEX_BYTES_MAX = 32 << 20


class IdsUnreadableError(Exception):
    """The disk cannot read ids of earlier messages now: place the rows again, behind what is placed, after a pause."""


class IdsNotInMemoryError(Exception):
    """Ids of earlier messages have to be read: place the rows again in a thread."""


class Deduplication:
    """Id indexes by schedule file. `met_damage`: it went around damage since the start, so it may miss copies."""

    def __init__(self, files: Files, retired: Retired, runtime: Runtime) -> None:
        self._schedule = files.schedule
        self._days = files.days
        self._retired = retired
        self._damage = runtime.damage
        self.met_damage = False
        self._indexes = IndexCache(INDEX_BYTES_MAX, self._load)
        self._may_read = True
        # How often the disk could not read ids that the rows of now need.
        self._failed_reads = 0

    def mark(self, key: ScheduleKey, rows: MessageBatch, *, may_read: bool) -> MessageBatch:
        """The same rows, with `duplicate_of` set where one repeats an earlier message.

        Without `may_read` it raises IdsNotInMemoryError where files have to be read. A file has any number of ids.
        Raises IdsUnreadableError the first times that the disk cannot read earlier messages, since it may read them soon:
        they and their copies would be delivered. After that they are gone around, as damaged ones are."""
        self._may_read = may_read
        marked = self._mark(key, rows)
        self._failed_reads = 0
        return marked

    def _mark(self, key: ScheduleKey, rows: MessageBatch) -> MessageBatch:
        for removed in self._retired.take_removed():
            self._indexes.forget(removed)
        if not rows.id_hash.any():
            return rows
        keys = id_keys(rows.id_hash, rows.subject, rows.due_ms)
        internal = rows.origin_sequence != 0
        if internal.any():
            keys[internal] = 0

        duplicate_of = np.zeros(len(rows), dtype=np.int64)
        if key.source == ScheduleSource.DIRECT and self._days.is_draining(key.start_ms):
            # The day's earlier messages may not have reached this window's file yet.
            day = ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY)
            duplicate_of = self._indexes.get(day).probe(keys, self._confirm(day, rows))
            keys[duplicate_of != 0] = 0
        duplicate_of += self._indexes.get(key).probe_and_add(keys, rows.sequence, self._confirm(key, rows))
        # A row placed again after a full disk meets itself; a rescheduled one is wanted whatever its id says.
        duplicate_of[(duplicate_of == rows.sequence) | (rows.replaces_sequence != 0)] = 0
        return rows.with_columns(duplicate_of=duplicate_of) if duplicate_of.any() else rows

    def _confirm(self, key: ScheduleKey, rows: MessageBatch) -> Confirm:
        def read(sequences: I64) -> StoredIds:
            self._require_reading()
            return read_stored_ids(self._schedule, self._files(key), sequences, self._told)

        return confirm_by_bytes(rows, read)

    def _files(self, key: ScheduleKey) -> list[ScheduleKey]:
        """The files whose messages a new row of this file may repeat."""
        sources = (
            (ScheduleSource.DAY,)
            if key.source == ScheduleSource.DAY
            else (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)
        )
        files = [ScheduleKey(key.start_ms, source) for source in sources]
        return [file for file in files if file in self._schedule]

    def _require_reading(self) -> None:
        if not self._may_read:
            raise IdsNotInMemoryError

    def _load(self, key: ScheduleKey) -> IdIndex:
        self._require_reading()
        return load_id_index(self._schedule, self._files(key), self._told)

    def _told(self, error: CorruptionError) -> None:
        self._damage.report(error)
        if isinstance(error, UnreadableError) and self._failed_reads < READ_TRIES - 1:
            self._failed_reads += 1
            raise IdsUnreadableError from error
        self.met_damage = True

    def forget_window(self, start_ms: int) -> None:
        """Forgets the index of a window, because rows of a drained day were put into it. The next question reads it
        again."""
        self._indexes.forget(ScheduleKey(start_ms, ScheduleSource.DIRECT))
