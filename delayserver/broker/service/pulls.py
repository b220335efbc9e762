"""Pulls that may wait, served in a fair order between (subject, group).

The arrival of messages wakes a waiting pull, not a timer. A round serves one pull of each group that has messages,
however many consumers the group has.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import trio

from delayserver.broker.pulled import PulledBatch
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.service.broker import Broker
from delayserver.protocol.errors import GroupsFull, QueueFull, ShuttingDown
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from store.errors import StoreError

# Pulls served at once, between two turns of the serving task. A lone consumer is spared the hop to that task. Of many
# consumers that pull in the same event-loop iteration, the rest is served in fair order.
_AT_ONCE_PER_TURN = 8


Answer = Callable[[PulledBatch], None]


class Outlet(Protocol):
    """The destination of a pull's messages: a connection, whose client may read more slowly than messages come."""

    def reply_bytes(self) -> int:
        """How many bytes a reply may have now. 0: hand out nothing until `when_room` calls its action."""

    def when_room(self, action: Callable[[], None]) -> None:
        """Call `action` once, when there is room for a reply, at once or later. Never if the connection ends first."""


class Unbounded:
    """An `Outlet` that takes everything."""

    def reply_bytes(self) -> int:
        return 1 << 62

    def when_room(self, action: Callable[[], None]) -> None:
        action()


TOO_MANY_GROUPS = (
    "this node has all the consumer groups that it may have; use one name for all consumers of a kind, or raise "
    "broker.groups_max"
)


class _Waiter:
    """One waiting pull."""

    __slots__ = (
        "ack_timeout_ms",
        "answer",
        "error",
        "in_line",
        "max_bytes",
        "max_messages",
        "outlet",
        "patient",
        "pulled",
        "served",
    )

    def __init__(
        self,
        max_messages: int,
        max_bytes: int,
        ack_timeout_ms: int | None,
        patient: bool,
        answer: Answer | None,
        outlet: Outlet,
    ) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.ack_timeout_ms = ack_timeout_ms
        self.served = trio.Event()
        self.patient = patient
        self.answer = answer
        self.outlet = outlet
        # False while it waits for room in its outlet.
        self.in_line = False
        self.pulled: PulledBatch | None = None
        self.error: Exception | None = None

    def take(self, pulled: PulledBatch | None) -> None:
        """What the broker handed out."""
        self.pulled = pulled

    def fail(self, error: Exception) -> None:
        """The error is raised where the pull waits."""
        self.error = error

    def take_error(self) -> Exception:
        """The error, kept here no longer."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def stand(self, *, in_line: bool) -> None:
        """Whether it stands in the line of its group."""
        self.in_line = in_line


_UNBOUNDED = Unbounded()


class PullService:
    """Long polling over a `Broker`. `run` is a task of the server."""

    def __init__(self, broker: Broker, runtime: Runtime, turn_rows_max: int = 1 << 31) -> None:
        """`turn_rows_max`: messages handed out in one step. Where several broker groups share the event loop it is less."""
        self._broker = broker
        self._turns = runtime.turns
        self._clock = runtime.clock
        self._waiters: dict[GroupKey, deque[_Waiter]] = {}
        self._groups_of: dict[int, set[int]] = {}
        self._ready: OrderedDict[GroupKey, None] = OrderedDict()
        self._wake = trio.Event()
        self._at_once = _AT_ONCE_PER_TURN
        self._closed = False
        self.waiting = 0
        self.turn_rows_max = turn_rows_max

    async def pull(
        self,
        subject: int,
        group: int,
        max_messages: int,
        max_bytes: int,
        wait_ms: int,
        ack_timeout_ms: int | None = None,
        answer: Answer | None = None,
        outlet: Outlet | None = None,
    ) -> PulledBatch | None:
        """Wait for messages and return them; None after `wait_ms` without any. A pull that is cancelled before it is
        served takes no messages. Raises ShuttingDown, GroupsFull, QueueFull if too many pulls wait, StoreError if the
        disk fails.

        With `answer` the pull returns None and calls `answer` with the messages, in the step that hands them out. This
        spares a waiting consumer an event-loop iteration. Errors of `answer` are raised here. While `outlet` has no
        room, the pull gets no messages and other pulls go first."""
        outlet = outlet or _UNBOUNDED
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise ShuttingDown("the server is stopping", retry_after_ms=1000)
        if not self._broker.admits(subject, group):
            raise GroupsFull(TOO_MANY_GROUPS)
        key = (subject, group)
        tried = False
        small = self._broker.waiting_rows(*key) <= LARGE_ROWS
        room = outlet.reply_bytes()
        if small and room > 0 and self._at_once > 0 and not self._waiters.get(key):
            pulled = self._pull_at_once(key, max_messages, min(max_bytes, room), ack_timeout_ms)
            if pulled is not None and answer is not None:
                answer(pulled)
                return None
            tried = not self._broker.is_unfinished(*key)
            if pulled is not None or (tried and wait_ms <= 0):
                return pulled
        if self.waiting >= self._broker.limits.waiting_pulls_max:
            raise QueueFull("too many pulls wait already; pull again later, or raise waiting_pulls_max")
        waiter = _Waiter(max_messages, max_bytes, ack_timeout_ms, wait_ms > 0, answer, outlet)
        return await self._wait(key, waiter, wait_ms, tried)

    def _pull_at_once(
        self, key: GroupKey, max_messages: int, max_bytes: int, ack_timeout_ms: int | None
    ) -> PulledBatch | None:
        self._use_at_once()
        clock = self._clock
        return self._broker.pull(*key, max_messages, max_bytes, clock.now_us(), clock.monotonic_us(), ack_timeout_ms)

    def _use_at_once(self) -> None:
        self._at_once -= 1
        if self._at_once == 0:
            self._wake.set()

    async def _wait(self, key: GroupKey, waiter: _Waiter, wait_ms: int, tried: bool) -> PulledBatch | None:
        self._join(key, waiter)
        if not tried:
            self._make_ready(key)
        self.waiting += 1
        try:
            if waiter.patient:
                with trio.move_on_after(wait_ms / 1000):
                    await waiter.served.wait()
            else:
                await waiter.served.wait()  # only until its turn, which answers for an empty queue too
        finally:
            self.waiting -= 1
            if not waiter.served.is_set():
                waiter.served.set()  # an outlet that has room later must not rejoin it
                if waiter.in_line:
                    self._leave(key, waiter)
        if waiter.error is not None:
            error = waiter.take_error()
            try:
                raise error
            finally:
                del error  # otherwise the error and its frame refer to each other until the garbage collector runs
        return waiter.pulled if waiter.answer is None else None

    def arrived(self, keys: Iterable[QueueKey], rows: int) -> None:
        """Serve or wake pulls that wait for these queues (`Delivered.arrived`). `rows`: the new messages of all queues."""
        for subject, target_group in keys:
            groups = self._groups_of.get(subject, ())
            for group in list(groups) if target_group == 0 else [target_group] if target_group in groups else []:
                key = (subject, group)
                if rows <= LARGE_ROWS and self._at_once > 0 and key not in self._ready:
                    # Serving it in the step that brought the messages costs less than putting it in line.
                    self._use_at_once()
                    self._serve(key)
                else:
                    self._make_ready(key)

    def close(self) -> None:
        """Hand out nothing more: the broker's files will be closed. Waiting pulls end with their connections."""
        self._closed = True
        self._ready.clear()

    def acked(self, subject: int, group: int) -> None:
        """A group has acked: wake its pulls, since it may have had too many messages outstanding."""
        if (subject, group) in self._waiters:
            self._make_ready((subject, group))

    def _make_ready(self, key: GroupKey) -> None:
        self._ready[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Serve rounds until cancelled: one pull of each ready key. Other tasks run between the rounds."""
        while True:
            if not self._ready:
                await self._wake.wait()
            self._wake = trio.Event()
            self._at_once = _AT_ONCE_PER_TURN
            if any(self._broker.waiting_rows(*key) > LARGE_ROWS for key in self._ready):
                await self._turns.take()
            room = self._broker.limits.turn_bytes_max
            for _ in range(len(self._ready)):
                key, _none = self._ready.popitem(last=False)
                room -= self._serve(key)
                if room <= 0:
                    break
            await trio.lowlevel.checkpoint()

    def _serve(self, key: GroupKey) -> int:
        """Serve the first pull in line; returns the bytes that count for this turn.

        A key with more pulls goes to the end of the order."""
        line = self._waiters.get(key)
        if line is None or self._closed:
            return 0
        waiter = line[0]
        room = waiter.outlet.reply_bytes()
        if room <= 0:
            self._leave(key, waiter)
            if key in self._waiters:
                self._make_ready(key)
            waiter.outlet.when_room(partial(self._rejoin, key, waiter))
            return 0
        try:
            pulled = self._broker.pull(
                *key,
                min(waiter.max_messages, self.turn_rows_max),
                min(waiter.max_bytes, room),
                self._clock.now_us(),
                self._clock.monotonic_us(),
                waiter.ack_timeout_ms,
            )
            waiter.take(pulled)
        except StoreError as error:
            waiter.fail(error)
        if waiter.pulled is None and waiter.error is None:
            if self._broker.is_unfinished(*key):
                self._make_ready(key)
                return self._broker.limits.turn_bytes_max
            self._answer_impatient(key, line)
            return 0
        waiter.served.set()
        self._leave(key, waiter)
        if key in self._waiters:
            self._make_ready(key)
        if waiter.answer is not None and waiter.pulled is not None:
            try:
                waiter.answer(waiter.pulled)
            except Exception as error:  # noqa: BLE001 - raised where the pull waits
                waiter.fail(error)
        return 0 if waiter.pulled is None else len(waiter.pulled.batch.bodies)

    def _answer_impatient(self, key: GroupKey, line: deque[_Waiter]) -> None:
        """Answer the pulls that do not wait: there are no messages."""
        for waiter in [waiter for waiter in line if not waiter.patient]:
            waiter.served.set()
            self._leave(key, waiter)

    def _join(self, key: GroupKey, waiter: _Waiter) -> None:
        self._waiters.setdefault(key, deque()).append(waiter)
        self._groups_of.setdefault(key[0], set()).add(key[1])
        waiter.stand(in_line=True)

    def _rejoin(self, key: GroupKey, waiter: _Waiter) -> None:
        """Put a pull back in line: its outlet has room again."""
        if not waiter.served.is_set():  # otherwise it was given up meanwhile
            self._join(key, waiter)
            self._make_ready(key)

    def _leave(self, key: GroupKey, waiter: _Waiter) -> None:
        waiter.stand(in_line=False)
        line = self._waiters[key]
        line.remove(waiter)
        if not line:
            del self._waiters[key]
            groups = self._groups_of[key[0]]
            groups.discard(key[1])
            if not groups:
                del self._groups_of[key[0]]
