"""Which messages went with their windows: a view on the ledger, by windows and whole days.

Writers: retention and `DayEnd`; in a member of a cluster also the replay, for what the primary retires.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from delayserver.state.windows.window_book import WindowBook
from store.logs.due_windows import DAY_MS
from store.logs.schedule_log import ScheduleKey
from store.records.batches import I64, LedgerBatch
from store.tables.ledger import Ledger


class Retired:
    """Answers from the ledger, which is in memory; for any thread."""

    __slots__ = ("_book", "_ledger", "_removed", "entered")

    def __init__(self, ledger: Ledger, book: WindowBook) -> None:
        self._ledger = ledger
        self._book = book
        self._removed: deque[ScheduleKey] = deque()
        # Windows that came to the ledger through the log of a shard, and whose files this member still has to remove.
        self.entered: set[int] = set()

    def enter(self, counted: LedgerBatch) -> None:
        """Windows came out of the log of a shard: enter them in the ledger. A replay brings them again, and what is there
        stays. Raises DiskFullError, SyncFailedError."""
        starts: list[int] = counted.start_ms.tolist()
        known = np.array([self._ledger.last_sequence(start) for start in starts], np.int64)
        fresh = np.isin(counted.start_ms, counted.start_ms[known < counted.last_sequence])
        if fresh.any():
            self._ledger.append(counted.take(np.flatnonzero(fresh)))

    def remove(self, files: Iterable[ScheduleKey]) -> None:
        """Schedule files are gone: those of retired windows, and of drained days."""
        self._removed.extend(files)

    def take_removed(self) -> Iterator[ScheduleKey]:
        """Yields the files that were removed since the last call. The deduplication reads it, in its thread."""
        while self._removed:
            yield self._removed.popleft()

    def has(self, start_ms: int) -> bool:
        """Whether this window, or any minute of the whole day that bears this start, is in the ledger."""
        if self._book.is_whole(start_ms):
            return self._ledger.has_between(start_ms, start_ms + DAY_MS)
        return self._ledger.has(start_ms)

    def up_to(self, start_ms: int) -> int:
        """The last sequence that went with this window, 0 if it was never retired: a replay has nothing to do below.

        A whole day goes with all its minutes, of which those with messages are in the ledger."""
        if self._book.is_whole(start_ms):
            return self._ledger.last_sequence_between(start_ms, start_ms + DAY_MS)
        return self._ledger.last_sequence(start_ms)

    def are(self, start_ms: int, sequence: I64) -> NDArray[np.bool_]:
        """Which of n messages of one window (of a whole day, or of a minute of it) were retired with it, bool[n]."""
        if not self.has(start_ms):  # a message that was not found has the sequence 0
            return np.zeros(len(sequence), dtype=bool)
        retired: NDArray[np.bool_] = sequence <= self.up_to(start_ms)
        return retired
