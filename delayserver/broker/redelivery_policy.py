"""The pause before a redelivery after a nack or an ack timeout, and the bytes of redeliveries that a group has on disk.

Pure; times are arguments. `GroupPolicy.redelivery` makes the pauses of a group that has a policy of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from store.records.batches import I64

# message_log, schedule_log and the broker's store each hold the bytes of a redelivery.
COPIES = 3
# A group's bytes are counted in this many steps of time, and each step is forgotten as a whole.
_STEPS = 24


@dataclass(frozen=True, slots=True)
class RedeliveryPolicy:
    """Pauses before redeliveries: `first_ms`, then each one `factor` times as long, at most `cap_ms`.

    With `levels_ms` the pauses are those, one after the other, and then the last one again.
    """

    first_ms: int
    cap_ms: int
    factor: float = 2.0
    levels_ms: tuple[int, ...] = ()

    def pauses_ms(self, number: I64) -> I64:
        """The pause before each message's redelivery, i64[n]. `number` i64[n] counts redeliveries from 1."""
        steps = np.maximum(number - 1, 0)
        if self.levels_ms:
            levels: I64 = np.array(self.levels_ms, np.int64)[np.minimum(steps, len(self.levels_ms) - 1)]
            return levels
        with np.errstate(over="ignore"):  # an infinite pause is cut to the longest one
            grown = (
                min(self.first_ms, self.cap_ms) * np.float_power(self.factor, steps) if self.first_ms else steps * 0.0
            )
        pauses: I64 = np.minimum(grown, self.cap_ms).astype(np.int64)
        return pauses


class KeptBytes:
    """Bytes of a group's redeliveries: written ones, which count as on disk for `kept_ms`, and those being written."""

    __slots__ = ("_kept_ms", "_steps", "_writing", "_written")

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._steps: deque[tuple[int, int]] = deque()
        self._written = 0
        self._writing = 0

    @property
    def total(self) -> int:
        """Bytes on disk and bytes being written."""
        return self._written + self._writing

    def begin(self, count: int) -> None:
        """Count bytes that are about to be written."""
        self._writing += count

    def end(self, count: int) -> None:
        """Ends the promise of these bytes: they are written (`add` follows), or will not be. A group that was made anew
        counts none."""
        self._writing = max(self._writing - count, 0)

    def add(self, now_ms: int, count: int) -> None:
        """Count bytes that are on disk from now on."""
        step_ms = max(self._kept_ms // _STEPS, 1)
        start_ms = now_ms // step_ms * step_ms
        self._written += count
        # While the clock is behind the newest step, bytes go to that step: the steps stay few and in order.
        if self._steps and self._steps[-1][0] >= start_ms:
            start_ms, before = self._steps.pop()
            count += before
        self._steps.append((start_ms, count))

    def forget(self, now_ms: int) -> None:
        """Stop counting bytes that are no longer on disk."""
        step_ms = max(self._kept_ms // _STEPS, 1)
        while self._steps and self._steps[0][0] + step_ms + self._kept_ms <= now_ms:
            self._written -= self._steps.popleft()[1]

    def steps(self) -> list[tuple[int, int]]:
        """(start in ms, bytes on disk) of each step, oldest first."""
        return list(self._steps)

    def check_invariants(self) -> None:
        """The total is the sum of the steps, and the steps are in order."""
        assert self._written == sum(count for _, count in self._steps)
        assert self._writing >= 0
        starts = [start for start, _ in self._steps]
        assert starts == sorted(set(starts))
