"""Background batching for the blocking client: a thread sends single messages in batches. Each shard has a thread.

The threads have a client of their own, so a long pull of the caller's client does not delay them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from delayserver.client.calls.batch_queue import DRAIN_S, BatchQueue, placed_or_refused, refuse_times
from delayserver.client.values.messages import Message, PublishResult
from delayserver.client.values.timing import Instant, Seconds, Span, span_ms, span_s
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument, RequestTimedOut
from delayserver.protocol.limits import Limits

ABANDON_S: Final = 1.0
"""A batcher that abandons its messages closes the connection and waits this long for its thread. A thread that is still
connecting ends later by itself, and answers its batch then."""

_batchers: WeakSet[Batcher[Any]] = WeakSet()


def _leave_behind_all() -> None:
    """Runs in a forked process."""
    for batcher in _batchers:
        batcher._leave_behind()


os.register_at_fork(after_in_child=_leave_behind_all)


R = TypeVar("R")


@dataclass(slots=True)
class _Entry(Generic[R]):
    message: Message
    future: Future[R] = field(default_factory=Future)


class Sender(Protocol[R]):
    """The part of `Client` that a batcher needs."""

    @property
    def limits(self) -> Limits: ...

    def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> int | None: ...

    @property
    def several_shards(self) -> bool: ...

    def placed(self, message: Message) -> tuple[int, Message]: ...

    def know_shards(self) -> bool: ...

    def send_placed(self, messages: Sequence[Message], shard: int) -> list[R | DelayServerError]: ...

    def connect(self) -> object: ...

    def close(self) -> None: ...


class PublishClient(Protocol):
    """The part of `Client` that a publishing batcher needs."""

    @property
    def limits(self) -> Limits: ...

    @property
    def several_shards(self) -> bool: ...

    def placed(self, message: Message) -> tuple[int, Message]: ...

    def know_shards(self) -> bool: ...

    def publish_placed(self, messages: Sequence[Message], shard: int) -> list[PublishResult | DelayServerError]: ...

    def connect(self) -> object: ...

    def close(self) -> None: ...


class PublishSender:
    """A `Sender` that publishes."""

    def __init__(self, client: PublishClient) -> None:
        self._client = client

    @property
    def limits(self) -> Limits:
        return self._client.limits

    def resolve_due_ms(
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

    def know_shards(self) -> bool:
        return self._client.know_shards()

    def send_placed(self, messages: Sequence[Message], shard: int) -> list[PublishResult | DelayServerError]:
        return self._client.publish_placed(messages, shard)

    def connect(self) -> object:
        return self._client.connect()

    def close(self) -> None:
        self._client.close()


class Batcher(Generic[R]):
    """Gathers messages until ``batch_messages_max`` are there or the oldest has waited ``linger_ms``, and sends them. Each
    shard of a cluster has batches of its own, so that one that is away delays no messages of the others.

    A context manager. Leaving it flushes; after an error of its block the flush takes at most `DRAIN_S`. The batcher
    abandons messages without an answer then, or when an interrupt ends the block: their futures raise `ConnectionLost`.
    ``send`` blocks while ``pending_messages_max`` messages are not answered yet, which bounds memory. The future of each
    message raises its error. The next flush raises the first error since the last one.

    Several threads may use it. A callback of a future may call ``send``, which then passes the bound instead of blocking.
    The batcher belongs to the process that entered it. In a forked process ``send`` and ``flush`` raise RuntimeError, and
    leaving the block does nothing.
    """

    def __init__(
        self,
        client: Sender[R],
        subject: str | None,
        *,
        batch_messages_max: int,
        linger_ms: Span,
        pending_messages_max: int,
    ) -> None:
        self._client = client
        self._queue = BatchQueue[_Entry[R]](
            subject,
            batch_messages_max=batch_messages_max,
            pending_messages_max=pending_messages_max,
            several=lambda: client.several_shards,
        )
        self._linger_s = span_ms(linger_ms) / 1000
        self._changed = threading.Condition()
        self._closing = False
        self._threads: dict[int, threading.Thread] = {}  # by shard
        self._left_behind = False
        _batchers.add(self)

    def __enter__(self) -> Self:
        self._client.connect()
        with suppress(DelayServerError):  # messages get it as well
            self._client.know_shards()
        self._start(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._left_behind:
            return
        first_error: BaseException | None = None
        drained = False
        try:
            if value is None or isinstance(value, Exception):
                error = self._all_answered(None if value is None else DRAIN_S)
                # An error of the block itself says more than the errors it caused here.
                first_error = error if value is None else None
                self._end()
                for thread in self._threads.values():
                    thread.join()
                drained = True
        except RequestTimedOut:
            pass  # The caller gets the error of the block instead.
        finally:
            # Also after an interrupt of the flush: then the caller does not want to wait any more.
            if not drained:
                self._abandon()
            self._client.close()
        if first_error is not None:
            raise first_error

    def send(
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
    ) -> Future[R]:
        """Hand over one message. The future gives its `SendResult` or raises its error. Arguments are those of
        `Client.send`; a delay counts from this call.
        """
        self._check_process()
        due_ms = self._client.resolve_due_ms(due_ms, delay_ms, at, delay)
        message = self._queue.message(subject, body, due_ms, message_id, properties, expires_ms, tag, order_key)
        lane, placed = placed_or_refused(self._client.placed, message)
        entry = _Entry[R](placed)
        with self._changed:
            while self._queue.full(lane) and not self._closing and not self._called_back:
                self._changed.wait()
            if self._closing:
                raise InvalidArgument("the batcher is closed")
            if not self._threads:
                raise RuntimeError("use the batcher inside its with block")
            if lane not in self._threads:
                self._start(lane)
            if self._queue.add(entry, lane):
                self._changed.notify_all()
        return entry.future

    def flush(self, timeout_s: Seconds | None = None) -> None:
        """Wait until all messages handed over so far are answered; raise the first error since the last flush, if any.

        Raises `RequestTimedOut` after ``timeout_s``; messages without an answer stay with the batcher. Raises
        RuntimeError in a callback of a future: the callback runs in the thread for which it would wait.
        """
        error = self._all_answered(None if timeout_s is None else span_s(timeout_s))
        if error is not None:
            raise error

    def _all_answered(self, timeout_s: float | None) -> BaseException | None:
        """Wait until all messages handed over so far are answered; the first error since the last time."""
        self._check_process()
        if self._called_back:
            raise RuntimeError("a future's callback cannot flush the batcher that answers it")
        with self._changed:
            with self._queue.flush() as unanswered:
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: not unanswered(), timeout_s):
                    raise RequestTimedOut(
                        f"{unanswered()} messages were not answered within {timeout_s:g} s; they go on"
                    )
            return self._queue.take_error()

    def _leave_behind(self) -> None:
        """This is a forked process. Its threads, and threads that held the lock, exist in its parent alone."""
        self._changed = threading.Condition()
        self._left_behind = bool(self._threads)

    def _check_process(self) -> None:
        if self._left_behind:
            raise RuntimeError("this batcher belongs to the process that this one was forked from; make one here")

    @property
    def _called_back(self) -> bool:
        """Whether this is a thread that answers. If it waited here for its own answer, it would wait for ever."""
        return threading.current_thread() in self._threads.values()

    def _start(self, lane: int) -> None:
        thread = threading.Thread(target=self._work, args=(lane,), name="delayserver-batcher", daemon=True)
        self._threads[lane] = thread
        thread.start()

    def _end(self) -> None:
        """Take no more messages. The threads send those that wait, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _abandon(self) -> None:
        """Take and send no more messages. Messages that wait fail now; those in flight fail when the connection closes."""
        with self._changed:
            abandoned = self._queue.clear()
        self._end()
        # More than once: a call that just begins has no connection yet that could be closed.
        until_s = time.monotonic() + ABANDON_S
        threads = list(self._threads.values())
        try:
            while any(thread.is_alive() for thread in threads) and time.monotonic() < until_s:
                self._client.close()
                for thread in threads:
                    thread.join(0.02)
        finally:
            error = ConnectionLost("the batcher was left by an error or an interrupt: the message was not sent")
            for lane, entries in abandoned.items():
                live = [entry for entry in entries if entry.future.set_running_or_notify_cancel()]
                self._settle(lane, len(entries), live, [error] * len(live))

    def _work(self, lane: int) -> None:
        while batch := self._next_batch(lane):
            self._send(lane, batch)

    def _next_batch(self, lane: int) -> list[_Entry[R]]:
        """The next batch, once it is full or has lingered. Empty if the batcher is closed and no message waits."""
        with self._changed:
            while not self._queue.waits(lane) and not self._closing:
                self._changed.wait()
            deadline_s = time.monotonic() + self._linger_s
            while self._queue.lingers(lane) and not self._closing:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            return self._queue.take(lane, self._client.limits)

    def _send(self, lane: int, batch: list[_Entry[R]]) -> None:
        live = [entry for entry in batch if entry.future.set_running_or_notify_cancel()]
        outcomes: Sequence[R | BaseException]
        try:
            outcomes = self._client.send_placed([entry.message for entry in live], lane) if live else []
        # Every error goes to the futures: the thread has no other caller.
        except Exception as exc:  # noqa: BLE001
            outcomes = [exc] * len(live)
        self._settle(lane, len(batch), live, outcomes)

    def _settle(self, lane: int, count: int, live: list[_Entry[R]], outcomes: Sequence[R | BaseException]) -> None:
        """Answer the ``live`` ones of ``count`` messages; the futures of the others were cancelled."""
        # Callbacks of futures may send, so there is room before they run. Flushes end after the callbacks.
        with self._changed:
            self._queue.free(lane, count)
            self._changed.notify_all()
        for entry, outcome in zip(live, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)
        with self._changed:
            self._queue.count_answers(lane, count, outcomes)
            self._changed.notify_all()
