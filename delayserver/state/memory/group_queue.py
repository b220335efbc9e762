"""Rows that wait for one broker group, in the order they became due. Columns, no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from delayserver.state.memory.group_wheels import BACKLOG_MS
from delayserver.state.memory.keyed_lane import KeyedLane
from delayserver.state.memory.queue_chunk import Chunk, fitting
from delayserver.state.memory.rows import has_order_key
from store.records.membership import is_member
from wheel.due_rows import DueRows
from wheel.keys import KEY_LOWEST, Key, last_key

I64 = NDArray[np.int64]
# In a long queue, small chunks at its end are joined up to this size: a question to the queue visits every chunk.
JOINED_ROWS_MAX = 1024
# A shorter queue leaves its chunks as they come: a healthy group takes them at once.
LONG_QUEUE_ROWS = 4096


class GroupQueue:
    """A queue of chunks of rows, taken from the front by count and bytes. Writers: `Queueing` puts in, the broker group
    takes out, `Overflow` drops the last ones.

    A question about some messages gives their due times too: it looks only into the chunks that hold rows of such due
    times, so its cost does not grow with the length of the queue.

    Rows that were released long after their due time wait in a lane of their own, and `take` serves both lanes in turn:
    after a downtime fresh messages do not wait behind the backlog.

    Rows with an order key wait in `keyed`, and are taken from there.
    """

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._backlog: deque[Chunk] = deque()
        self._rows = 0
        self._backlog_rows = 0
        self._backlog_next = False
        # Refused rows, and until when they are left alone: they would hold up the others.
        self._aside: list[tuple[int, Chunk]] = []
        self.keyed = KeyedLane()

    def __len__(self) -> int:
        return self._rows + len(self.keyed)

    @property
    def keyless_rows(self) -> int:
        """The number of rows without an order key, which `take` gives; a part of `len`."""
        return self._rows

    @property
    def backlog_rows(self) -> int:
        """The number of rows that were released long after their due time; a part of `len`."""
        return self._backlog_rows

    @property
    def rows_aside(self) -> int:
        """Rows that are left alone for now; `len` does not count them."""
        return sum([len(chunk.rows) for _until_us, chunk in self._aside])

    @property
    def next_back_us(self) -> int | None:
        """When the first of them is to be taken back."""
        return min([until_us for until_us, _chunk in self._aside], default=None)

    def put_aside(self, rows: DueRows, until_us: int) -> None:
        """Leave rows alone for a while."""
        if len(rows):
            self._aside.append((until_us, Chunk(rows)))

    def take_back(self, now_us: int) -> None:
        """Append the rows that were left alone for long enough."""
        ready = [chunk for until_us, chunk in self._aside if until_us <= now_us]
        self._aside = [(until_us, chunk) for until_us, chunk in self._aside if until_us > now_us]
        for chunk in ready:
            self.push(chunk.rows)

    def push(self, rows: DueRows) -> None:
        """Append rows."""
        rows = self._keyless(rows)
        if len(rows):
            lane = self._lane_for(rows)
            if self._rows > LONG_QUEUE_ROWS and lane and len(lane[-1].rows) + len(rows) <= JOINED_ROWS_MAX:
                lane.append(Chunk(DueRows.concatenate([lane.pop().rows, rows])))
            else:
                lane.append(Chunk(rows))

    def push_front(self, rows: DueRows) -> None:
        """Put rows back to be taken first."""
        rows = self._keyless(rows)
        if len(rows):
            self._lane_for(rows).appendleft(Chunk(rows))

    def _keyless(self, rows: DueRows) -> DueRows:
        """Put the rows with an order key in their lane; returns the others."""
        keyed = has_order_key(rows.payload)
        if not keyed.any():
            return rows
        if keyed.all():
            self.keyed.push(rows)
            return rows.slice(0, 0)
        self.keyed.push(rows.take(np.flatnonzero(keyed)))
        return rows.take(np.flatnonzero(~keyed))

    def _lane_for(self, rows: DueRows) -> deque[Chunk]:
        """The lane of some rows, which come to stay."""
        self._rows += len(rows)
        # One row says it for all: they left their wheel together.
        released_us = int(rows.payload["released_us"][0])
        if released_us and released_us <= (int(rows.due_ms[0]) + BACKLOG_MS) * 1000:
            return self._chunks
        self._backlog_rows += len(rows)  # also what was read back from disk
        return self._backlog

    def take(self, rows_max: int, bytes_max: int, *, backlog: bool = True) -> DueRows | None:
        """The first rows of the lane whose turn it is, at most `rows_max` and about `bytes_max` bytes of messages, at least
        one; None if there are none. Without `backlog` only rows of the other lane."""
        use_backlog = backlog and bool(self._backlog) and (self._backlog_next or not self._chunks)
        lane = self._backlog if use_backlog else self._chunks
        if not lane:
            return None
        self._backlog_next = not use_backlog
        taken: list[DueRows] = []
        rows, size = 0, 0
        while lane and rows < rows_max and size < bytes_max:
            chunk = lane.popleft()
            stop, part_bytes = fitting(chunk.rows, rows_max - rows, bytes_max - size, at_least_one=not taken)
            if stop < len(chunk.rows):
                rest = chunk.rows.slice(stop, len(chunk.rows))
                lane.appendleft(chunk.part(rest))
            if not stop:
                break
            taken.append(chunk.rows.slice(0, stop) if stop < len(chunk.rows) else chunk.rows)
            rows += stop
            size += part_bytes
        self._rows -= rows
        if use_backlog:
            self._backlog_rows -= rows
        return taken[0] if len(taken) == 1 else DueRows.concatenate(taken)

    def drop_behind(self, rows_max: int) -> list[DueRows]:
        """Drop the last rows past a bound, those of the backlog first, then those with an order key, and return them."""
        dropped = self._drop_from(self._backlog, rows_max)
        if len(self) > rows_max:
            dropped += self.keyed.drop_last(len(self) - rows_max)
        return dropped + self._drop_from(self._chunks, rows_max)

    def _drop_from(self, lane: deque[Chunk], rows_max: int) -> list[DueRows]:
        dropped: list[DueRows] = []
        while lane and len(self) > rows_max:
            chunk = lane.pop()
            count = len(chunk.rows)
            keep = max(count - (len(self) - rows_max), 0)
            dropped.append(chunk.rows.slice(keep, count))
            self._rows -= count - keep
            if lane is self._backlog:
                self._backlog_rows -= count - keep
            if keep:
                # Copied, so that the dropped rows do not stay in memory behind a view.
                kept = DueRows.concatenate([chunk.rows.slice(0, keep)])
                lane.append(chunk.part(kept))
        return dropped

    def clear(self) -> None:
        """Drop all rows, also those that are left alone."""
        self._chunks.clear()
        self._backlog.clear()
        self._aside.clear()
        self.keyed.clear()
        self._rows = self._backlog_rows = 0

    def remove(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Remove rows (i64[n], i64[n], sequences ascending) unless their last attempt's result is unknown; True where one
        was removed, bool[n]."""
        removed = np.zeros(len(sequence), dtype=bool)
        if not len(sequence):
            return removed
        first_ms, last_ms = int(due_ms.min()), int(due_ms.max())

        def kept(chunk: Chunk) -> Chunk:
            if not chunk.may_hold(first_ms, last_ms):
                return chunk
            rows = chunk.rows
            places = np.minimum(np.searchsorted(sequence, rows.sequence), len(sequence) - 1)
            hit = np.flatnonzero(sequence[places] == rows.sequence)
            hit = hit[rows.payload["uncertain"][hit] == 0]
            if not len(hit):
                return chunk
            removed[places[hit]] = True
            keep = np.delete(np.arange(len(rows)), hit)
            rows = DueRows(rows.due_ms[keep], rows.sequence[keep], rows.payload[keep])
            return chunk.part(rows)

        chunks, backlog = [kept(chunk) for chunk in self._chunks], [kept(chunk) for chunk in self._backlog]
        keyed = [kept(chunk) for chunk in self.keyed.chunks]
        if removed.any():
            self.keyed.keep(keyed)
            self._chunks = deque([chunk for chunk in chunks if len(chunk.rows)])
            self._backlog = deque([chunk for chunk in backlog if len(chunk.rows)])
            self._backlog_rows = sum([len(chunk.rows) for chunk in self._backlog])
            self._rows = sum([len(chunk.rows) for chunk in self._chunks]) + self._backlog_rows
        aside = [(until_us, kept(chunk)) for until_us, chunk in self._aside]
        self._aside = [(until_us, chunk) for until_us, chunk in aside if len(chunk.rows)]
        return removed

    def _all(self) -> list[Chunk]:
        return [*self._chunks, *self._backlog, *self.keyed.chunks, *[chunk for _until_us, chunk in self._aside]]

    def keys(self) -> tuple[I64, I64]:
        """Due times and sequences of all rows that wait here: for checks."""
        parts = [chunk.rows for chunk in self._all()]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([rows.due_ms for rows in parts]), np.concatenate([rows.sequence for rows in parts])

    def sequences(self) -> I64:
        """All sequences that wait here: for checks."""
        return self.keys()[1]

    def holds(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """True where a message (i64[n], i64[n]) waits here, bool[n]."""
        return self._find(due_ms, sequence, lambda rows: rows.sequence)

    def retries(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """True where a message waits here and was attempted before, bool[n]."""

        def attempted(rows: DueRows) -> I64:
            mine: I64 = rows.sequence[(rows.payload["attempts"] > 0) | (rows.payload["uncertain"] != 0)]
            return mine

        return self._find(due_ms, sequence, attempted)

    def _find(self, due_ms: I64, sequence: I64, chosen: Callable[[DueRows], I64]) -> NDArray[np.bool_]:
        if not len(sequence):
            return np.zeros(0, dtype=bool)
        first_ms, last_ms = int(due_ms.min()), int(due_ms.max())
        near = [chunk.rows for chunk in self._all() if chunk.may_hold(first_ms, last_ms)]
        if not near:
            return np.zeros(len(sequence), dtype=bool)
        return is_member(sequence, np.concatenate([chosen(rows) for rows in near]))

    def last_key(self) -> Key:
        """The highest key that waits here, KEY_LOWEST if none does: for checks."""
        return max([last_key(chunk.rows.due_ms, chunk.rows.sequence) for chunk in self._all()], default=KEY_LOWEST)

    def check_invariants(self) -> None:
        """The count is right, no chunk is empty, and each knows its due times."""
        assert self._rows == sum([len(chunk.rows) for chunk in (*self._chunks, *self._backlog)])
        assert self._backlog_rows == sum([len(chunk.rows) for chunk in self._backlog])
        self.keyed.check_invariants()
        for chunk in self._all():
            assert len(chunk.rows)
            first_ms, last_ms = chunk.due_range
            assert first_ms <= chunk.rows.due_ms.min() and chunk.rows.due_ms.max() <= last_ms
