"""A broker node in memory: remembers what it was handed and when, and fails as the test says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.runtime.clock import Clock
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.target import DeliveryError, Target
from store.records.batches import StoredBatch


class FakeBroker(Target):
    """A `Target`. It keeps everything, repeats too: what is asked of the server is that there are none."""

    def __init__(self, clock: Clock, address: str = "fake") -> None:
        self.address = address
        self.clock = clock
        self.up = True
        self.known_failures = True
        self.stores_before_failing = False
        self.delay_ms = 0.0
        self.gate: trio.Event | None = None
        self.refuse: Callable[[StoredBatch], NDArray[np.bool_]] | None = None
        self.answers: Callable[[StoredBatch], Answer] | None = None
        self.attempts: list[int] = []
        self.attempt_rows: list[int] = []
        self.uncertain_attempts = 0
        self.uncertain: set[int] = set()
        self.complete: list[int] = []
        self.slow_to_hear: trio.Event | None = None
        self.asked_to_hear = False
        self.stored: list[int] = []
        self.bodies: dict[int, bytes] = {}
        self.due_ms: dict[int, int] = {}
        self.at_us: dict[int, int] = {}
        self._looked_at: list[int] = []
        self._texts: list[str] = []

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        self.attempts.append(self.clock.now_us())
        self.attempt_rows.append(len(batch))
        self.uncertain_attempts += uncertain
        if uncertain:
            self.uncertain.update(batch.sequence.tolist())
        if self.gate is not None:
            await self.gate.wait()
        if self.delay_ms:
            await self.clock.sleep_ms(self.delay_ms)
        await trio.lowlevel.checkpoint()
        if not self.up:
            if self.stores_before_failing:
                self._store(batch, np.ones(len(batch), dtype=bool))
            raise DeliveryError("it is down", known=self.known_failures)
        if self.answers is not None:
            answer = self.answers(batch)
            self._store(batch, (answer.rows == RowAnswer.STORED) | (answer.rows == RowAnswer.UNKNOWN))
            return answer
        refused = self.refuse(batch) if self.refuse is not None else np.zeros(len(batch), dtype=bool)
        self._store(batch, ~refused)
        return Answer(np.where(refused, RowAnswer.REFUSED, RowAnswer.STORED).astype(np.uint8))

    def _store(self, batch: StoredBatch, wanted: NDArray[np.bool_]) -> None:
        now_us = self.clock.now_us()
        data, start = bytes(batch.bodies), 0
        for row, length in enumerate(batch.bodies_length.tolist()):
            if wanted[row]:
                sequence = int(batch.sequence[row])
                self.stored.append(sequence)
                self.bodies[sequence] = data[start : start + length]
                self.due_ms[sequence] = int(batch.due_ms[row])
                self.at_us[sequence] = now_us
            start += length

    async def probe(self) -> None:
        if not self.up or self.refuse is not None:
            raise DeliveryError("it is down", known=True)

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        self.asked_to_hear = True
        if self.slow_to_hear is not None:
            await self.slow_to_hear.wait()
        if not self.up:
            raise DeliveryError("it is down", known=True)
        self.complete += windows_ms()

    @property
    def texts(self) -> list[str]:
        """Bodies in the order they arrived. Those of an earlier look are kept: tests look again and again."""
        if self.stored[: len(self._looked_at)] != self._looked_at:  # a test has cleared it
            self._looked_at, self._texts = [], []
        new = self.stored[len(self._looked_at) :]
        self._looked_at += new
        self._texts += [self.bodies[sequence].decode() for sequence in new]
        return list(self._texts)
