"""Background batching for the asynchronous client: a task sends single messages in batches."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from delayserver.client.calls.batch_queue import DRAIN_S, BatchQueue, placed_or_refused, refuse_times
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

    @property
    def several_shards(self) -> bool: ...

    def placed(self, message: Message) -> tuple[int, Message]: ...

    async def know_shards(self) -> bool: ...

    async def send_placed(self, messages: Sequence[Message], shard: int) -> list[R | DelayServerError]: ...


class AsyncPublishClient(Protocol):
    """The part of `AsyncClient` that a publishing batcher needs."""

    @property
    def limits(self) -> Limits: ...

    @property
    def several_shards(self) -> bool: ...

    def placed(self, message: Message) -> tuple[int, Message]: ...

    async def know_shards(self) -> bool: ...

    async def publish_placed(
        self, messages: Sequence[Message], shard: int
    ) -> list[PublishResult | DelayServerError]: ...


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

    @property
    def several_shards(self) -> bool:
        return self._client.several_shards

    def placed(self, message: Message) -> tuple[int, Message]:
        """The message as it is: an id that the caller did not give would make the publish repeatable."""
        return self._client.placed(message)[0], message

    async def know_shards(self) -> bool:
        return await self._client.know_shards()

    async def send_placed(self, messages: Sequence[Message], shard: int) -> list[PublishResult | DelayServerError]:
        return await self._client.publish_placed(messages, shard)


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
    """Gathers messages until ``batch_messages_max`` are there or the oldest has waited ``linger_ms``, and sends them. Each
    shard of a cluster has batches of its own, so that one that is away delays no messages of the others.

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
            subject,
            batch_messages_max=batch_messages_max,
            pending_messages_max=pending_messages_max,
            several=lambda: client.several_shards,
        )
        self._linger_s = span_ms(linger_ms) / 1000
        # By shard. Each has a task.
        self._sending: dict[int, list[Handle[R]]] = {}
        self._arrived: dict[int, anyio.Event] = {}  # the first message, a full batch or a flush
        self._answered = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        with suppress(DelayServerError):  # messages get it as well
            await self._client.know_shards()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
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
                error = ConnectionLost("the batcher was left before the answer: the message may or may not be there")
                for abandoned in (self._sending, self._queue.clear()):
                    for lane, handles in abandoned.items():
                        self._settle(lane, handles, [error] * len(handles))

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
        message = self._queue.message(subject, body, due_ms, message_id, properties, expires_ms, tag, order_key)
        if not self._queue.added_count % SENDS_IN_A_ROW:
            await anyio.lowlevel.checkpoint()
        lane, placed = placed_or_refused(self._client.placed, message)
        while self._queue.full(lane):
            await self._answered.wait()
        if self._tasks is None:
            raise RuntimeError("use the batcher inside its async with block")
        handle = Handle[R](placed)
        told = self._queue.add(handle, lane)
        if lane not in self._arrived:
            self._arrived[lane] = anyio.Event()
            self._tasks.start_soon(self._work, lane)
        if told:
            self._arrived[lane].set()
        return handle

    async def flush(self) -> None:
        """Wait until all messages handed over so far are answered; raise the first error since the last flush, if any."""
        with self._queue.flush() as unanswered:
            for arrived in self._arrived.values():
                arrived.set()
            while unanswered():
                await self._answered.wait()
        error = self._queue.take_error()
        if error is not None:
            raise error

    async def _work(self, lane: int) -> None:
        while True:
            while not self._queue.waits(lane):
                await self._arrival(lane)
            if self._linger_s:
                with anyio.move_on_after(self._linger_s):
                    while self._queue.lingers(lane):
                        await self._arrival(lane)
            await self._send(lane, self._queue.take(lane, self._client.limits))

    async def _arrival(self, lane: int) -> None:
        await self._arrived[lane].wait()
        self._arrived[lane] = anyio.Event()

    async def _send(self, lane: int, batch: list[Handle[R]]) -> None:
        outcomes: Sequence[R | DelayServerError]
        self._sending[lane] = batch
        try:
            outcomes = await self._client.send_placed([handle.message for handle in batch], lane)
        except DelayServerError as error:
            outcomes = [error] * len(batch)
        del self._sending[lane]
        self._settle(lane, batch, outcomes)

    def _settle(self, lane: int, batch: list[Handle[R]], outcomes: Sequence[R | DelayServerError]) -> None:
        for handle, outcome in zip(batch, outcomes, strict=True):
            handle._resolve(outcome)
        self._queue.free(lane, len(batch))
        self._queue.count_answers(lane, len(batch), outcomes)
        self._answered.set()
        self._answered = anyio.Event()
