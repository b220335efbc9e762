"""Outcomes that are decided and maybe not in their files yet. For the event loop; no files.

A burst leaves a million of them. A question names the due times that it asks for, and goes through no batch of others.
"""

from __future__ import annotations

import numpy as np

from store.records.batches import I64, OutcomeBatch


class Unwritten:
    """Batches of outcomes in the order in which they came: those of a running write, and those behind it. `Decided`
    bounds their rows: past its bound no part decides more. Writer: `Decided`."""

    __slots__ = ("_waiting", "_writing")

    def __init__(self) -> None:
        self._writing = _Batches()
        self._waiting = _Batches()

    def batches(self) -> list[OutcomeBatch]:
        """All of them, the oldest first."""
        return self._writing.all + self._waiting.all

    @property
    def waits(self) -> bool:
        """Whether some are in no write."""
        return bool(self._waiting.all)

    def add(self, batch: OutcomeBatch) -> None:
        """Put a batch behind all others."""
        self._waiting.all.append(batch)

    def begin_write(self) -> list[OutcomeBatch]:
        """Puts all that waits into the next write, and returns it. `end_write` must come before the next call."""
        assert not self._writing.all
        self._writing, self._waiting = self._waiting, _Batches()
        return self._writing.all

    def end_write(self) -> int:
        """Forgets the batches of the running write. Returns how many rows they had."""
        rows = sum(map(len, self._writing.all))
        self._writing = _Batches()
        return rows

    def due_between(self, from_ms: int, to_ms: int) -> list[OutcomeBatch]:
        """The rows that are due in [from_ms, to_ms), the oldest batch first."""
        return self._writing.due_between(from_ms, to_ms) + self._waiting.due_between(from_ms, to_ms)

    def check_invariants(self) -> None:
        """The times of each batch that were noted are its own."""
        self._writing.check_invariants()
        self._waiting.check_invariants()


class _Batches:
    __slots__ = ("_spans_ms", "all")

    def __init__(self) -> None:
        self.all: list[OutcomeBatch] = []
        # The earliest and the latest due time of each batch that a question has met, i64[n, 2].
        self._spans_ms: I64 = np.zeros((0, 2), np.int64)

    def due_between(self, from_ms: int, to_ms: int) -> list[OutcomeBatch]:
        new = [(int(batch.due_ms.min()), int(batch.due_ms.max())) for batch in self.all[len(self._spans_ms) :]]
        if new:
            self._spans_ms = np.concatenate([self._spans_ms, np.array(new, np.int64)])
        first_ms, last_ms = self._spans_ms.T
        touched = np.flatnonzero((first_ms < to_ms) & (last_ms >= from_ms))
        whole = (first_ms[touched] >= from_ms) & (last_ms[touched] < to_ms)
        batches = [self.all[place] for place in touched.tolist()]
        parts = [
            batch if inside else batch.take(np.flatnonzero((batch.due_ms >= from_ms) & (batch.due_ms < to_ms)))
            for batch, inside in zip(batches, whole.tolist(), strict=True)
        ]
        return [part for part in parts if len(part)]

    def check_invariants(self) -> None:
        for batch, (first_ms, last_ms) in zip(self.all, self._spans_ms.tolist(), strict=False):
            assert (batch.due_ms.min(), batch.due_ms.max()) == (first_ms, last_ms)
