"""Background batching for the asynchronous client: messages handed over one at a time leave in batches, from a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.abc
import anyio.lowlevel

from delayserver.client.batching import DRAIN_S, fitting
from delayserver.client.messages import Message, SendResult
from delayserver.client.send_calls import check_message
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument

if TYPE_CHECKING:
    from delayserver.client.asynchronous import AsyncClient

SENDS_IN_A_ROW: Final = 64
"""After so many, a batcher's ``send`` lets other tasks run, among them the one that sends: some 0.5 ms."""


class Handle:
    """The coming result of one message: ``await handle`` gives its `SendResult` or raises its error,
    any number of times.
    """

    __slots__ = ("_answered", "_outcome", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._answered = anyio.Event()
        self._outcome: SendResult | DelayServerError | None = None

    def __await__(self) -> Generator[Any, Any, SendResult]:
        yield from self._answered.wait().__await__()
        return self.result()

    @property
    def done(self) -> bool:
        """Whether the server has answered, or the client has given up."""
        return self._outcome is not None

    def result(self) -> SendResult:
        """The result of a handle that is done."""
        if isinstance(self._outcome, DelayServerError):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("the message is not answered yet; await the handle")
        return self._outcome

    def _resolve(self, outcome: SendResult | DelayServerError) -> None:
        self._outcome = outcome
        self._answered.set()


class AsyncBatcher:
    """Gathers messages until ``batch_messages_max`` are there or the oldest has waited ``linger_ms``, and sends them.

    An asynchronous context manager; leaving it flushes, after an error of its block for some seconds at most (`DRAIN_S`).
    What is not answered then, or when the block is cancelled, is abandoned: `ConnectionLost`. ``send`` waits while
    ``pending_messages_max`` messages are not answered yet, which bounds memory. Errors come out of the handle of each
    message they concern, and the first since the last flush is raised by the next one.
    """

    def __init__(
        self,
        client: AsyncClient,
        subject: str | None,
        *,
        batch_messages_max: int,
        linger_ms: int,
        pending_messages_max: int,
    ) -> None:
        if not 0 < batch_messages_max <= pending_messages_max:
            raise InvalidArgument("batch_messages_max must lie within 1 and pending_messages_max")
        self._client = client
        self._subject = subject
        self._batch_messages_max = batch_messages_max
        self._linger_s = linger_ms / 1000
        self._pending_messages_max = pending_messages_max
        self._waiting: deque[Handle] = deque()
        self._sending: list[Handle] = []
        self._unanswered = 0
        self._answered_count = 0
        self._hurry = 0  # flushes that wait: no lingering meanwhile
        self._arrived = anyio.Event()  # the first message, a full batch or a flush
        self._answered = anyio.Event()
        self._first_error: DelayServerError | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        cancelled = kind is not None and issubclass(kind, anyio.get_cancelled_exc_class())
        try:
            # A cancel scope would cancel the flush as well, but asyncio cancels a task only once.
            if not cancelled:
                with anyio.move_on_after(None if value is None else DRAIN_S):
                    await self.flush()
        except DelayServerError:
            # An error of the block itself says more than the errors it caused here.
            if value is None:
                raise
        finally:
            tasks.cancel_scope.cancel()
            try:
                await tasks.__aexit__(None, None, None)
            finally:
                # Tasks outside the block may wait for them.
                abandoned = [*self._sending, *self._waiting]
                error = ConnectionLost("the batcher was left before the answer: the message may or may not be there")
                self._settle(abandoned, [error] * len(abandoned))

    async def send(
        self,
        body: bytes | str,
        subject: str | None = None,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> Handle:
        """Hand over one message. Arguments are those of `AsyncClient.send`; a delay counts from this call. Cancelled, it has
        handed over nothing.
        """
        subject = subject if subject is not None else self._subject
        if subject is None:
            raise InvalidArgument("give a subject to send, or to the batcher")
        due_ms = await self._client.resolve_due_ms(due_ms, delay_ms, at, delay)
        # A copy: the caller may change its own before the batch leaves.
        properties = dict(properties) if properties else None
        message = Message(subject, body, due_ms, message_id=message_id, properties=properties, expires_ms=expires_ms)
        check_message(message)
        if not (self._answered_count + self._unanswered) % SENDS_IN_A_ROW:
            await anyio.lowlevel.checkpoint()
        while self._unanswered >= self._pending_messages_max:
            await self._answered.wait()
        if self._tasks is None:
            raise RuntimeError("use the batcher inside its async with block")
        handle = Handle(message)
        self._waiting.append(handle)
        self._unanswered += 1
        if len(self._waiting) in (1, self._batch_messages_max):
            self._arrived.set()
        return handle

    async def flush(self) -> None:
        """Wait until everything handed over so far is answered; raise the first error since the last flush, if any."""
        # They are answered in their order; what others hand over meanwhile is not waited for.
        until = self._answered_count + self._unanswered
        self._hurry += 1
        self._arrived.set()
        try:
            while self._answered_count < until:
                await self._answered.wait()
        finally:
            self._hurry -= 1
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                await self._arrival()
            with anyio.move_on_after(self._linger_s):
                while len(self._waiting) < self._batch_messages_max and not self._hurry:
                    await self._arrival()
            await self._send([self._waiting.popleft() for _ in range(self._fitting())])

    async def _arrival(self) -> None:
        await self._arrived.wait()
        self._arrived = anyio.Event()

    def _fitting(self) -> int:
        """How many waiting messages fit into one batch; at least one."""
        return fitting((handle.message for handle in self._waiting), self._batch_messages_max, self._client.limits)

    async def _send(self, batch: list[Handle]) -> None:
        outcomes: Sequence[SendResult | DelayServerError]
        self._sending = batch
        try:
            outcomes = await self._client.send_many([handle.message for handle in batch])
        except DelayServerError as error:
            outcomes = [error] * len(batch)
        self._sending = []
        self._settle(batch, outcomes)

    def _settle(self, batch: list[Handle], outcomes: Sequence[SendResult | DelayServerError]) -> None:
        for handle, outcome in zip(batch, outcomes, strict=True):
            handle._resolve(outcome)
            if self._first_error is None and isinstance(outcome, DelayServerError):
                self._first_error = outcome
        self._unanswered -= len(batch)
        self._answered_count += len(batch)
        self._answered.set()
        self._answered = anyio.Event()
