"""The messages of a batcher that the server has not answered yet, and the flushes that wait for them.

Synchronous. The batcher locks the queue, waits, sends, and answers its callers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from delayserver.client import tracing
from delayserver.client.calls.lane_places import LanePlaces
from delayserver.client.calls.send_calls import check_message
from delayserver.client.values.messages import Message
from delayserver.client.values.timing import Instant
from delayserver.protocol.errors import DelayServerError, InvalidArgument
from delayserver.protocol.limits import Limits

DRAIN_S: Final = 5.0
"""After an error of its block a batcher waits this long for answers, and abandons the rest. So a server that hangs does not
hold up the program's handling of the error."""


class Entry(Protocol):
    """A message, with whatever the batcher needs to answer its caller."""

    message: Message


E = TypeVar("E", bound=Entry)


class BatchQueue(Generic[E]):
    """The entries that wait to be sent, in a lane for each shard, and counts of all entries. A batcher sends one batch of a
    lane at a time, and answers the entries of a lane in the order of `add`.

    ``unanswered`` entries take the room of ``pending_messages_max``, which `LanePlaces` shares out. A batcher frees it, then
    answers its callers, then counts the answers. ``several`` says whether there are several shards.
    """

    def __init__(
        self,
        subject: str | None,
        *,
        batch_messages_max: int,
        pending_messages_max: int,
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        if not 0 < batch_messages_max <= pending_messages_max:
            raise InvalidArgument("batch_messages_max must lie within 1 and pending_messages_max")
        self._subject = subject
        self._batch_messages_max = batch_messages_max
        self._places = LanePlaces(pending_messages_max, several)
        # By lane.
        self._waiting: defaultdict[int, deque[E]] = defaultdict(deque)
        self._added: defaultdict[int, int] = defaultdict(int)
        self._answered: defaultdict[int, int] = defaultdict(int)
        self._flushes = 0
        self._first_error: BaseException | None = None
        self.added_count = 0

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
    def unanswered(self) -> int:
        """The entries that take room."""
        return self._places.taken

    def full(self, lane: int) -> bool:
        """Whether the next message of a lane must wait for answers."""
        return self._places.full(lane)

    def add(self, entry: E, lane: int) -> bool:
        """Take an entry. True if the sender needs to know: it sleeps until the first one, and until a full batch."""
        waiting = self._waiting[lane]
        waiting.append(entry)
        self._added[lane] += 1
        self.added_count += 1
        self._places.take(lane)
        return len(waiting) in (1, self._batch_messages_max) or self.full(lane)

    def waits(self, lane: int) -> bool:
        """Whether entries of a lane wait to be sent."""
        return bool(self._waiting[lane])

    def lingers(self, lane: int) -> bool:
        """Whether a batch waits for more messages: it is not full, has room to grow, and no flush waits for it."""
        return len(self._waiting[lane]) < self._batch_messages_max and not self.full(lane) and not self._flushes

    def take(self, lane: int, limits: Limits) -> list[E]:
        """The next batch of a lane: at least one entry if any waits."""
        waiting = self._waiting[lane]
        count = fitting((entry.message for entry in waiting), self._batch_messages_max, limits)
        return [waiting.popleft() for _ in range(count)]

    def clear(self) -> dict[int, list[E]]:
        """Take out the entries that wait, by lane."""
        taken = {lane: list(waiting) for lane, waiting in self._waiting.items() if waiting}
        self._waiting.clear()
        return taken

    def free(self, lane: int, count: int) -> None:
        """Make room: so many messages of a lane are answered, or about to be."""
        self._places.free(lane, count)

    def count_answers(self, lane: int, count: int, outcomes: Sequence[object]) -> None:
        """So many callers are answered. ``outcomes`` holds their results and errors."""
        self._answered[lane] += count
        errors = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
        self._first_error = self._first_error or next(errors, None)

    @contextmanager
    def flush(self) -> Iterator[Callable[[], int]]:
        """The block waits until what it is given says 0: so many messages that were added before are not answered. Later
        messages are not waited for.
        """
        self._flushes += 1
        until = dict(self._added)
        try:
            yield lambda: sum(max(0, count - self._answered[lane]) for lane, count in until.items())
        finally:
            self._flushes -= 1

    def take_error(self) -> BaseException | None:
        """The first error since the last call."""
        error, self._first_error = self._first_error, None
        return error

    def check_invariants(self) -> None:
        """Every entry waits, is in flight, is being answered, or is answered."""
        self._places.check_invariants()
        assert self.added_count == sum(self._added.values())
        assert 0 <= sum(self._answered.values()) <= self.added_count - self.unanswered
        assert sum(map(len, self._waiting.values())) <= self.unanswered
        assert self._flushes >= 0


def placed_or_refused(placed: Callable[[Message], tuple[int, Message]], message: Message) -> tuple[int, Message]:
    """The lane of a message, and the message to send. If no shard takes new messages, its send says so."""
    try:
        return placed(message)
    except DelayServerError:
        return 0, message


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
