"""Windows for which nothing is accepted any more: those in the ledger, and those that retention is about to enter there.

Without the files of a window a duplicate is not recognised, so no message may come later. Each window is
closed for itself: a clock that was ahead may have retired windows of the future, and the windows between them stay open.
Writers: retention; in a member of a cluster also the replay, for what the primary retires.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.logs.due_windows import window_of, window_starts
from store.records.batches import I64
from store.tables.ledger import Ledger


class ClosedWindows:
    """Starts of closed windows, sorted: 8 bytes each, 4 MB for a year of minutes. Synchronous, for the event loop."""

    def __init__(self, ledger: Ledger, window_ms: int) -> None:
        """The windows in the ledger are closed."""
        entered = ledger.windows()
        self._starts_ms = entered[entered[:, 1] == 0, 0]
        self._window_ms = window_ms
        # How often windows were closed: what was concluded before the last time is to be looked at again.
        self.changes = 0

    @property
    def until_ms(self) -> int:
        """No window from here on is closed: most due times need no other look. 0 if none is closed."""
        return int(self._starts_ms[-1]) + self._window_ms if len(self._starts_ms) else 0

    def close(self, starts_ms: list[int]) -> None:
        """Accepts nothing for these windows from this step on."""
        self.changes += 1
        self._starts_ms = np.union1d(self._starts_ms, np.array(starts_ms, np.int64))

    def reopen(self, starts_ms: list[int]) -> None:
        """Accepts messages for these windows again. They were not retired: their files are all there."""
        if starts_ms:
            self._starts_ms = np.setdiff1d(self._starts_ms, np.array(starts_ms, np.int64), assume_unique=True)

    def holds(self, due_ms: int) -> bool:
        """Whether the window of this due time is closed."""
        start_ms = window_of(due_ms, self._window_ms)
        place = int(np.searchsorted(self._starts_ms, start_ms))
        return place < len(self._starts_ms) and int(self._starts_ms[place]) == start_ms

    def held(self, due_ms: I64) -> NDArray[np.bool_]:
        """Whether the window of each due time i64[n] is closed, bool[n]."""
        if not len(self._starts_ms) or int(due_ms.min(initial=self.until_ms)) >= self.until_ms:
            return np.zeros(len(due_ms), np.bool_)
        starts_ms = window_starts(due_ms, self._window_ms)
        places = np.minimum(np.searchsorted(self._starts_ms, starts_ms), len(self._starts_ms) - 1)
        closed: NDArray[np.bool_] = self._starts_ms[places] == starts_ms
        return closed

    def window(self, due_ms: int) -> tuple[int, int]:
        """Start and end of the window of a due time."""
        start_ms = window_of(due_ms, self._window_ms)
        return start_ms, start_ms + self._window_ms

    def count_from(self, time_ms: int) -> int:
        """How many closed windows start at or after this time."""
        return len(self._starts_ms) - int(np.searchsorted(self._starts_ms, time_ms))

    def check_invariants(self) -> None:
        """For tests."""
        assert (np.diff(self._starts_ms) > 0).all(), "starts ascend"
        assert not (self._starts_ms % self._window_ms).any(), "starts of windows"
