"""Pulls that may wait, served in a fair order between (subject, group).

A waiting pull is woken by the arrival of messages, not by a timer. However many consumers one group has, it gets one
pull served in a round, and so does every other group that has something to get.
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

# Pulls served at once, without a turn of the serving task, before the next turn: a lone consumer is spared the hop, and
# a crowd that comes in one turn of the event loop is still put in order.
_AT_ONCE_PER_TURN = 8


Answer = Callable[[PulledBatch], None]


class Outlet(Protocol):
    """Where the messages of a pull go: a connection, whose client may read more slowly than messages come."""

    def reply_bytes(self) -> int:
        """How large a reply may be now; 0: nothing is to be handed out before `when_room` says so."""

    def when_room(self, action: Callable[[], None]) -> None:
        """Call `action` once a reply may be made, at once or later; never where the connection ends before."""


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
        # Not while it waits for room in its outlet.
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
        """Messages as soon as there are any; None after `wait_ms` without. What a cancelled pull was not handed stays
        where it is. Raises QueueFull when too many pulls wait, StoreError where the disk fails.

        With `answer` the messages go there, in the very step in which they are handed out, and None is returned: a
        waiting consumer is spared a pass of the event loop. What it raises is raised here. While `outlet` has no room
        nothing is handed out, and other pulls go first."""
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
                await waiter.served.wait()  # only until its turn: an empty queue is answered then
        finally:
            self.waiting -= 1
            if not waiter.served.is_set():
                waiter.served.set()  # also for an outlet that has room later
                if waiter.in_line:
                    self._leave(key, waiter)
        if waiter.error is not None:
            error = waiter.take_error()
            try:
                raise error
            finally:
                del error  # an error whose frame names it waits for the collector
        return waiter.pulled if waiter.answer is None else None

    def arrived(self, keys: Iterable[QueueKey], rows: int) -> None:
        """Queues have something new (`Delivered.arrived`), so many rows together: wake who waits for it."""
        for subject, target_group in keys:
            groups = self._groups_of.get(subject, ())
            for group in list(groups) if target_group == 0 else [target_group] if target_group in groups else []:
                key = (subject, group)
                if rows <= LARGE_ROWS and self._at_once > 0 and key not in self._ready:
                    # Served with the step that brought the messages: it costs less than putting it in line.
                    self._use_at_once()
                    self._serve(key)
                else:
                    self._make_ready(key)

    def close(self) -> None:
        """Hand out nothing any more: the broker's files are about to be closed. Who waits is cut off with its connection."""
        self._closed = True
        self._ready.clear()

    def acked(self, subject: int, group: int) -> None:
        """A group has acked: one that had too much outstanding may go on."""
        if (subject, group) in self._waiters:
            self._make_ready((subject, group))

    def _make_ready(self, key: GroupKey) -> None:
        self._ready[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Serve rounds: one pull of each ready key, then the next round; other tasks get their turn in between."""
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
        """Serve the first pull in line; returns the bytes handed out. The key goes to the end of the order while it
        has both messages and pulls."""
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
        """Nothing is there: those who only asked are told so."""
        for waiter in [waiter for waiter in line if not waiter.patient]:
            waiter.served.set()
            self._leave(key, waiter)

    def _join(self, key: GroupKey, waiter: _Waiter) -> None:
        self._waiters.setdefault(key, deque()).append(waiter)
        self._groups_of.setdefault(key[0], set()).add(key[1])
        waiter.stand(in_line=True)

    def _rejoin(self, key: GroupKey, waiter: _Waiter) -> None:
        """Its outlet has room again."""
        if not waiter.served.is_set():  # else it was given up meanwhile
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
