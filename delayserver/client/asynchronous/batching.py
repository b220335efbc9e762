"""Background batching for the asynchronous client: a task sends single messages in batches."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from delayserver.client.calls.batch_queue import DRAIN_S, BatchQueue, refuse_times
from delayserver.client.values.messages import Message, PublishResult
from delayserver.client.values.timing import Instant, Span, span_ms
from delayserver.protocol.errors import ConnectionLost, DelayServerError
from delayserver.protocol.limits import Limits

SENDS_IN_A_ROW: Final = 64
"""After so many calls (some 0.5 ms) a batcher's ``send`` lets other tasks run, among them the one that sends batches."""


R = TypeVar("R")


class AsyncSender(Protocol[R]):
    """The part of `AsyncClient` that a batcher needs."""

    @property
    def limits(self) -> Limits: ...

    async def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> int | None: ...

    async def send_many(self, messages: Sequence[Message]) -> list[R | DelayServerError]: ...


class AsyncPublishClient(Protocol):
    """The part of `AsyncClient` that a publishing batcher needs."""

    @property
    def limits(self) -> Limits: ...

    async def publish_many(self, messages: Sequence[Message]) -> list[PublishResult | DelayServerError]: ...


class AsyncPublishSender:
    """An `AsyncSender` that publishes."""

    def __init__(self, client: AsyncPublishClient) -> None:
        self._client = client

    @property
    def limits(self) -> Limits:
        return self._client.limits

    async def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> None:
        """Raises `InvalidArgument` if a time is given."""
        refuse_times(due_ms, delay_ms, at, delay)

    async def send_many(self, messages: Sequence[Message]) -> list[PublishResult | DelayServerError]:
        return await self._client.publish_many(messages)


class Handle(Generic[R]):
    """The coming result of one message: ``await handle`` gives its `SendResult` or raises its error,
    any number of times.
    """

    __slots__ = ("_answered", "_outcome", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._answered = anyio.Event()
        self._outcome: R | DelayServerError | None = None

    def __await__(self) -> Generator[Any, Any, R]:
        yield from self._answered.wait().__await__()
        return self.result()

    @property
    def done(self) -> bool:
        """Whether the server has answered, or the client has given up."""
        return self._outcome is not None

    def result(self) -> R:
        """The result of a handle that is done."""
        if isinstance(self._outcome, DelayServerError):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("the message is not answered yet; await the handle")
        return self._outcome

    def _resolve(self, outcome: R | DelayServerError) -> None:
        self._outcome = outcome
        self._answered.set()


class AsyncBatcher(Generic[R]):
    """Gathers messages until ``batch_messages_max`` are there or the oldest has waited ``linger_ms``, and sends them.

    An asynchronous context manager. Leaving it flushes; after an error of its block the flush takes at most `DRAIN_S`.
    The batcher abandons messages without an answer then, or when the block is cancelled: their handles raise
    `ConnectionLost`. ``send`` waits while ``pending_messages_max`` messages are not answered yet, which bounds memory.
    The handle of each message raises its error. The next flush raises the first error since the last one.
    """

    def __init__(
        self,
        client: AsyncSender[R],
        subject: str | None,
        *,
        batch_messages_max: int,
        linger_ms: Span,
        pending_messages_max: int,
    ) -> None:
        self._client = client
        self._queue = BatchQueue[Handle[R]](
            subject, batch_messages_max=batch_messages_max, pending_messages_max=pending_messages_max
        )
        self._linger_s = span_ms(linger_ms) / 1000
        self._sending: list[Handle[R]] = []
        self._arrived = anyio.Event()  # the first message, a full batch or a flush
        self._answered = anyio.Event()
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
            # A cancelled scope would cancel the flush as well. But asyncio cancels a task only once.
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
                abandoned = [*self._sending, *self._queue.waiting]
                self._queue.waiting.clear()
                error = ConnectionLost("the batcher was left before the answer: the message may or may not be there")
                self._settle(abandoned, [error] * len(abandoned))

    async def send(
        self,
        body: bytes | str,
        subject: str | None = None,
        *,
        due_ms: Instant | None = None,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
    ) -> Handle[R]:
        """Hand over one message. Arguments are those of `AsyncClient.send`; a delay counts from this call. A cancelled call
        has handed over nothing.
        """
        due_ms = await self._client.resolve_due_ms(due_ms, delay_ms, at, delay)
        handle = Handle[R](
            self._queue.message(subject, body, due_ms, message_id, properties, expires_ms, tag, order_key)
        )
        if not self._queue.added_count % SENDS_IN_A_ROW:
            await anyio.lowlevel.checkpoint()
        while self._queue.full:
            await self._answered.wait()
        if self._tasks is None:
            raise RuntimeError("use the batcher inside its async with block")
        if self._queue.add(handle):
            self._arrived.set()
        return handle

    async def flush(self) -> None:
        """Wait until all messages handed over so far are answered; raise the first error since the last flush, if any."""
        with self._queue.flush() as until:
            self._arrived.set()
            while self._queue.answered_count < until:
                await self._answered.wait()
        error = self._queue.take_error()
        if error is not None:
            raise error

    async def _work(self) -> None:
        while True:
            while not self._queue.waiting:
                await self._arrival()
            if self._linger_s:
                with anyio.move_on_after(self._linger_s):
                    while self._queue.lingers:
                        await self._arrival()
            await self._send(self._queue.take(self._client.limits))

    async def _arrival(self) -> None:
        await self._arrived.wait()
        self._arrived = anyio.Event()

    async def _send(self, batch: list[Handle[R]]) -> None:
        outcomes: Sequence[R | DelayServerError]
        self._sending = batch
        try:
            outcomes = await self._client.send_many([handle.message for handle in batch])
        except DelayServerError as error:
            outcomes = [error] * len(batch)
        self._sending = []
        self._settle(batch, outcomes)

    def _settle(self, batch: list[Handle[R]], outcomes: Sequence[R | DelayServerError]) -> None:
        for handle, outcome in zip(batch, outcomes, strict=True):
            handle._resolve(outcome)
        self._queue.free(len(batch))
        self._queue.count_answers(len(batch), outcomes)
        self._answered.set()
        self._answered = anyio.Event()
