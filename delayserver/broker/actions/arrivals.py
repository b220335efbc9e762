"""Delivered batches on their way into the store and the queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.delivering import (
    DUPLICATE,
    REFUSED,
    STORED,
    Delivered,
    KnownKeys,
    delivery_keys,
    grouped,
    positions_of,
    window_keys,
)
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.queues.windows import Window, by_window
from store.errors import DiskFullError
from store.records.batches import U8, StoredBatch


class Arrivals:
    """Stores each message once and bounds the index rows in memory."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._known = KnownKeys(state.limits.known_rows_max)
        self._runs = 0
        self.delivered = 0
        self.duplicates = 0
        self.count_runs()

    def count_runs(self) -> None:
        """Count the index rows in memory anew, after retention removed some."""
        self._runs = sum([queue.runs_in_memory for queue in self._state.queues.values()])

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:
        """See `Broker.deliver`."""
        outcome = np.full(len(batch), STORED, np.uint8)
        if uncertain:
            present = self._present(batch)
            outcome[present] = DUPLICATE
            duplicates = int(np.count_nonzero(present))
            self.duplicates += duplicates
            if duplicates == len(batch):
                return Delivered(outcome, [], self._state.store.end)
            if duplicates:
                batch = batch.take(np.flatnonzero(~present))
        arrived: dict[QueueKey, None] = {}
        rows = np.flatnonzero(outcome == STORED) if uncertain else np.arange(len(batch))
        self._store(batch, rows, outcome, arrived, now_us)
        return Delivered(outcome, list(arrived), self._state.store.end)

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

    def _append(self, batch: StoredBatch, now_us: int) -> list[QueueKey]:
        """Store a batch as one record; returns the queues that got messages. Raises DiskFullError (nothing stored)."""
        state = self._state
        batch, runs = grouped(batch)
        queues = [state.queue(run.key) for run in runs]
        batch = batch.with_columns(position=positions_of(runs, [queue.end for queue in queues]))
        growth_bytes = state.store.growth_bytes(batch)
        if growth_bytes:
            state.room.require_beside(growth_bytes)
        start, end = state.store.append(batch)
        for run, queue in zip(runs, queues, strict=True):
            queue.append(start, run.row_start, run.row_count)
        self.delivered += len(batch)
        state.windows.add_record(start, end, batch.server_id, batch.window_ms, batch.sequence)
        self._known.add(batch)
        # While the clock is behind, later records still count as no older than earlier ones.
        newest_us = next(reversed(state.segment_newest_us.values()), 0)
        state.segment_newest_us[state.store.base_of(start)] = max(now_us, newest_us)
        self._spill(queues)
        return [run.key for run in runs]

    def _present(self, batch: StoredBatch) -> NDArray[np.bool_]:
        keys = delivery_keys(batch.sequence, batch.redelivery)
        present = np.zeros(len(batch), bool)
        for window, rows in by_window(batch.server_id, batch.window_ms):
            place = slice(None) if rows is None else rows
            present[place] = self._known.present(window, keys[place], window_keys(self._records(window), window))
        return present

    def _records(self, window: Window) -> Iterator[dict[str, NDArray[Any]]]:
        """A window's readable records. Messages of the unreadable ones are stored again: no consumer can pull those."""
        for extent in self._state.windows.of(window):
            for record in self._state.store.readable_columns(extent.start, extent.stop, self._state.damaged):
                yield record.columns

    def _spill(self, queues: list[ConsumeQueue]) -> None:
        """Bound the index rows in memory, of each queue and of all together."""
        limits, blocks = self._state.limits, self._state.blocks
        self._runs += len(queues)
        for queue in queues:
            self._runs -= queue.spill_above(limits.queue_runs_max, blocks)
        if self._runs > limits.runs_max:
            for queue in sorted(self._state.queues.values(), key=lambda one: -one.runs_in_memory):
                self._runs -= queue.spill_above(min(queue.runs_in_memory - 1, limits.queue_runs_max // 2), blocks)
                if self._runs <= limits.runs_max // 4 * 3:
                    break

    def window_complete(self, server_id: int, windows_ms: list[int]) -> None:
        """See `Broker.window_complete`."""
        for window_ms in windows_ms:
            self._state.windows.complete((server_id, window_ms))
            self._known.forget((server_id, window_ms))
