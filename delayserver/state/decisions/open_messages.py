"""The messages accepted last that have no outcome yet: most of what is cancelled. In memory, bounded, no files.

A row is here only while three things are known: it was accepted and replayed, it is no copy, no internal record and no
prepared transaction, and nothing was decided about it. So a cancel of it needs neither its schedule file nor the outcomes
of its window, however many windows a request names. A message that is not here may still be
open: the caller looks into the files then.

It has the last 524,288 accepted messages, 20 bytes each. The publisher adds them, `Decided.add` removes them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.records.batches import FLAG_PREPARED, I64, U32, MessageBatch
from store.records.column_batch import has_any

# 20 bytes a row, 10 MiB in all, which are used only as far as messages came. At 1,000 messages a second nine minutes.
ROWS_MAX = 1 << 19


class OpenMessages:
    """A ring: the row of a sequence stands at `sequence % rows_max`, until it is removed or a later one takes its place.

    Event loop only: what is found in a step is still undecided at its end.
    """

    __slots__ = ("_due_ms", "_place_mask", "_sequence", "_subject")

    def __init__(self, rows_max: int | None = None) -> None:
        """None: `ROWS_MAX`."""
        rows_max = ROWS_MAX if rows_max is None else rows_max
        assert rows_max > 0 and not rows_max & (rows_max - 1), "a power of two, so that a place is found by a mask"
        self._place_mask = rows_max - 1
        self._sequence: I64 = np.zeros(rows_max, dtype=np.int64)  # 0: nothing stands here
        self._due_ms: I64 = np.zeros(rows_max, dtype=np.int64)
        self._subject: U32 = np.zeros(rows_max, dtype=np.uint32)

    def add(self, batch: MessageBatch) -> None:
        """Messages without an outcome, by their sequences; internal records and transactions are passed over."""
        rows_max = self._place_mask + 1
        if len(batch) > rows_max:
            batch = batch.slice(len(batch) - rows_max, len(batch))
        first, count = int(batch.sequence[0]), len(batch)
        start = first & self._place_mask
        place: slice | I64 = slice(start, start + count)
        if int(batch.sequence[-1]) - first != count - 1 or start + count > rows_max:
            place = batch.sequence & self._place_mask
        self._sequence[place] = batch.sequence
        self._due_ms[place] = batch.due_ms
        self._subject[place] = batch.subject
        if batch.origin_sequence.any():
            self.remove(batch.sequence[batch.origin_sequence != 0])
        if has_any(batch.flags):
            self.remove(batch.sequence[batch.flags & FLAG_PREPARED != 0])

    def remove(self, sequence: I64) -> None:
        """These are decided, or turned out to be copies; i64[n], some may not be here."""
        place = sequence & self._place_mask
        self._sequence[place[self._sequence[place] == sequence]] = 0

    def find(self, sequence: I64, due_ms: I64) -> tuple[NDArray[np.bool_], U32]:
        """Which of n messages are here with this due time, bool[n], and their subject codes u32[n] (0 where not)."""
        place = sequence & self._place_mask
        found = (self._sequence[place] == sequence) & (self._due_ms[place] == due_ms) & (sequence > 0)
        return found, np.where(found, self._subject[place], np.uint32(0))

    def check_invariants(self) -> None:
        """Each row stands at the place of its sequence."""
        places = np.flatnonzero(self._sequence)
        assert np.array_equal(self._sequence[places] & self._place_mask, places)
