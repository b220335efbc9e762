"""The order of messages with an order key, for one consumer group. Pure: positions and hashes of keys, no messages.

A message goes out only if no earlier message of its key is unfinished, unless the same pull takes that one as well. While
its key is busy a message is blocked: the group has looked at it, and it waits in its place until its key is free.

The table has a row for each unfinished message with a key that the group has looked at, in ascending positions. Keys are
known by their hashes. Two keys with the same hash wait for each other, which costs time and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.ranges import Range, RangeSet, ranges_of
from store.records.batches import I64, U64

Mask = NDArray[np.bool_]

# Neighbours of one key that a free key makes ready together. One consumer gets them in one pull, in order.
RUN_MAX = 1024

_NO_POSITIONS: I64 = np.empty(0, np.int64)
_NO_HASHES: U64 = np.empty(0, np.uint64)
_NOTHING: Mask = np.empty(0, np.bool_)


class KeyOrder:
    """Says which messages may go out, and which ones a finished message makes ready."""

    __slots__ = ("_blocked", "_finished", "_hashes", "_heads", "_noted", "_positions")

    def __init__(self) -> None:
        self._positions = _NO_POSITIONS
        self._hashes = _NO_HASHES
        self._blocked = _NOTHING
        # Rows of the pull under way. They join the table behind it, so that it may take several messages of a key.
        self._noted: list[tuple[I64, U64, bool]] = []
        # Finished positions that are in the table still.
        self._finished = RangeSet()
        # The hash of each key, ascending, and the position of its first row.
        self._heads: tuple[U64, I64] | None = None

    @property
    def blocked(self) -> int:
        """How many messages wait for their key."""
        self._join()
        return int(np.count_nonzero(self._blocked))

    @property
    def is_empty(self) -> bool:
        """Whether no message is unfinished."""
        return not len(self._positions) and not self._noted

    def begin_pull(self) -> None:
        """A pull begins: what earlier ones took counts for it."""
        self._join()

    def admits(self, start: int, hashes: U64) -> Mask:
        """Which messages of a span that begins at `start` may go out, bool[n]. Hash 0 stands for no key."""
        if not len(self._positions):
            return np.ones(len(hashes), np.bool_)
        admitted: Mask = (self._first_of(hashes) >= start) | (hashes == 0)
        return admitted

    def is_head(self, positions: I64, hashes: U64) -> Mask:
        """Which messages have no unfinished one of their key before them, bool[n]."""
        self._join()
        heads: Mask = self._first_of(hashes) >= positions
        return heads

    def _first_of(self, hashes: U64) -> I64:
        """The position of each key's first row, i64[n]; above all positions for a key without a row."""
        if self._heads is None:
            keys, rows = np.unique(self._hashes, return_index=True)
            self._heads = keys, self._positions[rows]
        keys, firsts = self._heads
        first = np.full(len(hashes), np.iinfo(np.int64).max)
        if len(keys):
            places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
            found = keys[places] == hashes
            first[found] = firsts[places[found]]
        return first

    def note(self, positions: I64, hashes: U64, *, blocked: bool) -> None:
        """Messages with a key went out, or must wait for it. Positions ascend within a pull."""
        if len(positions):
            self._noted.append((positions, hashes, blocked))

    def _join(self) -> None:
        """Bring the rows of the last pull into the table."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        positions = np.concatenate([self._positions, *[part[0] for part in noted]])
        hashes = np.concatenate([self._hashes, *[part[1] for part in noted]])
        blocked = np.concatenate([self._blocked, *[np.full(len(part[0]), part[2]) for part in noted]])
        if not bool((positions[1:] > positions[:-1]).all()):
            order = np.argsort(positions, kind="stable")
            positions, hashes, blocked = positions[order], hashes[order], blocked[order]
            newest = np.append(positions[1:] != positions[:-1], True)
            positions, hashes, blocked = positions[newest], hashes[newest], blocked[newest]
        self._set(positions, hashes, blocked)

    def _set(self, positions: I64, hashes: U64, blocked: Mask) -> None:
        self._positions, self._hashes, self._blocked = positions, hashes, blocked
        self._heads = None

    def block(self, positions: I64) -> None:
        """Messages that went out are given back and wait for their key."""
        self._join()
        self._blocked[np.isin(self._positions, positions)] = True

    def finish(self, start: int, stop: int) -> None:
        """The messages at [start, stop) are done. `free` takes them out of the table."""
        self._finished.add(start, stop)

    def free(self) -> list[Range]:
        """Forget finished messages. Returns the positions of those whose key has become free; they may go out now."""
        if not len(self._finished):
            return []
        self._join()
        finished, self._finished = self._finished, RangeSet()
        done = finished.covers(self._positions, self._positions + 1)
        gone = self._hashes[done]
        if not len(gone):
            return []
        kept = ~done
        self._set(self._positions[kept], self._hashes[kept], self._blocked[kept])
        if not bool(self._blocked.any()):
            return []
        rows = np.flatnonzero(np.isin(self._hashes, np.unique(gone)))
        heads = rows[np.unique(self._hashes[rows], return_index=True)[1]]
        heads = heads[self._blocked[heads]]
        ready = self._runs_from(heads)
        self._blocked[ready] = False
        return ranges_of(self._positions[ready])

    def _runs_from(self, heads: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows of blocked neighbours of one key that begin at these rows, ascending."""
        count = len(self._positions)
        apart = (np.diff(self._positions) != 1) | (self._hashes[1:] != self._hashes[:-1]) | ~self._blocked[1:]
        ends = np.append(np.flatnonzero(apart) + 1, count)
        stops = np.minimum(ends[np.searchsorted(ends, heads, side="right")], heads + RUN_MAX)
        lengths = stops - heads
        offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.sort(np.repeat(heads, lengths) + offsets)

    def behind(self, failed: list[Range]) -> I64:
        """The positions of messages that went out behind a failed one of their key, and have not failed themselves."""
        self._join()
        ranges = RangeSet()
        for start, stop in failed:
            ranges.add(start, stop)
        lost = ranges.covers(self._positions, self._positions + 1)
        if not lost.any():
            return _NO_POSITIONS
        keys, rows = np.unique(self._hashes[lost], return_index=True)
        firsts = self._positions[lost][rows]
        places = np.minimum(np.searchsorted(keys, self._hashes), len(keys) - 1)
        of_these = (keys[places] == self._hashes) & (self._positions > firsts[places])
        behind: I64 = self._positions[of_these & ~lost & ~self._blocked]
        return behind

    def within(self, start: int, stop: int) -> tuple[I64, Mask]:
        """The unfinished messages in [start, stop): their positions i64[n], and which of them are blocked."""
        self._join()
        low, high = np.searchsorted(self._positions, (start, stop)).tolist()
        return self._positions[low:high], self._blocked[low:high]

    def check_invariants(self) -> None:
        """Positions ascend, and every row has a key."""
        self._join()
        self._finished.check_invariants()
        assert bool((self._positions[1:] > self._positions[:-1]).all()), "positions out of order"
        assert len(self._positions) == len(self._hashes) == len(self._blocked)
        assert bool((self._hashes != 0).all()), "a row without a key"
