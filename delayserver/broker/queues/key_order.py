"""The order of messages with an order key, for one consumer group. Pure: positions and hashes of keys, no messages.

A message goes out only if no earlier message of its key is unfinished, unless the same pull takes that one as well. While
its key is busy a message is blocked: the group has looked at it, and it waits in its place until its key is free.

The table has a row for each unfinished message with a key that the group has looked at, in ascending positions. Keys are
known by their hashes. Two keys with the same hash wait for each other, which costs time and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.deliveries import LEASES
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

    __slots__ = ("_blocked", "_finished", "_hashes", "_heads", "_leases", "_noted", "_positions", "blocked")

    def __init__(self) -> None:
        self._positions = _NO_POSITIONS
        self._hashes = _NO_HASHES
        self._blocked = _NOTHING
        # The number of each message's last lease, -1 for one that this process never handed out.
        self._leases = _NO_POSITIONS
        # How many messages wait for their key, at most.
        self.blocked = 0
        # Rows of the pull under way. They join the table behind it, so that it may take several messages of a key.
        self._noted: list[tuple[I64, U64, Mask, I64]] = []
        # Finished positions that are in the table still.
        self._finished = RangeSet()
        # The hash of each key, ascending, and the position of its first row.
        self._heads: tuple[U64, I64] | None = None

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

    def take(self, positions: I64, hashes: U64) -> I64:
        """Messages with a key go out. Returns the number of each one's lease, i64[n]."""
        leases = self._leases_of(positions) + 1
        self._noted.append((positions, hashes, np.zeros(len(positions), np.bool_), leases))
        return leases

    def wait(self, positions: I64, hashes: U64) -> None:
        """Messages with a key wait for it."""
        self.blocked += len(positions)
        self._noted.append((positions, hashes, np.ones(len(positions), np.bool_), self._leases_of(positions)))

    def _leases_of(self, positions: I64) -> I64:
        leases = np.full(len(positions), -1, np.int64)
        if len(self._positions) and len(positions) and positions[0] <= self._positions[-1]:
            places = np.minimum(np.searchsorted(self._positions, positions), len(self._positions) - 1)
            known = self._positions[places] == positions
            leases[known] = self._leases[places[known]]
        return leases

    def _join(self) -> None:
        """Bring the rows of the last pull into the table."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        positions = np.concatenate([self._positions, *[part[0] for part in noted]])
        hashes = np.concatenate([self._hashes, *[part[1] for part in noted]])
        blocked = np.concatenate([self._blocked, *[part[2] for part in noted]])
        leases = np.concatenate([self._leases, *[part[3] for part in noted]])
        if not bool((positions[1:] > positions[:-1]).all()):
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
            newest = order[np.append(positions[1:] != positions[:-1], True)]
            positions, hashes = np.unique(positions), hashes[newest]
            blocked, leases = blocked[newest], leases[newest]
        self._set(positions, hashes, blocked, leases)

    def _set(self, positions: I64, hashes: U64, blocked: Mask, leases: I64) -> None:
        self._positions, self._hashes, self._blocked, self._leases = positions, hashes, blocked, leases
        self._heads = None
        self.blocked = int(np.count_nonzero(blocked))

    def block(self, positions: I64) -> None:
        """Messages that went out are given back and wait for their key. Their leases count no more, also when it is free."""
        self._join()
        rows = np.isin(self._positions, positions)
        self._blocked[rows] = True
        self._leases[rows] += 1
        self.blocked = int(np.count_nonzero(self._blocked))

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
        self._set(self._positions[kept], self._hashes[kept], self._blocked[kept], self._leases[kept])
        if not self.blocked:
            return []
        rows = np.flatnonzero(np.isin(self._hashes, np.unique(gone)))
        heads = rows[np.unique(self._hashes[rows], return_index=True)[1]]
        heads = heads[self._blocked[heads]]
        ready = self._runs_from(heads)
        self._blocked[ready] = False
        self.blocked -= len(ready)
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

    def blocked_within(self, start: int, stop: int) -> I64:
        """The positions in [start, stop) of the messages that wait for their key."""
        self._join()
        low, high = np.searchsorted(self._positions, (start, stop)).tolist()
        positions: I64 = self._positions[low:high][self._blocked[low:high]]
        return positions

    def not_of_lease(self, start: int, stop: int, lease: int | None) -> I64:
        """The positions in [start, stop) of unfinished messages that wait for their key, or whose last lease has another
        number (as far as an id holds it). None: no lease is theirs."""
        self._join()
        low, high = np.searchsorted(self._positions, (start, stop)).tolist()
        positions: I64 = self._positions[low:high]
        if lease is None:
            return positions
        others: I64 = positions[self._blocked[low:high] | (self._leases[low:high] % LEASES != lease)]
        return others

    def check_invariants(self) -> None:
        """Positions ascend, and every row has a key."""
        self._join()
        self._finished.check_invariants()
        assert bool((self._positions[1:] > self._positions[:-1]).all()), "positions out of order"
        assert len(self._positions) == len(self._hashes) == len(self._blocked) == len(self._leases)
        assert self.blocked == np.count_nonzero(self._blocked)
        assert bool((self._hashes != 0).all()), "a row without a key"
