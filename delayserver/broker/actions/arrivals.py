"""Delivered batches on their way into the store and the queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.delivered_batch import (
    DUPLICATE,
    REFUSED,
    STORED,
    Delivered,
    KnownKeys,
    QueueRun,
    grouped,
    grouped_columns,
    positions_of,
)
from delayserver.broker.actions.presence import Presence
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.stored_records import add_record
from delayserver.broker.files.store import StoredColumns
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.reads import Steps
from store.errors import CorruptionError, DiskFullError
from store.records.batches import I64, U8, StoredBatch
from store.records.stored_rows import StoredRows


class PublishedPositions(NamedTuple):
    """Answer of `publish`: the positions of each batch's rows (i64[n] or a list), in the order in which they were given.
    `arrived`: queues with new messages. The rows are durable once `BrokerStore.synced` has reached `end`."""

    positions: list[I64 | list[int]]
    arrived: list[QueueKey]
    end: int


Stored: TypeAlias = Callable[[PublishedPositions], None]
"""Gets what was published when its records are in the store, before any consumer can get them."""


class Arrivals:
    """Stores each message once and bounds the index rows in memory."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._known = KnownKeys(state.limits.known_rows_max)
        # Uncertain hand-offs that wait for a read.
        self._checks: list[Presence] = []
        self._runs = 0
        self.delivered = 0
        self.published = 0
        self.duplicates = 0
        self.count_runs()

    def count_runs(self) -> None:
        """Count the index rows in memory anew, after retention removed some."""
        self._runs = self._state.queues.runs_in_memory()

    def deliver(self, batch: StoredBatch, now_us: int) -> Delivered:
        """Store a batch of one server. Its `position` column is not used. Every row gets an outcome.

        A full disk refuses rows. Any other failure of the disk raises StoreError.
        """
        return self._deliver(batch, np.full(len(batch), STORED, np.uint8), np.arange(len(batch)), now_us)

    def deliver_uncertain(
        self, batch: StoredBatch, now_us: int, admit: Callable[[], object] = lambda: None
    ) -> Steps[Delivered]:
        """`deliver` after an earlier attempt with some of these rows, whose result is not known. Rows that are stored
        already are duplicates. To find them the store may have to be read.

        `admit` is called in the step that stores them. It raises an error if the sender may deliver no more."""
        check = Presence(batch)
        self._checks.append(check)
        try:
            yield from check.look(self._state, self._known)
        finally:
            self._checks.remove(check)
        admit()
        outcome = np.where(check.present, DUPLICATE, STORED).astype(np.uint8)
        rows = np.flatnonzero(~check.present)
        self.duplicates += len(batch) - len(rows)
        if not len(rows):
            return Delivered(outcome, [], self._state.files.store.end)
        return self._deliver(batch if len(rows) == len(batch) else batch.take(rows), outcome, rows, now_us)

    def _deliver(self, batch: StoredBatch, outcome: U8, rows: NDArray[np.intp], now_us: int) -> Delivered:
        """Store a batch whose rows are `rows` of `outcome`."""
        arrived: dict[QueueKey, None] = {}
        self._store(batch, rows, outcome, arrived, now_us)
        return Delivered(outcome, list(arrived), self._state.files.store.end)

    def _store(
        self,
        batch: StoredBatch,
        rows: NDArray[np.intp],
        outcome: U8,
        arrived: dict[QueueKey, None],
        now_us: int,
    ) -> bool:
        """Store a batch; if the disk is full, halve it until a part fits. True if all of it was stored.

        `rows` are the batch's rows in `outcome`. A batch larger than the free space must not be refused whole for ever.
        """
        try:
            arrived |= dict.fromkeys(self._append(batch, now_us))
        except DiskFullError:
            half = len(batch) // 2
            if half and self._store(batch.slice(0, half), rows[:half], outcome, arrived, now_us):
                return self._store(batch.slice(half, len(batch)), rows[half:], outcome, arrived, now_us)
            outcome[rows[half:]] = REFUSED
            return False
        return True

    def follow(self, batch: StoredBatch, now_us: int) -> StoredColumns:
        """Store a record that another member of the shard has made, at the positions that it has. Raises DiskFullError
        (nothing stored), CorruptionError where a queue has other messages there."""
        columns = {name: getattr(batch, name) for name, _ in batch.schema.fields}
        for run in grouped_columns(columns["subject"], columns["target_group"]):
            position, end = int(batch.position[run.row_start]), self._state.queues.end(run.key)
            if position < end:
                detail = f"the log of the shard has position {position} of a queue that ends at {end} here"
                raise CorruptionError("broker/store", self._state.files.store.end, detail)
            if 0 < end < position:
                self._state.damages.add(f"positions {end} to {position} of a queue never came: messages are missing")
        record = StoredColumns(*self._state.files.store.append(batch), columns)
        queues = add_record(self._state, record)
        self._aged(record.offset, now_us)
        self._spill(queues)
        return record

    def store_own(self, batch: StoredBatch, now_us: int) -> list[QueueKey]:
        """Store messages that this node makes, as one record; returns the queues that got messages. They belong to no
        window: no server hands them over, so none repeats them. Raises DiskFullError (nothing stored)."""
        stored = self.publish([batch], now_us, durably=False)
        self.published -= len(batch)  # no client asked for it
        return stored.arrived

    def _append(self, batch: StoredBatch, now_us: int) -> list[QueueKey]:
        """Store a batch as one record; returns the queues that got messages. Raises DiskFullError (nothing stored)."""
        state = self._state
        batch, runs = grouped(batch)
        queues = [state.queues.get_or_make(run.key) for run in runs]
        batch = batch.with_columns(position=positions_of(runs, [queue.end for queue in queues]))
        growth_bytes = state.files.store.growth_bytes(batch)
        if growth_bytes:
            state.room.require_beside(growth_bytes)
        start, end = state.files.store.append(batch)
        for run, queue in zip(runs, queues, strict=True):
            queue.append(start, run.row_start, run.row_count)
        self.delivered += len(batch)
        state.windows.add_record(start, end, batch.server_id, batch.window_ms, batch.sequence)
        self._known.add(batch)
        for check in self._checks:
            check.add_stored(batch)
        self._aged(start, now_us)
        self._spill(queues)
        return [run.key for run in runs]

    def _aged(self, start: int, now_us: int) -> None:
        """Note the time of a record for retention. While the clock is behind, later records still count as no older than
        earlier ones."""
        newest_us = next(reversed(self._state.files.segment_newest_us.values()), 0)
        self._state.files.segment_newest_us[self._state.files.store.base_of(start)] = max(now_us, newest_us)

    def publish(
        self, batches: Sequence[StoredBatch | StoredRows], now_us: int, stored: Stored | None = None, *, durably: bool
    ) -> PublishedPositions:
        """Store messages that this node made or took from clients: all of them or none. They have no window and no key,
        so a repetition is not recognised. Their `position` is not used, their `sequence` rises within a batch, and their
        `flags` have `FLAG_PUBLISHED`. With `durably` they are synced in this call, which must be small then.
        `stored` is called as soon as the records are in the store, so that producers need not wait for the rest.

        Raises DiskFullError (nothing stored), StoreError, SyncFailedError (final)."""
        state = self._state
        ends: dict[QueueKey, int] = {}
        placed: list[StoredBatch | StoredRows] = []
        runs_of: list[list[QueueRun]] = []
        positions: list[I64 | list[int]] = []
        for batch in batches:
            own, runs, given = (
                self._place_rows(batch, ends) if isinstance(batch, StoredRows) else self._place_columns(batch, ends)
            )
            placed.append(own)
            runs_of.append(runs)
            positions.append(given)
        growth_bytes = state.files.store.growth_bytes(*placed)
        if growth_bytes:
            state.room.require_beside(growth_bytes)
        entries = state.files.store.append_all(placed, durably=durably)
        published = PublishedPositions(positions, list(ends), entries[-1].end)
        if stored is not None:
            stored(published)
        state.files.store.keep(entries)
        for (start, _, _), own, runs in zip(entries, placed, runs_of, strict=True):
            queues = [state.queues.get_or_make(run.key) for run in runs]
            for run, queue in zip(runs, queues, strict=True):
                queue.append(start, run.row_start, run.row_count)
            self.published += len(own)
            self._aged(start, now_us)
            self._spill(queues)
        return published

    def _reserve(self, key: QueueKey, count: int, ends: dict[QueueKey, int]) -> int:
        """The first of `count` positions of a queue. `ends` has the ends of the queues behind what was placed before."""
        first = ends.get(key)
        if first is None:
            queue = self._state.queues.get(key)
            first = 0 if queue is None else queue.end
        ends[key] = first + count
        return first

    def _place_rows(
        self, batch: StoredRows, ends: dict[QueueKey, int]
    ) -> tuple[StoredRows, list[QueueRun], I64 | list[int]]:
        """The rows with their positions, those of a subject side by side; the runs; the positions as given."""
        rows, count = batch.rows, len(batch)
        if count == 1 or all(row[1] == rows[0][1] for row in rows):
            key = (rows[0][1], 0)
            first = self._reserve(key, count, ends)
            positions = list(range(first, first + count))
            batch.place(positions)
            return batch, [QueueRun(key, 0, count)], positions
        order = sorted(range(count), key=lambda place: rows[place][1])  # stable: a producer's order stays
        runs: list[QueueRun] = []
        given, in_order = [0] * count, list[int]()
        for subject, places in groupby(order, key=lambda place: rows[place][1]):
            own = list(places)
            first = self._reserve((subject, 0), len(own), ends)
            runs.append(QueueRun((subject, 0), len(in_order), len(own)))
            for position, place in enumerate(own, first):
                given[place] = position
                in_order.append(position)
        placed = StoredRows(
            [rows[place] for place in order],
            [batch.sequences[place] for place in order],
            in_order,
            batch.accepted_us,
            batch.server_id,
        )
        return placed, runs, given

    def _place_columns(
        self, batch: StoredBatch, ends: dict[QueueKey, int]
    ) -> tuple[StoredBatch, list[QueueRun], I64 | list[int]]:
        placed, runs = grouped(batch)
        positions = positions_of(runs, [self._reserve(run.key, run.row_count, ends) for run in runs])
        given = positions
        if placed is not batch:  # the sequences rise as given, so they show where each row went
            given = positions[np.argsort(placed.sequence, kind="stable")]
        return placed.with_columns(position=positions), runs, given

    def _spill(self, queues: list[ConsumeQueue]) -> None:
        """Bound the index rows in memory, of each queue and of all together."""
        limits, blocks = self._state.limits, self._state.files.blocks
        self._runs += len(queues)
        if self._state.queues.capturing:  # for a fraction of a second; the next append spills
            return
        for queue in queues:
            self._runs -= queue.spill_above(limits.queue_runs_max, blocks)
        if self._runs > limits.runs_max:
            for queue in self._state.queues.largest():
                self._runs -= queue.spill_above(min(queue.runs_in_memory - 1, limits.queue_runs_max // 2), blocks)
                if self._runs <= limits.runs_max // 4 * 3:
                    break

    def window_complete(self, server_id: int, windows_ms: list[int]) -> None:
        """A server declares that it will not hand off messages of these windows again. Drops their keys."""
        for window_ms in windows_ms:
            self._state.windows.complete((server_id, window_ms))
            self._known.forget((server_id, window_ms))
