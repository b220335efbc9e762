"""Preparing a delivered batch: its runs by queue, and its rows that are stored already. Columns in, columns out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.queues.window_table import Window, by_window
from store.records.batches import I64, U8, U32, StoredBatch
from store.records.shared_column import REDELIVERY

STORED, DUPLICATE, REFUSED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Delivered:
    """Answer of `deliver`. `outcome` u8[n]: 1 stored, 2 stored before, 3 refused. `arrived`: queues with new messages.

    The rows are durable once `BrokerStore.synced` has reached `end`."""

    outcome: U8
    arrived: list[QueueKey]
    end: int

    @property
    def no_room(self) -> bool:
        """Whether all rows were refused for want of space."""
        return bool((self.outcome == REFUSED).all())


class QueueRun(NamedTuple):
    """Consecutive rows of one queue in a batch."""

    key: QueueKey
    row_start: int
    row_count: int


def grouped(batch: StoredBatch) -> tuple[StoredBatch, list[QueueRun]]:
    """The batch with the rows of each (subject, target group) together, and one run for each pair."""
    if _constant(batch.subject) and _constant(batch.target_group):
        return batch, grouped_columns(batch.subject, batch.target_group)
    keys = batch.subject.astype(np.int64) << 32 | batch.target_group
    if bool((keys[1:] < keys[:-1]).any()):
        batch = batch.take(np.argsort(keys, kind="stable"))
    return batch, grouped_columns(batch.subject, batch.target_group)


def grouped_columns(subject: U32, target_group: U32) -> list[QueueRun]:
    """The runs of two columns whose equal pairs stand together."""
    count = len(subject)
    if _constant(subject) and _constant(target_group):
        return [QueueRun((int(subject[0]), int(target_group[0])), 0, count)]
    keys = subject.astype(np.int64) << 32 | target_group
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
    counts = np.diff(np.append(starts, count))
    return [
        QueueRun((key >> 32, key & 0xFFFF_FFFF), start, rows)
        for key, start, rows in zip(keys[starts].tolist(), starts.tolist(), counts.tolist(), strict=True)
    ]


def positions_of(runs: list[QueueRun], firsts: list[int]) -> I64:
    """The position of every row, i64[n], if the first row of each run gets the position in `firsts`."""
    if len(runs) == 1:
        return np.arange(firsts[0], firsts[0] + runs[0].row_count, dtype=np.int64)
    counts = np.array([run.row_count for run in runs], np.int64)
    starts = np.array([run.row_start for run in runs], np.int64)
    shifts = np.array(firsts, np.int64) - starts
    return np.repeat(shifts, counts) + np.arange(int(counts.sum()), dtype=np.int64)


def _constant(column: NDArray[Any]) -> bool:
    return column.strides == (0,) or bool((column == column[0]).all())


def delivery_keys(sequence: I64, redelivery: NDArray[np.uint32]) -> I64:
    """(sequence, redelivery) as one number, i64[n]. Sequences stay below 2^47 for four years at a million a second."""
    keys: I64 = (sequence << 16) | REDELIVERY.number(redelivery).astype(np.int64)
    return keys


class KnownKeys:
    """Cached keys of windows with uncertain hand-offs, so that a thousand uncertain batches read the store once."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self._windows: dict[Window, list[I64]] = {}
        self._rows = 0
        # Keys that were stored while a read of their window was under way.
        self._reading: dict[Window, list[I64]] = {}

    def add(self, batch: StoredBatch) -> None:
        """Add newly stored rows to the windows in the cache, and to those that are being read."""
        if not self._windows and not self._reading:
            return
        for window, rows in by_window(batch.server_id, batch.window_ms):
            parts = self._windows.get(window, self._reading.get(window))
            if parts is not None:
                keys = delivery_keys(batch.sequence, batch.redelivery)
                parts.append(keys if rows is None else keys[rows])
                self._rows += len(parts[-1]) if window in self._windows else 0
        self._bound()

    def forget(self, window: Window) -> None:
        """Drop the keys of a complete window."""
        self._rows -= sum(map(len, self._windows.pop(window, ())))
        self._reading.pop(window, None)

    def present(self, window: Window, keys: I64) -> NDArray[np.bool_] | None:
        """True for each of `keys` that is stored, bool[n]; None if the window is not in the cache."""
        parts = self._windows.get(window)
        if parts is None:
            return None
        if len(parts) > 16:
            parts[:] = [np.sort(np.concatenate(parts))]
        found = np.zeros(len(keys), bool)
        for part in parts:
            found |= contains(part, keys)
        return found

    def begin(self, window: Window) -> None:
        """Begins a read of the window's keys: keeps those that are stored from now on."""
        self._reading.setdefault(window, [])

    def finish(self, window: Window, parts: list[I64] | None) -> None:
        """Ends the read. Caches its keys, i64[n] each; none after an error or if they exceed the bound."""
        since = self._reading.pop(window, None)
        if parts is not None and since is not None:
            self.forget(window)
            self._windows[window] = parts + since
            self._rows += sum(map(len, self._windows[window]))
            self._bound()

    def _bound(self) -> None:
        """Drop whole windows beyond the bound, the oldest first. The next check of one reads it again."""
        while self._rows > self.rows_max:
            self.forget(next(iter(self._windows)))


def contains(part: I64, keys: I64) -> NDArray[np.bool_]:
    """True for each of `keys` (i64[n]) that is in `part` (i64[m]), bool[n]."""
    if len(part) <= 4 * len(keys) or bool((np.diff(part) < 0).any()):
        return np.isin(keys, part)
    places = np.minimum(np.searchsorted(part, keys), len(part) - 1)
    found: NDArray[np.bool_] = part[places] == keys
    return found


def window_keys(records: Iterable[dict[str, NDArray[Any]]], window: Window) -> Iterator[I64]:
    """The keys of the records that belong to a window."""
    for columns in records:
        if int(columns["server_id"][0]) != window[0]:
            continue
        mine = columns["window_ms"] == window[1]
        if bool(mine.all()):
            yield delivery_keys(columns["sequence"], columns["redelivery"])
        elif bool(mine.any()):
            yield delivery_keys(columns["sequence"][mine], columns["redelivery"][mine])
