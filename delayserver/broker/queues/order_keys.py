"""The order keys of one consumer group, and which of them are busy. Pure: hashes of keys, no messages.

A key is busy while a message of it is out: leased, failed, or waiting for its pause as the first one. Keys are known by
their hashes. Two keys with the same hash wait for each other, which costs time and nothing else.

Both queues of the group share the table, so a message that comes back in the retry queue has its key for itself as well.
A key has a slot as long as a message of it is unfinished. Slots spare the rows of `KeyOrder` a search by hash.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, U64

Mask = NDArray[np.bool_]

# Keys without a message leave the table when there are so many (32 bytes each), and more of them than of the others. Keys
# come again: forgetting them costs more than to keep some.
_UNUSED_MAX = 16_384

_NO_SLOTS: I64 = np.empty(0, np.int64)
_NO_HASHES: U64 = np.empty(0, np.uint64)


class OrderKeys:
    """Slots of keys. `rows`: their unfinished messages, `busy`: how many of these are out."""

    __slots__ = ("_busy", "_free", "_hashes", "_noted", "_rows", "_slots", "changes", "rows")

    def __init__(self) -> None:
        # Ascending hashes, and the slot of each.
        self._hashes = _NO_HASHES
        self._slots = _NO_SLOTS
        self._free = _NO_SLOTS
        # By slot.
        self._busy = _NO_SLOTS
        self._rows = _NO_SLOTS
        # Messages that the pull under way takes. They count behind it, so that it may take several messages of a key.
        self._noted: list[I64] = []
        self.rows = 0
        # Counts the times at which keys became busy or free.
        self.changes = 0

    def __len__(self) -> int:
        """Number of keys, unused ones included."""
        return len(self._hashes)

    def join(self) -> None:
        """Ends a pull: its messages count."""
        if self._noted:
            noted, self._noted = self._noted, []
            self.hold(np.concatenate(noted))

    def are_free(self, slots: I64) -> Mask:
        """Which keys were not busy when the pull began, bool[n]."""
        free: Mask = self._busy[slots] == 0
        return free

    def slots_of(self, hashes: U64) -> I64:
        """The slots of keys, i64[n]; a new one gets a slot. They are good until the next `leave`."""
        if len(self._hashes):
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            new = self._hashes[places] != hashes
            if not new.any():
                return self._slots[places]
            self._add(np.unique(hashes[new]))
        else:
            self._add(np.unique(hashes))
        slots: I64 = self._slots[np.searchsorted(self._hashes, hashes)]
        return slots

    def _add(self, hashes: U64) -> None:
        """Give slots to new keys, in ascending order."""
        count = len(hashes)
        known = len(self._busy)
        slots = self._free[:count]
        self._free = self._free[count:]
        if len(slots) < count:
            slots = np.concatenate((slots, np.arange(known, known + count - len(slots))))
            more = np.zeros(max(known, count), np.int64)
            self._busy, self._rows = np.concatenate((self._busy, more)), np.concatenate((self._rows, more))
            self._free = np.arange(int(slots[-1]) + 1, len(self._busy))
        places = np.searchsorted(self._hashes, hashes)
        self._hashes = np.insert(self._hashes, places, hashes)
        self._slots = np.insert(self._slots, places, slots)

    def enter(self, slots: I64) -> None:
        """Counts more unfinished messages of these keys."""
        np.add.at(self._rows, slots, 1)
        self.rows += len(slots)

    def rows_of(self, slots: I64) -> I64:
        """How many unfinished messages have each of these keys, i64[n]."""
        rows: I64 = self._rows[slots]
        return rows

    def leave(self, slots: I64) -> None:
        """Counts finished messages of these keys."""
        np.subtract.at(self._rows, slots, 1)
        self.rows -= len(slots)
        if len(self._hashes) > 2 * self.rows + _UNUSED_MAX:
            self._forget_unused()

    def _forget_unused(self) -> None:
        used = self._rows[self._slots] > 0
        self._free = np.concatenate((self._free, self._slots[~used]))
        self._hashes, self._slots = self._hashes[used], self._slots[used]

    def note(self, slots: I64) -> None:
        """Notes messages that the pull under way takes. They make their keys busy behind it."""
        self._noted.append(slots)

    def hold(self, slots: I64) -> None:
        """Counts messages that are handed out."""
        np.add.at(self._busy, slots, 1)
        self.changes += 1

    def release(self, slots: I64) -> None:
        """Counts messages that are handed out no more."""
        self.join()
        np.subtract.at(self._busy, slots, 1)
        self.changes += 1

    def check_invariants(self, slots: I64, out: I64) -> None:
        """The counts are those of the unfinished messages (`slots`) and of those that are out (`out`)."""
        self.join()
        assert bool((self._hashes[1:] > self._hashes[:-1]).all()), "keys out of order"
        assert not len(np.intersect1d(self._slots, self._free)), "a slot is used and free"
        assert len(np.unique(np.concatenate((self._slots, self._free)))) == len(self._busy), "a slot is lost"
        assert np.array_equal(np.bincount(slots, minlength=len(self._rows)), self._rows)
        assert np.array_equal(np.bincount(out, minlength=len(self._busy)), self._busy)
        assert self.rows == len(slots)
        assert bool((self._rows[self._free] == 0).all()), "a key with messages has no slot"
