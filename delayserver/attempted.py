"""Which messages may have been delivered without anybody knowing: before a crash, or by an attempt without an answer.

Of attempts since the start every row is remembered here until it is known to be delivered, whether it waits in a queue,
lies in the wheel again or has left memory. There are no more of them than attempts had rows at once: what failed is
tried again first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Attempted:
    """Attempts with an unknown result. Before this start: of what was due before `due_before_ms`, and accepted before
    `sequence_before`."""

    __slots__ = ("_unknown", "due_before_ms", "sequence_before")

    def __init__(self, due_before_ms: int, sequence_before: int) -> None:
        self.due_before_ms = due_before_ms
        self.sequence_before = sequence_before
        self._unknown: set[int] = set()

    def maybe(self, sequence: I64, due_ms: I64) -> NDArray[np.bool_]:
        """True where an attempt may have been made before this start, bool[n]. For any thread."""
        return (due_ms < self.due_before_ms) & (sequence < self.sequence_before)

    def note(self, sequence: I64) -> None:
        """An attempt with these rows came to an unknown end."""
        self._unknown.update(sequence.tolist())

    def settled(self, sequence: I64) -> None:
        """These are delivered."""
        if self._unknown:
            self._unknown.difference_update(sequence.tolist())

    def unknown(self, sequence: I64) -> NDArray[np.bool_]:
        """True where an attempt since this start came to an unknown end, bool[n]. On the event loop only."""
        if not self._unknown:
            return np.zeros(len(sequence), dtype=bool)
        return np.isin(sequence, np.fromiter(self._unknown, np.int64, len(self._unknown)))

    @property
    def any_unknown(self) -> bool:
        """Whether an attempt since this start is left unsettled."""
        return bool(self._unknown)
