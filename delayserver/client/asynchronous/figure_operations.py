"""The operations of the asynchronous client that read the figures of a server.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from delayserver.client.calls import figure_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.figure_calls import Metrics
from delayserver.client.values.timing import Instant, instant_ms
from delayserver.protocol.schema.pending import (
    PendingBucket,
    PendingPage,
    PendingSubject,
    PendingSubjectsPage,
)

T = TypeVar("T")


class AsyncFigureOperations(ABC):
    """Requests about a server as a whole."""

    @abstractmethod
    async def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    async def metrics(self) -> Metrics:
        """All figures that monitors draw: `status`, lateness by broker group, the times of the stages, queues against their
        bounds, consumer groups. The page of the protocol for monitors describes the fields.
        """
        return await self._run(figure_calls.metrics_call())

    async def pending(
        self,
        by: str = "minute",
        *,
        from_ms: Instant | None = None,
        to_ms: Instant | None = None,
    ) -> list[PendingBucket]:
        """How many messages are pending, by the ``"minute"`` or ``"hour"`` in which they are due, from counters of the
        server. Times without any are left out.

        Buckets begin in [``from_ms``, ``to_ms``). A day beyond the fine horizon is one bucket. It asks
        for a page at a time.
        """
        page = await self.pending_page(by, from_ms=from_ms, to_ms=to_ms)
        found = page.buckets
        while page.next_ms is not None:
            page = await self.pending_page(by, from_ms=page.next_ms, to_ms=to_ms)
            found += page.buckets
        return found

    async def pending_page(
        self,
        by: str = "minute",
        *,
        from_ms: Instant | None = None,
        to_ms: Instant | None = None,
    ) -> PendingPage:
        """A page of `pending`."""
        return await self._run(
            figure_calls.pending_call(
                by,
                None if from_ms is None else instant_ms(from_ms),
                None if to_ms is None else instant_ms(to_ms),
            )
        )

    async def pending_by_subject(self) -> list[PendingSubject]:
        """How many messages of each subject are pending. Subjects without any are left out. It asks for a page at a time.
        Those of several shards come in the order of their names.

        After an upgrade the server may have to count them first: until then it raises `NotReady`.
        """
        page = await self.pending_by_subject_page()
        found = page.subjects
        while page.next is not None:
            page = await self.pending_by_subject_page(page.next)
            found += page.subjects
        return found

    async def pending_by_subject_page(self, after: int | str | None = None) -> PendingSubjectsPage:
        """A page of `pending_by_subject`: the subjects behind ``after``."""
        return await self._run(figure_calls.pending_subjects_call(after))
