"""Background batching for the blocking client: messages handed over one at a time leave in batches.

A thread of its own sends over a connection of its own, so that a long pull of the caller's client holds nothing up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

from delayserver.client.messages import Message, SendResult
from delayserver.client.send_calls import check_message
from delayserver.protocol.errors import ConnectionLost, InvalidArgument, RequestTimedOut
from delayserver.protocol.limits import Limits

if TYPE_CHECKING:
    from delayserver.client.blocking import Client

DRAIN_S: Final = 5.0
"""What was handed over before an error of the block has this long to be answered. Then it is abandoned: whoever handles the
error does not wait for a server that hangs."""

ABANDON_S: Final = 1.0
"""A batcher that is left in a hurry waits this long for its thread, which a closed connection ends at once; one that still
connects goes on by itself, answers what it had under way, and ends."""

_batchers: WeakSet[Batcher] = WeakSet()


def _leave_behind() -> None:
    """In a process that was forked: neither the threads of batchers nor whoever held their locks run here."""
    for batcher in _batchers:
        batcher._changed = threading.Condition()
        batcher._left_behind = batcher._thread.ident is not None


os.register_at_fork(after_in_child=_leave_behind)


@dataclass(slots=True)
class _Entry:
    message: Message
    future: Future[SendResult] = field(default_factory=Future)


def fitting(messages: Iterable[Message], messages_max: int, limits: Limits) -> int:
    """How many of the messages, from the first on, go into one request: by count and by half a frame of content;
    at least one if there is any.
    """
    messages_max = min(messages_max, limits.batch_messages_max)
    bytes_left = limits.frame_bytes_max // 2
    count = 0
    for message in messages:
        # Text may take up to three bytes a character (four, but the other half has room for that).
        bytes_left -= len(message.body) * (3 if isinstance(message.body, str) else 1)
        if message.properties:
            bytes_left -= sum([3 * (len(key) + len(value)) + 10 for key, value in message.properties.items()])
        if count == messages_max or (count and bytes_left < 0):
            break
        count += 1
    return count


class Batcher:
    """Gathers messages until ``batch_messages_max`` are there or the oldest has waited ``linger_ms``, and sends them.

    A context manager; leaving it flushes, after an error of its block for some seconds at most (`DRAIN_S`). What is not
    answered then, or when the block is left by an interrupt, is abandoned: its futures raise `ConnectionLost`. ``send``
    blocks while ``pending_messages_max`` messages are not answered
    yet, which bounds memory. Errors are set on the future of each message they concern, and the first since the last
    flush is raised by the next one. May be used from several threads, ``send`` also by what a future calls back, where
    it goes past the bound instead of waiting. It belongs to the process that entered it: in one forked from that,
    ``send`` and ``flush`` raise RuntimeError, and leaving the block does nothing.
    """

    def __init__(
        self,
        client: Client,
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
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._unanswered = 0
        self._handed_over_count = 0
        self._answered_count = 0
        self._hurry = 0  # flushes that wait: no lingering meanwhile
        self._closing = False
        self._first_error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="delayserver-batcher", daemon=True)
        self._left_behind = False
        _batchers.add(self)

    def __enter__(self) -> Self:
        self._client.connect()
        self._thread.start()
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
                self._thread.join()
                drained = True
        except RequestTimedOut:
            pass  # behind an error of the block, which is what the caller hears of
        finally:
            # Also when interrupted while it drained: then nobody wants to wait any more.
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
        due_ms: int | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: int | None = None,
    ) -> Future[SendResult]:
        """Hand over one message; the future gives its `SendResult` or raises its error. Arguments are those of
        `Client.send`.

        A delay counts from this call, not from the moment the batch leaves.
        """
        self._check_process()
        subject = subject if subject is not None else self._subject
        if subject is None:
            raise InvalidArgument("give a subject to send, or to the batcher")
        due_ms = self._client.resolve_due_ms(due_ms, delay_ms, at, delay)
        # A copy: the caller may change its own before the batch leaves.
        properties = dict(properties) if properties else None
        message = Message(subject, body, due_ms, message_id=message_id, properties=properties, expires_ms=expires_ms)
        check_message(message)
        entry = _Entry(message)
        with self._changed:
            while self._unanswered >= self._pending_messages_max and not self._closing and not self._called_back:
                self._changed.wait()
            if self._closing:
                raise InvalidArgument("the batcher is closed")
            # Nobody would ever send it.
            if not self._thread.is_alive():
                raise RuntimeError("use the batcher inside its with block")
            self._waiting.append(entry)
            self._unanswered += 1
            self._handed_over_count += 1
            # The worker sleeps only for the first message and for a full batch; waking it for
            # each would cost more than sending.
            if len(self._waiting) in (1, self._batch_messages_max):
                self._changed.notify_all()
        return entry.future

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything handed over so far is answered; raise the first error since the last flush, if any.
        Raises `RequestTimedOut` after ``timeout_s``, and what is not answered then goes on; RuntimeError where a future
        calls it back: the thread that it would wait for is its own.
        """
        error = self._all_answered(timeout_s)
        if error is not None:
            raise error

    def _all_answered(self, timeout_s: float | None) -> BaseException | None:
        """Wait until everything handed over so far is answered; the first error since the last time."""
        self._check_process()
        if self._called_back:
            raise RuntimeError("a future's callback cannot flush the batcher that answers it")
        with self._changed:
            # They are answered in their order; what others hand over meanwhile is not waited for.
            until = self._handed_over_count
            self._hurry += 1
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(lambda: self._answered_count >= until, timeout_s):
                    unanswered = until - self._answered_count
                    raise RequestTimedOut(f"{unanswered} messages were not answered within {timeout_s:g} s; they go on")
            finally:
                self._hurry -= 1
            error, self._first_error = self._first_error, None
        return error

    def _check_process(self) -> None:
        if self._left_behind:
            raise RuntimeError("this batcher belongs to the process that this one was forked from; make one here")

    @property
    def _called_back(self) -> bool:
        """Whether this is the thread that answers, so that waiting here for an answer would never end."""
        return threading.current_thread() is self._thread

    def _end(self) -> None:
        """Take nothing more; the thread sends what waits and ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _abandon(self) -> None:
        """Take nothing more and send nothing more: what waits fails now, what is under way when its connection closes."""
        with self._changed:
            abandoned = list(self._waiting)
            self._waiting.clear()
        self._end()
        # More than once: a call that just begins has no connection yet that could be closed.
        until_s = time.monotonic() + ABANDON_S
        try:
            while self._thread.is_alive() and time.monotonic() < until_s:
                self._client.close()
                self._thread.join(0.02)
        finally:
            error = ConnectionLost("the batcher was left by an error or an interrupt: the message was not sent")
            live = [entry for entry in abandoned if entry.future.set_running_or_notify_cancel()]
            self._settle(len(abandoned), live, [error] * len(live))

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            self._send(batch)

    def _next_batch(self) -> list[_Entry]:
        """The next batch when it is full or has lingered;
        an empty one when the batcher is closed and nothing is left.
        """
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            deadline_s = time.monotonic() + self._linger_s
            while len(self._waiting) < self._batch_messages_max and not self._hurry and not self._closing:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            return [self._waiting.popleft() for _ in range(self._fitting())]

    def _fitting(self) -> int:
        """How many waiting messages fit into one batch; at least one if any waits."""
        return fitting((entry.message for entry in self._waiting), self._batch_messages_max, self._client.limits)

    def _send(self, batch: list[_Entry]) -> None:
        live = [entry for entry in batch if entry.future.set_running_or_notify_cancel()]
        outcomes: Sequence[SendResult | BaseException]
        try:
            outcomes = self._client.send_many([entry.message for entry in live]) if live else []
        # Whatever it is belongs to the senders: the thread has nobody else to tell.
        except Exception as exc:  # noqa: BLE001
            outcomes = [exc] * len(live)
        self._settle(len(batch), live, outcomes)

    def _settle(self, count: int, live: list[_Entry], outcomes: Sequence[SendResult | BaseException]) -> None:
        """Answer the ``live`` ones of ``count`` messages; the futures of the others were cancelled."""
        # There is room again before the futures are resolved, since what they call back may send; whoever flushes goes
        # on after them.
        with self._changed:
            self._unanswered -= count
            self._changed.notify_all()
        for entry, outcome in zip(live, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)
        with self._changed:
            errors = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
            self._first_error = self._first_error or next(errors, None)
            self._answered_count += count
            self._changed.notify_all()
