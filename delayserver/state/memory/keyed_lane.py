"""Rows with an order key that wait for one broker group, in (due, sequence) order. Columns, no clock, no I/O.

A key belongs to one of `BUCKETS` buckets by its hash. A bucket is busy while a batch with rows of it is on its way to a
node, and it pauses after a node has refused a row of it. Rows of such buckets stay where they are. So the rows of a key
leave one batch after the other, in their order. Keys of one bucket wait for each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.marks import Bell
from delayserver.state.memory.queue_chunk import Chunk, fitting
from store.records.id_hash import hash_id
from wheel.due_rows import DueRows
from wheel.keys import Key, key_order, rows_before

Buckets = NDArray[np.intp]
Mask = NDArray[np.bool_]

# Enough that two keys of a group seldom share one. The tables of a group have 32 KiB.
BUCKETS: Final = 4096
# Small chunks at the end of the lane are joined up to this size: a look for rows visits every chunk.
JOINED_ROWS_MAX: Final = 1024
# A row that comes late is put into a chunk of at most so many rows, which copies them: under a millisecond.
CHUNK_ROWS_MAX: Final = 8192


def buckets_of(rows: DueRows) -> Buckets:
    """The bucket of the order key of each row, intp[n]."""
    return (rows.payload["order_hash"] % np.uint32(BUCKETS)).astype(np.intp)


def bucket_of(order_key: bytes) -> int:
    """The bucket of an order key."""
    return (hash_id(order_key) & 0xFFFF_FFFF) % BUCKETS


class KeyedLane:
    """The lane. Its chunks do not overlap, and each is in order. Writers: the queue puts in, the broker group takes out
    and pauses buckets."""

    def __init__(self) -> None:
        # Rung when rows may be taken that could not be taken before.
        self.changed = Bell()
        self._chunks: list[Chunk] = []
        # The first and the last key of each chunk.
        self._firsts: list[Key] = []
        self._lasts: list[Key] = []
        self._rows = 0
        # Batches on their way, by bucket.
        self._busy = np.zeros(BUCKETS, np.int32)
        # Until when buckets pause (monotonic).
        self._until_us: dict[int, int] = {}

    def __len__(self) -> int:
        return self._rows

    @property
    def chunks(self) -> list[Chunk]:
        """The rows that wait here, in order."""
        return self._chunks

    # -- in

    def push(self, rows: DueRows) -> None:
        """Put rows in their places among those that wait."""
        if not len(rows):
            return
        order = key_order(rows.due_ms, rows.sequence)
        rows = rows if order is None else rows.take(order)
        self.changed.ring()
        self._rows += len(rows)
        first, last = _edges(rows)
        # The chunks [begin, end) overlap with the rows.
        begin, end = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if begin == end == len(self._chunks) and begin and len(self._chunks[-1].rows) + len(rows) <= JOINED_ROWS_MAX:
            begin -= 1
        if begin < end:
            rows = DueRows.concatenate([*[chunk.rows for chunk in self._chunks[begin:end]], rows])
            order = key_order(rows.due_ms, rows.sequence)
            rows = rows if order is None else rows.take(order)
        self._replace(begin, end, _pieces(rows))

    def _replace(self, begin: int, end: int, parts: list[DueRows]) -> None:
        """Put parts, which are in order and not empty, in the place of the chunks [begin, end)."""
        edges = [_edges(rows) for rows in parts]
        self._chunks[begin:end] = [Chunk(rows) for rows in parts]
        self._firsts[begin:end] = [first for first, _ in edges]
        self._lasts[begin:end] = [last for _, last in edges]

    # -- out

    def take(self, rows_max: int, bytes_max: int, wanted: Mask | None = None) -> DueRows | None:
        """The first rows of buckets that are free, at most `rows_max` and about `bytes_max` bytes of messages; None if there
        are none. `wanted` bool[BUCKETS]: only rows of these buckets. The caller holds their buckets."""
        free = self._busy == 0
        if self._until_us:
            free[list(self._until_us)] = False
        if wanted is not None:
            free &= wanted
        if not self._rows or not free.any():
            return None
        taken: list[DueRows] = []
        rows = size = 0
        left: list[DueRows] = []
        looked = 0
        for chunk in self._chunks:
            looked += 1
            mine = free[buckets_of(chunk.rows)]
            if mine.all():
                part, rest = chunk.rows, None
            elif mine.any():
                part, rest = chunk.rows.take(np.flatnonzero(mine)), chunk.rows.take(np.flatnonzero(~mine))
            else:
                left.append(chunk.rows)
                continue
            stop, part_bytes = fitting(part, rows_max - rows, bytes_max - size, at_least_one=not taken)
            if stop < len(part):
                behind = part.slice(stop, len(part))
                rest = behind if rest is None else _merged(rest, behind)
            if rest is not None:
                left.append(rest)
            if stop:
                taken.append(part.slice(0, stop) if stop < len(part) else part)
            rows += stop
            size += part_bytes
            if stop < len(part) or rows >= rows_max or size >= bytes_max:
                break
        if not taken:
            return None
        self._replace(0, looked, left)
        self._rows -= rows
        return taken[0] if len(taken) == 1 else DueRows.concatenate(taken)

    def drop_last(self, count: int) -> list[DueRows]:
        """Drop the last rows, and return them."""
        dropped: list[DueRows] = []
        while self._chunks and count > 0:
            rows = self._chunks[-1].rows
            keep = max(len(rows) - count, 0)
            dropped.append(rows.slice(keep, len(rows)))
            count -= len(rows) - keep
            self._rows -= len(rows) - keep
            # Copied, so that the dropped rows do not stay in memory behind a view.
            kept = [DueRows.concatenate([rows.slice(0, keep)])] if keep else []
            self._replace(len(self._chunks) - 1, len(self._chunks), kept)
        return dropped

    def drop_from(self, key: Key) -> list[DueRows]:
        """Drop the rows from a key on, and return them."""
        begin = bisect_left(self._lasts, key)
        behind = [chunk.rows for chunk in self._chunks[begin:]]
        before = rows_before(behind[0].due_ms, behind[0].sequence, key.due_ms, key.sequence) if behind else 0
        return self.drop_last(sum(map(len, behind)) - before)

    def keep(self, chunks: list[Chunk]) -> None:
        """Keeps these chunks, which are left of those that wait here. Some may have no rows."""
        parts = [chunk.rows for chunk in chunks if len(chunk.rows)]
        self._rows = sum(map(len, parts))
        self._replace(0, len(self._chunks), parts)

    def clear(self) -> None:
        """Drop all rows. Batches that are on their way keep their buckets."""
        self.keep([])
        self._until_us.clear()

    # -- buckets

    def hold(self, buckets: Buckets) -> None:
        """Holds these buckets, each named once, while a batch with rows of theirs is on its way."""
        self._busy[buckets] += 1

    def release(self, buckets: Buckets) -> None:
        """Frees buckets after their batch: it has ended, and rows that come again are back."""
        self._busy[buckets] -= 1
        self.changed.ring()

    def pause(self, buckets: Buckets, until_us: int) -> None:
        """Give no rows of these buckets before a time (monotonic)."""
        for bucket in np.unique(buckets).tolist():
            self._until_us[bucket] = max(self._until_us.get(bucket, 0), until_us)

    def resume(self, now_us: int) -> None:
        """End the pauses that are over."""
        if self._until_us:
            self._until_us = {bucket: until for bucket, until in self._until_us.items() if until > now_us}

    @property
    def pauses(self) -> bool:
        """Whether some buckets pause."""
        return bool(self._until_us)

    @property
    def next_resume_us(self) -> int | None:
        """When the first pause ends; None if there is none."""
        return min(self._until_us.values(), default=None)

    def check_invariants(self) -> None:
        """Rows are in order, and the counts are right."""
        assert self._rows == sum([len(chunk.rows) for chunk in self._chunks])
        assert len(self._chunks) == len(self._firsts) == len(self._lasts)
        assert bool((self._busy >= 0).all())
        for place, chunk in enumerate(self._chunks):
            chunk.rows.check_invariants()
            assert (self._firsts[place], self._lasts[place]) == _edges(chunk.rows)
        assert all(last < first for last, first in zip(self._lasts, self._firsts[1:], strict=False))


def _edges(rows: DueRows) -> tuple[Key, Key]:
    due_ms, sequence = rows.due_ms, rows.sequence
    return Key(int(due_ms[0]), int(sequence[0])), Key(int(due_ms[-1]), int(sequence[-1]))


def _pieces(rows: DueRows) -> list[DueRows]:
    if len(rows) <= CHUNK_ROWS_MAX:
        return [rows]
    starts = range(0, len(rows), CHUNK_ROWS_MAX)
    # Copied, so that rows that have left do not stay in memory behind a view.
    return [DueRows.concatenate([rows.slice(start, min(start + CHUNK_ROWS_MAX, len(rows)))]) for start in starts]


def _merged(one: DueRows, other: DueRows) -> DueRows:
    rows = DueRows.concatenate([one, other])
    order = key_order(rows.due_ms, rows.sequence)
    return rows if order is None else rows.take(order)
