"""Rows that wait for one broker group, in the order they became due, and where those lie that left memory. Columns, no
clock, no I/O."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray
from sortedcontainers import SortedSet

from delayserver.rows import message_bytes
from wheel.due_rows import DueRows


class GroupQueue:
    """A queue of chunks of rows, taken from the front by count and bytes."""

    def __init__(self) -> None:
        self._chunks: deque[DueRows] = deque()
        self._rows = 0
        # Refused rows, and until when they are left alone: they would hold up the others.
        self._aside: list[tuple[int, DueRows]] = []

    def __len__(self) -> int:
        return self._rows

    @property
    def rows_aside(self) -> int:
        """Rows that are left alone for now; `len` does not count them."""
        return sum([len(rows) for _until_us, rows in self._aside])

    @property
    def next_back_us(self) -> int | None:
        """When the first of them is to be taken back."""
        return min([until_us for until_us, _rows in self._aside], default=None)

    def put_aside(self, rows: DueRows, until_us: int) -> None:
        """Leave rows alone for a while."""
        self._aside.append((until_us, rows))

    def take_back(self, now_us: int) -> None:
        """Append the rows that were left alone for long enough."""
        ready = [rows for until_us, rows in self._aside if until_us <= now_us]
        self._aside = [(until_us, rows) for until_us, rows in self._aside if until_us > now_us]
        for rows in ready:
            self.push(rows)

    def push(self, rows: DueRows) -> None:
        """Append rows."""
        if len(rows):
            self._chunks.append(rows)
            self._rows += len(rows)

    def push_front(self, rows: DueRows) -> None:
        """Put rows back to be taken first."""
        if len(rows):
            self._chunks.appendleft(rows)
            self._rows += len(rows)

    def take(self, rows_max: int, bytes_max: int) -> DueRows | None:
        """The first rows, at most `rows_max` and about `bytes_max` bytes of messages, at least one; None if empty."""
        if not self._chunks:
            return None
        taken: list[DueRows] = []
        rows, size = 0, 0
        while self._chunks and rows < rows_max and size < bytes_max:
            chunk = self._chunks.popleft()
            stop, part_bytes = _fitting(chunk, rows_max - rows, bytes_max - size, at_least_one=not taken)
            if stop < len(chunk):
                self._chunks.appendleft(chunk.slice(stop, len(chunk)))
            if not stop:
                break
            taken.append(chunk.slice(0, stop) if stop < len(chunk) else chunk)
            rows += stop
            size += part_bytes
        self._rows -= rows
        return taken[0] if len(taken) == 1 else DueRows.concatenate(taken)

    def drop_behind(self, rows_max: int) -> list[DueRows]:
        """Drop the last rows past a bound, and return them."""
        dropped: list[DueRows] = []
        while self._chunks and self._rows > rows_max:
            chunk = self._chunks.pop()
            keep = max(len(chunk) - (self._rows - rows_max), 0)
            dropped.append(chunk.slice(keep, len(chunk)))
            self._rows -= len(chunk) - keep
            if keep:
                # Copied, so that the dropped rows do not stay in memory behind a view.
                self._chunks.append(DueRows.concatenate([chunk.slice(0, keep)]))
        return dropped

    def remove(self, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Remove rows by sequence (sorted i64[n]) unless their last attempt's result is unknown; True where removed."""
        removed = np.zeros(len(sequences), dtype=bool)

        def kept(chunk: DueRows) -> DueRows:
            places = np.minimum(np.searchsorted(sequences, chunk.sequence), len(sequences) - 1)
            hit = (sequences[places] == chunk.sequence) & (chunk.payload["uncertain"] == 0)
            if not hit.any():
                return chunk
            removed[places[hit]] = True
            keep = np.flatnonzero(~hit)
            return DueRows(chunk.due_ms[keep], chunk.sequence[keep], chunk.payload[keep])

        chunks = [kept(chunk) for chunk in self._chunks]
        self._chunks = deque([chunk for chunk in chunks if len(chunk)])
        self._rows = sum([len(chunk) for chunk in self._chunks])
        aside = [(until_us, kept(chunk)) for until_us, chunk in self._aside]
        self._aside = [(until_us, chunk) for until_us, chunk in aside if len(chunk)]
        return removed

    def _all(self) -> list[DueRows]:
        return [*self._chunks, *[rows for _until_us, rows in self._aside]]

    def sequences(self) -> NDArray[np.int64]:
        """All sequences that wait here."""
        parts = [chunk.sequence for chunk in self._all()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def uncertain(self) -> NDArray[np.int64]:
        """The sequences whose last attempt has an unknown result."""
        parts = [chunk.sequence[chunk.payload["uncertain"] != 0] for chunk in self._all()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def retrying(self) -> NDArray[np.int64]:
        """The sequences that had at least one failed attempt."""
        parts = [chunk.sequence[chunk.payload["attempts"] > 0] for chunk in self._all()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class Spilled:
    """Windows of rows that left memory, by the place of their route: those of one may have a stand-in while the others
    wait."""

    def __init__(self) -> None:
        self._windows: dict[int, SortedSet[int]] = {}  # none of them empty

    def __len__(self) -> int:
        return len(set().union(*self._windows.values()))

    def __bool__(self) -> bool:
        return bool(self._windows)

    @property
    def places(self) -> list[int]:
        """The routes that have any."""
        return list(self._windows)

    def add(self, window_ms: int, place: int = 0) -> None:
        """Rows of a window left memory."""
        self._windows.setdefault(place, SortedSet()).add(window_ms)

    def take(self, place: int | None = None) -> tuple[int, list[int]]:
        """Know the first window (None: of all routes) no more; its start, and the routes that had it."""
        wanted = {route: self._windows[route] for route in (self.places if place is None else [place])}
        window_ms = min([windows[0] for windows in wanted.values()])
        had = [route for route, windows in wanted.items() if windows[0] == window_ms]
        for route in had:
            wanted[route].discard(window_ms)
            if not wanted[route]:
                del self._windows[route]
        return window_ms, had


def _fitting(chunk: DueRows, rows_max: int, bytes_max: int, *, at_least_one: bool) -> tuple[int, int]:
    """How many rows from the front of a chunk fit, and their bytes."""
    sizes = message_bytes(chunk.payload[:rows_max])
    whole = int(sizes.sum())
    if whole <= bytes_max:
        return len(sizes), whole
    total = np.cumsum(sizes)
    stop = int(np.searchsorted(total, bytes_max, side="right"))
    if stop == 0 and at_least_one:
        stop = 1
    return stop, int(total[stop - 1]) if stop else 0
