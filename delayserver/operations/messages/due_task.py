"""The task that takes due records of an internal group from their queue, and answers them by an operation."""

from __future__ import annotations

from typing import Protocol

import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.state.memory.due_records import DueBatch, DueRecords
from store.errors import DiskFullError
from store.records.batches import U8, StoredBatch


class DueWork(Protocol):
    """An operation on due records."""

    async def answer(self, batch: StoredBatch) -> U8:
        """Return what became of each record, as `DueBatch.answer` takes it. Raises DelayServerError and DiskFullError:
        nothing was done. It may be cancelled, and gets the records again then."""


class DueTask:
    """Queue → operation."""

    def __init__(self, due: DueRecords, work: DueWork) -> None:
        self._due = due
        self._work = work

    async def run(self) -> None:
        """Answer until cancelled. Batches are answered in parallel; the queue bounds how many there are."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._answer, await self._due.take())

    async def _answer(self, due: DueBatch) -> None:
        try:
            with trio.fail_after(self._due.timeout_ms / 1000):
                codes = await self._work.answer(due.batch)
        except (DelayServerError, DiskFullError) as error:
            due.refuse(str(error), certain=True)
        except trio.TooSlowError:
            due.refuse("no answer in time", certain=False)
        else:
            due.answer(codes)
