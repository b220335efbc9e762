"""Reads the messages of one group's rows: a batch when it is handed over, a hot moment's before it comes.

What thousands are due in, the disk and the checks of their bytes would take as long as everything behind them. So rows
that stand close together in the wheel are read some tenths of a second early, in a bounded part of memory. They stay in
the wheel: they can be cancelled until they are due, and are handed over in the order and the batches of all others. A
hand-over that finds only some of its rows here reads its file as ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.dispatch.delivery import Shipment, read_batch
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.state.memory.rows import message_bytes
from store.errors import StoreError
from store.logs.schedule_log import ScheduleLog, ScheduleSource
from store.records.batches import I64, StoredBatch
from wheel.due_rows import DueRows
from wheel.keys import ascending

# Reading up to this many bytes stays on the event loop; they are in the page cache nearly always.
INLINE_READ_BYTES_MAX = 256 * 1024
# And of so many files: each may have to be opened.
INLINE_FILES_MAX = 8
# How long before its due time a row leaves the wheel. A batch of each of the next milliseconds may be made ready by a
# worker of its group: fewer than the workers, so that what is due now finds one.
AHEAD_MS = 4
# How long before its due time a hot moment is looked for, and how often.
LOOK_AHEAD_MS = 300
LOOK_MS = 100
# A moment is hot with so many rows, and so many in each millisecond of a run of the wheel.
HOT_ROWS_MIN = 1024
HOT_ROWS_A_MS = 256
# Runs are read together up to this.
PART_ROWS = 1 << 14
PART_BYTES = 4 << 20
# Beside its body, properties and id.
ROW_BYTES = 64
# A body that was due and that no attempt asked for: its message was cancelled, or went elsewhere.
KEPT_MS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Rows of the wheel that are to be read: their sequences lie between `first` and `last`. Who takes them out meanwhile
    writes into `released_us`, `attempts` and `uncertain`, which are not read here."""

    rows: DueRows
    first: int
    last: int
    bytes: int


@dataclass(slots=True, eq=False)
class _Part:
    """Messages of one file in the order of their sequences."""

    window_ms: int
    source: ScheduleSource
    batch: StoredBatch
    due_last_ms: int
    bytes: int
    rows_left: int

    def give(self, places: slice | NDArray[np.intp]) -> StoredBatch:
        """The messages at these places. Each is given once."""
        batch = self.batch.slice(places.start, places.stop) if isinstance(places, slice) else self.batch.take(places)
        self.rows_left -= len(batch)
        return batch

    def places(self, sequence: I64) -> slice | NDArray[np.intp] | None:
        """Where these rows (ascending, at least one) stand; None unless all are here."""
        own = self.batch.sequence
        first = int(np.searchsorted(own, sequence[0]))
        stop = first + len(sequence)
        if stop <= len(own) and bool((own[first:stop] == sequence).all()):
            return slice(first, stop)
        places = np.minimum(np.searchsorted(own, sequence), len(own) - 1)
        return places if bool((own[places] == sequence).all()) else None


class MessageReader:
    """`read` is for the group's workers, `look_ahead` for the dispatcher, `run` a task of the group."""

    def __init__(self, schedule: ScheduleLog, server_id: int, ahead_bytes_max: int, runtime: Runtime) -> None:
        self._schedule = schedule
        self._server_id = server_id
        self._workers = runtime.workers
        self._turns = runtime.turns
        self._clock = runtime.clock
        self._ahead_bytes_max = ahead_bytes_max
        # One worker of a group at a time: batches that wait for their turn are in memory.
        self._reading = trio.Lock()
        self._parts: list[_Part] = []
        self._wanted: deque[_Run] = deque()
        self._being_read: list[_Run] = []
        self._work = trio.Event()
        # Parts that could not be read (last due time, first and last sequence): each is tried again only at its hand-over.
        self._failed: set[tuple[int, int, int]] = set()
        # Rows handed over that had been read ahead, since the start.
        self.rows_ahead = 0

    async def read(self, shipment: Shipment) -> StoredBatch:
        """The messages of a shipment. Raises CorruptionError (ChangedRowsError where some can be served), KeyError."""
        large = len(shipment.rows) > LARGE_ROWS
        batch = self._take(shipment) if large and self._parts and not shipment.mixed else None
        if batch is not None:
            self.rows_ahead += len(batch)
            await self._turns.take()
            return batch
        read = partial(read_batch, self._schedule, shipment, self._server_id)
        # Rows of a whole day stand all over its file: each is a read of its own.
        scattered = shipment.mixed or shipment.source == ScheduleSource.DAY
        small = not scattered or len(shipment.rows) <= INLINE_FILES_MAX
        if small and int(shipment.rows.payload["bodies_length"].sum()) <= INLINE_READ_BYTES_MAX:
            return read()
        async with self._reading:
            batch = await self._workers.run(read)
        await self._turns.take()
        return batch

    # -- ahead

    def look_ahead(self, runs: list[DueRows]) -> None:
        """Note those of these sorted runs, which stay in the wheel, that are worth reading now: the first ones, as far as
        there is room."""
        self._forget()
        dense = [rows for rows in runs if is_dense(rows)]
        if sum(map(len, dense)) < HOT_ROWS_MIN:
            return
        first_ms, last_ms = min(int(rows.due_ms[0]) for rows in dense), max(int(rows.due_ms[-1]) for rows in dense)
        # Small runs of the same moment too: a hand-over is served from here only if all of it is here.
        hot = [rows for rows in runs if first_ms <= rows.due_ms[0] and rows.due_ms[-1] <= last_ms]
        known = [
            *[(int(part.batch.sequence[0]), int(part.batch.sequence[-1])) for part in self._parts],
            *[(run.first, run.last) for run in (*self._being_read, *self._wanted)],
            *[(first, last) for _due_ms, first, last in self._failed],
        ]
        room = self._ahead_bytes_max - sum([part.bytes for part in self._parts])
        room -= sum([run.bytes for run in (*self._being_read, *self._wanted)])
        for rows in sorted(hot, key=lambda rows: (int(rows.due_ms[0]), int(rows.sequence[0]))):
            first, last = _range_of(rows)
            # Also where a part of it was read: the others are few, or the run is one that was cut or merged since.
            if not any(begin <= last and first <= end for begin, end in known):
                room -= self._note(rows, room)
                if room <= 0:
                    break
        if self._wanted:
            self._work.set()

    def _note(self, rows: DueRows, room: int) -> int:
        """Note a run, in pieces if it is large; the bytes it takes, all of the room where there is too little."""
        size = _bytes_of(rows)
        if size > room:
            return room
        step = -(-len(rows) // -(-size // PART_BYTES))
        pieces = [rows.slice(begin, min(begin + step, len(rows))) for begin in range(0, len(rows), step)]
        self._wanted += [_run(piece) for piece in pieces]
        return size

    async def run(self) -> None:
        """Read what was noted until cancelled."""
        while True:
            runs = self._being_read = self._next_runs()
            if not runs:
                self._work = trio.Event()
                with trio.move_on_after(KEPT_MS / 1000 if self._parts else float("inf")):
                    await self._work.wait()
                self._forget()
                continue
            read = partial(self._read_parts, runs)
            try:
                self._parts += await self._workers.run(read)
                self._parts.sort(key=lambda part: int(part.batch.sequence[0]))
            except (StoreError, OSError, KeyError, MemoryError):
                # The hand-over meets it too: it reports the damage and serves the other rows.
                self._failed |= {(int(run.rows.due_ms[-1]), run.first, run.last) for run in runs}

    def _next_runs(self) -> list[_Run]:
        """The next of the noted runs that make one part. Workers read the rows that are due by now.

        Parts have as many rows as they may have, so that where they end most hand-overs end too."""
        runs: list[_Run] = []
        rows_left, bytes_left = PART_ROWS, PART_BYTES
        now_ms = self._clock.now_ms()
        while self._wanted and rows_left > 0:
            run = self._wanted.popleft()
            if run.rows.due_ms[-1] <= now_ms:
                continue
            if len(run.rows) > rows_left:
                self._wanted.appendleft(_run(run.rows.slice(rows_left, len(run.rows))))
                run = _run(run.rows.slice(0, rows_left))
            if runs and run.bytes > bytes_left:
                self._wanted.appendleft(run)
                break
            runs.append(run)
            rows_left -= len(run.rows)
            bytes_left -= run.bytes
        return runs

    def _read_parts(self, runs: list[_Run]) -> list[_Part]:
        parts = []
        for window_ms, source, rows in _by_file(DueRows.concatenate([run.rows for run in runs])):
            batch = read_batch(self._schedule, Shipment(rows, window_ms, source, False), self._server_id)
            parts.append(_Part(window_ms, source, batch, int(rows.due_ms.max()), _bytes_of(rows), len(rows)))
        return parts

    def _take(self, shipment: Shipment) -> StoredBatch | None:
        """The messages of a shipment if all are here, in its order."""
        sequence = shipment.rows.sequence
        order = None
        if not ascending(sequence):  # by subject, or due times do not ascend with sequences
            order = np.argsort(sequence)
            sequence = sequence[order]
        parts = [part for part in self._parts if (part.window_ms, part.source) == (shipment.window_ms, shipment.source)]
        found = _side_by_side(parts, sequence)
        if found is not None:
            batch = StoredBatch.concatenate([self._given(part, places) for part, places in found])
        else:
            mixed = _mixed(parts, sequence)
            if mixed is None:
                return None
            batch = StoredBatch.concatenate([self._given(part, places) for part, places, _rows in mixed])
            batch = batch.take(np.argsort(np.concatenate([rows for _part, _places, rows in mixed])))
        return batch if order is None else batch.take(np.argsort(order))

    def _given(self, part: _Part, places: slice | NDArray[np.intp]) -> StoredBatch:
        batch = part.give(places)
        if part.rows_left <= 0:
            self._parts.remove(part)
        return batch

    def _forget(self) -> None:
        """Drops bodies that no worker fetched, and bodies that lie far ahead after the clock was set back."""
        now_ms = self._clock.now_ms()
        self._parts = [part for part in self._parts if _is_near(part.due_last_ms, now_ms)]
        self._failed = {key for key in self._failed if _is_near(key[0], now_ms)}


def _side_by_side(parts: list[_Part], sequence: I64) -> list[tuple[_Part, slice | NDArray[np.intp]]] | None:
    """Where these rows (ascending) stand, if each part has all of them up to its last sequence; None otherwise."""
    found: list[tuple[_Part, slice | NDArray[np.intp]]] = []
    begin = 0
    for part in parts:
        end = int(np.searchsorted(sequence, part.batch.sequence[-1], side="right"))
        if end > begin:
            places = part.places(sequence[begin:end])
            if places is None:
                return None
            found.append((part, places))
            begin = end
    return found if begin == len(sequence) else None


def _mixed(parts: list[_Part], sequence: I64) -> list[tuple[_Part, NDArray[np.intp], NDArray[np.intp]]] | None:
    """The same where sequences of parts lie between each other's: a part, places in it, and which of the rows they are."""
    found: list[tuple[_Part, NDArray[np.intp], NDArray[np.intp]]] = []
    left = np.arange(len(sequence))
    for part in parts:
        own, wanted = part.batch.sequence, sequence[left]
        places = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        here = own[places] == wanted
        if here.any():
            found.append((part, places[here], left[here]))
            left = left[~here]
    return None if len(left) else found


def is_dense(rows: DueRows) -> bool:
    """Whether so much of a sorted run is due at a time that reading it holds up what is behind it."""
    return len(rows) >= HOT_ROWS_A_MS * (int(rows.due_ms[-1]) - int(rows.due_ms[0]) + 1)


def _is_near(due_ms: int, now_ms: int) -> bool:
    return now_ms - KEPT_MS <= due_ms <= now_ms + KEPT_MS


def _by_file(rows: DueRows) -> list[tuple[int, ScheduleSource, DueRows]]:
    """The rows of each schedule file, in the order of their sequences."""
    if not ascending(rows.sequence):
        rows = rows.take(np.argsort(rows.sequence))
    code = rows.payload["window_ms"] * 4 + rows.payload["source"]
    return [
        (value // 4, ScheduleSource(value % 4), rows if len(rows) == len(mine) else rows.take(mine))
        for value in np.unique(code).tolist()
        for mine in (np.flatnonzero(code == value),)
    ]


def _run(rows: DueRows) -> _Run:
    return _Run(rows, *_range_of(rows), _bytes_of(rows))


def _range_of(rows: DueRows) -> tuple[int, int]:
    if rows.due_ms[0] == rows.due_ms[-1]:  # sorted by due time, then by sequence
        return int(rows.sequence[0]), int(rows.sequence[-1])
    return int(rows.sequence.min()), int(rows.sequence.max())


def _bytes_of(rows: DueRows) -> int:
    return int(message_bytes(rows.payload).sum()) + ROW_BYTES * len(rows)
