"""The queue of records of an internal group that are due. Dispatch puts batches in, a task of the server answers them."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from delayserver.runtime.marks import Bell
from store.records.batches import U8, StoredBatch

RECORDED: Final = 255
"""The answer for a record whose outcome stands in the record that answers it. The others are `DeliverOutcome` codes."""


class DueBatch:
    """A batch that waits for its answer. The task gives one: `answer` or `refuse`."""

    def __init__(self, batch: StoredBatch) -> None:
        self.batch = batch
        self._codes: U8 | None = None
        # Why no record was answered, and whether that is certain.
        self.refusal = ""
        self.is_certain = True
        self._ended = trio.Event()

    def answer(self, codes: U8) -> None:
        """Answers each record, u8[n]: STORED, REFUSED for one that is to come again, or RECORDED."""
        self._codes = codes
        self._ended.set()

    def refuse(self, reason: str, *, certain: bool) -> None:
        """Answers that no record was taken: they come again. Not `certain`: some may have been taken."""
        self.refusal, self.is_certain = reason, certain
        self._ended.set()

    async def wait_answer(self) -> U8 | None:
        """Waits for the answer of the task and returns it; None if the task refused the batch."""
        await self._ended.wait()
        return self._codes


class DueRecords:
    """Batches in the order in which they came due. For the event loop. Writers: the internal node puts in, the task of
    the server takes out."""

    def __init__(self, batches_max: int, timeout_ms: int) -> None:
        """`batches_max`: that of the internal group, whose workers each wait for the answer of one batch. `timeout_ms`: the
        task refuses a batch that it could not answer within this."""
        self.timeout_ms = timeout_ms
        self._batches_max = batches_max
        self._waiting: deque[DueBatch] = deque()
        self._arrived = Bell()

    def put(self, batch: StoredBatch) -> DueBatch:
        """Append a batch."""
        assert len(self._waiting) < self._batches_max
        due = DueBatch(batch)
        self._waiting.append(due)
        self._arrived.ring()
        return due

    async def take(self) -> DueBatch:
        """Return the first batch, when there is one. For one task."""
        while not self._waiting:
            self._arrived.hush()
            await self._arrived.rung()
        return self._waiting.popleft()
