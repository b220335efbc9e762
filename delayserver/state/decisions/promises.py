"""Outcomes that promise that a message never comes, and are not durable yet: where in the order of outcomes each stands.

A client that is answered `expired` or `dead_lettered` waits until that outcome is on the disk. Thousands of messages may
expire within a moment, while many clients ask. So a question is asked once, by position, and not again and again.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from delayserver.protocol.outcomes import Outcome
from store.records.batches import I64, OutcomeBatch
from store.records.membership import is_member

_EXPIRED, _DEAD_LETTERED = int(Outcome.EXPIRED), int(Outcome.DEAD_LETTERED)
# Small parts grow to this size: a question looks at few parts, and to add an outcome copies little.
PART_ROWS = 4096


class Promises:
    """Sequences in parts, oldest first, each with the position behind it. For the event loop. As many as there are outcomes
    that wait to be written, at most. Writer: `Decided`."""

    __slots__ = ("_parts", "_sealed")

    def __init__(self) -> None:
        self._parts: deque[tuple[int, I64]] = deque()
        self._sealed = False

    def __len__(self) -> int:
        """Parts that a question looks at."""
        return len(self._parts)

    def add(self, batch: OutcomeBatch, position: int) -> None:
        """Outcomes were decided; the last of them is number `position`."""
        outcome = batch.outcome
        if outcome.strides == (0,):
            sequence = batch.sequence if outcome[0] in (_EXPIRED, _DEAD_LETTERED) else batch.sequence[:0]
        else:
            sequence = batch.sequence[(outcome == _EXPIRED) | (outcome == _DEAD_LETTERED)]
        if not len(sequence):
            return
        if self._parts and not self._sealed and len(self._parts[-1][1]) + len(sequence) <= PART_ROWS:
            _, before = self._parts.pop()
            sequence = np.concatenate([before, sequence])
        self._parts.append((position, sequence))
        self._sealed = False

    def seal(self) -> None:
        """The outcomes up to now are being written: those that come later stand apart, since they are written later."""
        self._sealed = True

    def position_of(self, sequences: I64) -> int:
        """The outcomes of these messages, i64[n], are durable when so many are written; 0 where none of them waits."""
        if len(sequences):
            for position, part in reversed(self._parts):
                if is_member(sequences, part).any():
                    return position
        return 0

    def forget(self, written: int) -> None:
        """So many outcomes are durable."""
        while self._parts and self._parts[0][0] <= written:
            self._parts.popleft()

    def check_invariants(self, written: int, added: int) -> None:
        """The parts are in order, and none of them is durable."""
        positions = [position for position, _ in self._parts]
        assert positions == sorted(set(positions)) and all(written < position <= added for position in positions)
