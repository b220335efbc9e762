"""The messages that may have been delivered by an attempt without a known result.

An attempt of before the start is known by its due time and sequence alone. An attempt of this start is remembered until
its message is known to be delivered. It does not matter where the row is meanwhile: in a queue, in the wheel or on disk.

Their number is bounded. Rows of a node that gave no answer are tried again first, so they are at most the rows in flight.
Single rows that a node left unknown wait aside only until `full`; from then on they too are tried again first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.records.membership import is_member

I64 = NDArray[np.int64]
# Many questions look at all of them: some 0.5 ms. A healthy node leaves none.
UNKNOWN_ROWS_MAX = 8_192


class Attempted:
    """Attempts with an unknown result. Before this start: of what was due before `due_before_ms`, and accepted before
    `sequence_before`. Writer: the verdicts of dispatch."""

    __slots__ = ("_unknown", "due_before_ms", "sequence_before")

    def __init__(self, due_before_ms: int, sequence_before: int) -> None:
        self.due_before_ms = due_before_ms
        self.sequence_before = sequence_before
        # The node and the number of the hand-overs without an answer.
        self._unknown: dict[int, tuple[int, int]] = {}

    def begin(self, due_before_ms: int, sequence_before: int) -> None:
        """This process takes over from another one, which may have attempted what is due and accepted before these."""
        self.due_before_ms = max(self.due_before_ms, due_before_ms)
        self.sequence_before = max(self.sequence_before, sequence_before)

    def maybe(self, sequence: I64, due_ms: I64) -> NDArray[np.bool_]:
        """True where an attempt may have been made before this start, bool[n]. For any thread."""
        return (due_ms < self.due_before_ms) & (sequence < self.sequence_before)

    def note(self, sequence: I64, rows: NDArray[Any]) -> None:
        """An attempt with these index rows came to an unknown end."""
        where = zip(rows["unanswered_node"].tolist(), rows["unanswered"].tolist(), strict=True)
        self._unknown.update(zip(sequence.tolist(), where, strict=True))

    def forget_delivered(self, sequence: I64) -> None:
        """Forgets messages, i64[n], that are delivered."""
        if self._unknown:
            for known in self._unknown.keys() & set(sequence.tolist()):
                del self._unknown[known]

    def unknown(self, sequence: I64) -> NDArray[np.bool_]:
        """True where an attempt since this start came to an unknown end, bool[n]. On the event loop only."""
        if not self._unknown:
            return np.zeros(len(sequence), dtype=bool)
        return is_member(sequence, np.fromiter(self._unknown, np.int64, len(self._unknown)))

    def mark(self, sequence: I64, rows: NDArray[Any]) -> None:
        """Write into index rows that come from disk what is known of their attempts since this start. On the event loop
        only."""
        places = np.flatnonzero(self.unknown(sequence))
        if len(places):
            where = np.array([self._unknown[one] for one in sequence[places].tolist()], np.int64)
            rows["uncertain"][places] = 1
            rows["unanswered_node"][places], rows["unanswered"][places] = where[:, 0], where[:, 1]

    @property
    def full(self) -> bool:
        """Whether no more rows may wait aside with an unknown result."""
        return len(self._unknown) >= UNKNOWN_ROWS_MAX

    @property
    def any_unknown(self) -> bool:
        """Whether an attempt since this start is left unsettled."""
        return bool(self._unknown)

    def check_invariants(self) -> None:
        """The node of an attempt without an answer is known."""
        assert all(node for node, _ in self._unknown.values())
