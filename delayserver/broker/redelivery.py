"""When a message comes again after a nack or an ack timeout, and how much of it a group may keep on disk.

Pure; times are arguments. A policy of a group's own takes the place of the default here, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from store.records.batches import I64

# The bytes of one redelivery stand in message_log, in schedule_log and in the broker's store.
COPIES = 3
# In so many steps the bytes of a group are forgotten again.
_STEPS = 24
# The first pause, at most 30 days, does not overflow 64 bits; and half a second is 17 years then.
_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class RedeliveryPolicy:
    """Pauses before redeliveries: `first_ms`, then twice as long each time, at most `cap_ms`."""

    first_ms: int
    cap_ms: int

    def pauses_ms(self, number: I64) -> I64:
        """The pause before each message's redelivery; `number` i64[n] counts from 1 for the first one."""
        doublings = np.clip(number - 1, 0, _DOUBLINGS_MAX)
        pauses: I64 = np.minimum(np.int64(min(self.first_ms, self.cap_ms)) << doublings, self.cap_ms)
        return pauses


class KeptBytes:
    """Bytes of redeliveries that a group has written lately, and that are taken to be on disk for `kept_ms`; and those
    that are being written."""

    __slots__ = ("_kept_ms", "_steps", "_writing", "_written")

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._steps: deque[tuple[int, int]] = deque()
        self._written = 0
        self._writing = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self._written + self._writing

    def begin(self, count: int) -> None:
        """Bytes that are about to be written."""
        self._writing += count

    def end(self, count: int) -> None:
        """They are written (`add` follows), or not after all."""
        self._writing -= count

    def add(self, now_ms: int, count: int) -> None:
        """Bytes that are on disk from now on."""
        step_ms = max(self._kept_ms // _STEPS, 1)
        start_ms = now_ms // step_ms * step_ms
        self._written += count
        # A clock that was set back adds to the newest step, so that the steps stay few and in order.
        if self._steps and self._steps[-1][0] >= start_ms:
            start_ms, before = self._steps.pop()
            count += before
        self._steps.append((start_ms, count))

    def forget(self, now_ms: int) -> None:
        """Forget what is not on disk any more."""
        step_ms = max(self._kept_ms // _STEPS, 1)
        while self._steps and self._steps[0][0] + step_ms + self._kept_ms <= now_ms:
            self._written -= self._steps.popleft()[1]

    def steps(self) -> list[tuple[int, int]]:
        """(start in ms, bytes on disk) of each step, oldest first."""
        return list(self._steps)

    def check_invariants(self) -> None:
        """The total is the sum, and the steps are few and in order."""
        assert self._written == sum(count for _, count in self._steps)
        assert self._writing >= 0
        starts = [start for start, _ in self._steps]
        assert starts == sorted(set(starts))
