"""The operations of the asynchronous client that read the figures of a server.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TypeVar

from delayserver.client.calls import figure_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.figure_calls import Metrics
from delayserver.client.values.timing import Instant, instant_ms
from delayserver.protocol.schema.pending import (
    PendingBucket,
    PendingMessage,
    PendingMessagesPage,
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

    async def pending_messages(
        self,
        subject: str | None = None,
        *,
        from_ms: Instant | None = None,
        to_ms: Instant | None = None,
        tag: str | None = None,
        where: str | None = None,
        latest_first: bool = False,
        bodies: bool = False,
    ) -> AsyncIterator[PendingMessage]:
        """The messages that wait, the earliest due time first, or with ``latest_first`` the latest. It asks for a page at a
        time, whatever the number of messages.

        ``subject`` is a name or a pattern such as ``orders.*``. Messages are due in [``from_ms``, ``to_ms``), have the tag,
        and properties that fit the expression ``where``. A message that waits all the time comes once. One that is sent or
        leaves meanwhile comes at most once. Minutes with more than 65,536 messages come in parts, each in this order.
        """
        after = None
        while True:
            page = await self.pending_messages_page(
                subject,
                from_ms=from_ms,
                to_ms=to_ms,
                tag=tag,
                where=where,
                latest_first=latest_first,
                bodies=bodies,
                after=after,
            )
            for message in page.messages:
                yield message
            after = page.next
            if after is None:
                break

    async def pending_messages_page(
        self,
        subject: str | None = None,
        *,
        from_ms: Instant | None = None,
        to_ms: Instant | None = None,
        tag: str | None = None,
        where: str | None = None,
        latest_first: bool = False,
        bodies: bool = False,
        count: bool = False,
        after: str | None = None,
        max_messages: int | None = None,
    ) -> PendingMessagesPage:
        """A page of `pending_messages`, behind the ``next`` of another page with the same selection. A page may be empty and
        not the last one. ``count`` asks how many messages match from this page on.
        """
        asked = figure_calls.list_of(
            subject,
            None if from_ms is None else instant_ms(from_ms),
            None if to_ms is None else instant_ms(to_ms),
            tag,
            where,
            latest_first=latest_first,
            bodies=bodies,
            count=count,
            after=after,
            max_messages=max_messages,
        )
        return await self._run(figure_calls.pending_messages_call(asked))
