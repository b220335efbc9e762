"""The messages of a batcher that the server has not answered yet, and the flushes that wait for them.

Synchronous. The batcher locks the queue, waits, sends, and answers its callers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from delayserver.client import tracing
from delayserver.client.calls.send_calls import check_message
from delayserver.client.values.messages import Message
from delayserver.client.values.timing import Instant
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.limits import Limits

DRAIN_S: Final = 5.0
"""After an error of its block a batcher waits this long for answers, and abandons the rest. So a server that hangs does not
hold up the program's handling of the error."""


class Entry(Protocol):
    """A message, with whatever the batcher needs to answer its caller."""

    message: Message


E = TypeVar("E", bound=Entry)


class BatchQueue(Generic[E]):
    """The entries that are ``waiting`` to be sent, and counts of all entries. A batcher answers them in the order of `add`.

    ``unanswered`` entries take the room of ``pending_messages_max``. A batcher frees it, then answers its callers, then
    counts the answers.
    """

    def __init__(self, subject: str | None, *, batch_messages_max: int, pending_messages_max: int) -> None:
        if not 0 < batch_messages_max <= pending_messages_max:
            raise InvalidArgument("batch_messages_max must lie within 1 and pending_messages_max")
        self._subject = subject
        self._batch_messages_max = batch_messages_max
        self._pending_messages_max = pending_messages_max
        self._flushes = 0
        self._first_error: BaseException | None = None
        self.waiting: deque[E] = deque()
        self.unanswered = 0
        self.added_count = 0
        self.answered_count = 0

    def message(
        self,
        subject: str | None,
        body: bytes | str,
        due_ms: int | None,
        message_id: str | None,
        properties: Mapping[str, str] | None,
        expires_ms: Instant | None,
        tag: str | None = None,
        order_key: str | None = None,
    ) -> Message:
        """A checked message to add. Raises the named error of one that would make its whole batch fail."""
        subject = subject if subject is not None else self._subject
        if subject is None:
            raise InvalidArgument("give a subject to send, or to the batcher")
        # A copy: the caller may change its own before the batch leaves.
        properties = tracing.created(subject, dict(properties) if properties else None, due_ms)
        message = Message(
            subject,
            body,
            due_ms,
            message_id=message_id,
            properties=properties,
            expires_ms=expires_ms,
            tag=tag,
            order_key=order_key,
        )
        check_message(message)
        return message

    @property
    def full(self) -> bool:
        """Whether the next message must wait for answers."""
        return self.unanswered >= self._pending_messages_max

    def add(self, entry: E) -> bool:
        """Take an entry. True if the sender needs to know: it sleeps until the first one, and until a full batch."""
        self.waiting.append(entry)
        self.added_count += 1
        self.unanswered += 1
        return len(self.waiting) in (1, self._batch_messages_max)

    @property
    def lingers(self) -> bool:
        """Whether the batch waits for more messages: it is not full, and no flush waits for it."""
        return len(self.waiting) < self._batch_messages_max and not self._flushes

    def take(self, limits: Limits) -> list[E]:
        """The next batch: at least one entry if any waits."""
        count = fitting((entry.message for entry in self.waiting), self._batch_messages_max, limits)
        return [self.waiting.popleft() for _ in range(count)]

    def free(self, count: int) -> None:
        """Make room: so many messages are answered, or about to be."""
        self.unanswered -= count

    def count_answers(self, count: int, outcomes: Sequence[object]) -> None:
        """So many callers are answered. ``outcomes`` holds their results and errors."""
        self.answered_count += count
        errors = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
        self._first_error = self._first_error or next(errors, None)

    @contextmanager
    def flush(self) -> Iterator[int]:
        """The block waits until ``answered_count`` reaches the count that it is given. Later messages are not waited for."""
        self._flushes += 1
        try:
            yield self.added_count
        finally:
            self._flushes -= 1

    def take_error(self) -> BaseException | None:
        """The first error since the last call."""
        error, self._first_error = self._first_error, None
        return error

    def check_invariants(self) -> None:
        """Every entry waits, is in flight, is being answered, or is answered."""
        assert 0 <= self.answered_count <= self.added_count - self.unanswered
        assert len(self.waiting) <= self.unanswered
        assert self._flushes >= 0


def refuse_times(*times: object) -> None:
    """Raises `InvalidArgument` if a message that is published, and so due now, has a time."""
    if any(time is not None for time in times):
        raise InvalidArgument("a published message is due now; to give it a time, send it")


def fitting(messages: Iterable[Message], messages_max: int, limits: Limits) -> int:
    """How many of the messages, from the first on, fit into one request: by count, and by half a frame of content.
    At least one if there is any.
    """
    messages_max = min(messages_max, limits.batch_messages_max)
    bytes_left = limits.frame_bytes_max // 2
    count = 0
    for message in messages:
        # Text may take up to three bytes a character (four, but the other half has room for that).
        bytes_left -= len(message.body) * (3 if isinstance(message.body, str) else 1)
        if message.order_key:
            bytes_left -= 3 * len(message.order_key)
        if message.properties:
            bytes_left -= sum([3 * (len(key) + len(value)) + 10 for key, value in message.properties.items()])
        if count == messages_max or (count and bytes_left < 0):
            break
        count += 1
    return count
