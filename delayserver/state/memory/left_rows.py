"""Rows that left memory for a time of rest: a node refused them, or their record cannot be read.

Their windows are read again when that time is over. Until then a read of the same window, for other rows of it, leaves
them where they are: otherwise they would come back at once, and be handed over again and again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.errors import DiskError, UnreadableError
from store.records.batches import I64
from store.records.membership import is_member

# So many rows are known one by one, 8 bytes each. Others come back with the next read of their window.
ROWS_KNOWN_MAX = 1 << 17
# A damaged file is read again after this long: an operator may repair it.
DAMAGED_AGAIN_US = 60_000_000
# And after this long where the disk refused to open or read the file: that may be over soon.
REFUSED_AGAIN_US = 1_000_000

# A window of one route of a group: group code, route number, start in ms.
RouteWindow = tuple[int, int, int]


class LeftRows:
    """Windows to read again, each at its time, and the rows of them that rest until then. Times are monotonic. Writers:
    `Queueing` and `ReadBack`."""

    __slots__ = ("_known", "_resting", "_until_us")

    def __init__(self) -> None:
        self._until_us: dict[RouteWindow, int] = {}
        self._resting: dict[RouteWindow, list[I64]] = {}
        self._known = 0

    def leave(self, window: RouteWindow, sequences: I64, until_us: int) -> None:
        """Rows of a window rest until then, or until the window is read again for rows that were left before: these do not
        wait longer because of the later ones."""
        self._until_us.setdefault(window, until_us)
        if self._known + len(sequences) <= ROWS_KNOWN_MAX:
            self._resting.setdefault(window, []).append(sequences)
            self._known += len(sequences)

    def put_off(self, window: RouteWindow, until_us: int) -> None:
        """Puts a window off that cannot be read before then."""
        self._until_us[window] = until_us

    def end_rests(self, now_us: int) -> list[RouteWindow]:
        """Takes out the windows whose time is over; their rows rest no more."""
        due = [window for window, until_us in self._until_us.items() if until_us <= now_us]
        for window in due:
            del self._until_us[window]
            self._known -= sum(map(len, self._resting.pop(window, ())))
        return due

    def resting(self, sequence: I64) -> NDArray[np.bool_]:
        """True for rows that rest, bool[n]."""
        if not self._known:
            return np.zeros(len(sequence), bool)
        return is_member(sequence, np.concatenate([part for parts in self._resting.values() for part in parts]))

    def clear(self) -> None:
        """Forget all: a load brings the rows."""
        self._until_us.clear()
        self._resting.clear()
        self._known = 0


def again_us(error: Exception) -> int:
    """How long rows wait before their file is read again, after it could not be read for this reason."""
    return REFUSED_AGAIN_US if isinstance(error, (DiskError, UnreadableError)) else DAMAGED_AGAIN_US
