"""Pulls that may wait, served in a fair order between the actors of (subject, group).

The arrival of messages wakes a waiting pull, not a timer. Of the actors that have messages, the one goes first that used
the least event-loop time and bytes lately, however many consumers it has; among equals, the one that came first. A turn is
one pull. An actor whose next messages must be read from the disk leaves the line until the read has ended.

A waiting pull is answered in the step that brought its messages, before the broker's sync: each pass of the event
loop costs about 0.1 ms of lateness.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

from delayserver.broker.actions.group_table import GroupTable
from delayserver.broker.actions.leasing import Leasing
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.reads import ReadNeeded, ReadPlan
from delayserver.broker.service.broker_reads import BrokerReads
from delayserver.broker.service.pull_actor import UNBOUNDED, Answer, LeaseTerms, Outlet, PullActor, WaitingPull
from delayserver.protocol.errors import DeadlinePassed, GroupsFull, QueueFull, ShuttingDown
from delayserver.runtime.fair_shares import FairShares, Ticket
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from store.errors import StoreError

__all__ = ["TOO_MANY_GROUPS", "Outlet", "PullService"]

# Pulls served at once, between two turns of the serving task. A lone consumer is spared the hop to that task. Of many
# consumers that pull in the same event-loop iteration, the rest is served in fair order.
_AT_ONCE_PER_TURN = 8
# The time for turns before other tasks run.
_STEP_US = 2_000
# The cost of a pull for its group, beside the measured time: at least this, and a microsecond for each KiB, since the
# reply is encoded and sent later.
_PULL_US = 20
_BYTES_A_US = 1024
# Actors without a pull are kept, for what they used lately, until there are so many (300 bytes each).
_IDLE_ACTORS_MAX = 4096
# An idle actor that used less is like a new one.
_FORGOTTEN_US = 1.0

TOO_MANY_GROUPS = (
    "this node has all the consumer groups that it may have; use one name for all consumers of a kind, or raise "
    "broker.groups_max"
)


class PullService:
    """Long polling over a broker. `run` is a task of the server."""

    def __init__(
        self,
        consuming: Leasing,
        groups: GroupTable,
        limits: BrokerLimits,
        reads: BrokerReads,
        runtime: Runtime,
        turn_rows_max: int = 1 << 31,
    ) -> None:
        """`turn_rows_max`: messages handed out in one step. Where several broker groups share the event loop it is less."""
        self._consuming = consuming
        self._groups = groups
        self._limits = limits
        self._reads = reads
        self._turns = runtime.turns
        self._clock = runtime.clock
        self._actors: dict[GroupKey, PullActor] = {}
        self._actors_kept = _IDLE_ACTORS_MAX
        # The actors in line, and the groups of each subject that have a pull in their mailbox.
        self._shares = FairShares()
        self._in_line: dict[Ticket, PullActor] = {}
        self._groups_of: dict[int, set[int]] = {}
        self._wake = trio.Event()
        self._at_once = _AT_ONCE_PER_TURN
        self._closed = False
        self.waiting = 0
        # Pulls so far whose deadline passed while they waited for their turn.
        self.deadlines_passed = 0
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
        outlet: Outlet = UNBOUNDED,
        deadline_ms: int | None = None,
        owner: int = 0,
    ) -> PulledBatch | None:
        """Wait for messages and return them; None after `wait_ms` without any. A pull that is cancelled before it is
        served takes no messages. Raises ShuttingDown, GroupsFull, QueueFull if too many pulls wait, StoreError if the
        disk fails, DeadlinePassed if it gets its turn at or after `deadline_ms`.

        With `answer` the pull returns None and calls `answer` with the messages, in the step that hands them out. This
        spares a waiting consumer an event-loop iteration. Errors of `answer` are raised here. While `outlet` has no
        room, the pull gets no messages and other pulls go first. `owner`: to whom the leases belong."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise ShuttingDown("the server is stopping", retry_after_ms=1000)
        if not self._groups.admits((subject, group)):
            raise GroupsFull(TOO_MANY_GROUPS)
        actor = self._actor((subject, group))
        tried = False
        plan: ReadPlan | None = None
        small = self._consuming.waiting_rows((subject, group)) <= LARGE_ROWS
        room = outlet.reply_bytes()
        if small and room > 0 and self._at_once > 0 and not actor.mailbox:
            try:
                pulled = self._pull_at_once(
                    actor, max_messages, min(max_bytes, room), LeaseTerms(ack_timeout_ms, owner)
                )
            except ReadNeeded as needed:
                plan = needed.plan
            else:
                if pulled is not None and answer is not None:
                    answer(pulled)
                    return None
                tried = not self._consuming.is_unfinished((subject, group))
                if pulled is not None or (tried and wait_ms <= 0):
                    return pulled
        self._require_place(actor)
        pull = WaitingPull(max_messages, max_bytes, LeaseTerms(ack_timeout_ms, owner), deadline_ms, answer, outlet)
        self._join(actor, pull)
        if plan is not None:
            self._suspend(actor, plan)
        elif not tried:
            self._make_ready(actor)
        return await self._wait(actor, pull, wait_ms)

    def _require_place(self, actor: PullActor) -> None:
        limits = self._limits
        if self.waiting >= limits.waiting_pulls_max:
            raise QueueFull("too many pulls wait already; pull again later, or raise waiting_pulls_max")
        if actor.pulls >= limits.mailbox_pulls_max:
            raise QueueFull(
                "too many pulls of this group wait already; pull again later, or raise broker.mailbox_pulls_max"
            )

    def _actor(self, key: GroupKey) -> PullActor:
        actor = self._actors.get(key)
        if actor is None:
            if len(self._actors) >= self._actors_kept:
                self._forget_idle()
            actor = self._actors[key] = PullActor(key)
        return actor

    def _forget_idle(self) -> None:
        """Forget the idle actors that used little lately; if that leaves too many, all idle ones."""
        now_us = self._clock.monotonic_us()
        idle = [actor for actor in self._actors.values() if actor.idle]
        if len(idle) > _IDLE_ACTORS_MAX // 2:
            little = [actor for actor in idle if self._shares.used_us(actor.account, now_us) < _FORGOTTEN_US]
            for actor in idle if len(idle) - len(little) > _IDLE_ACTORS_MAX // 2 else little:
                del self._actors[actor.key]
        self._actors_kept = max(_IDLE_ACTORS_MAX, 2 * len(self._actors))

    def _pull_at_once(
        self, actor: PullActor, max_messages: int, max_bytes: int, lease: LeaseTerms
    ) -> PulledBatch | None:
        self._use_at_once()
        clock = self._clock
        begun_us = clock.monotonic_us()
        pulled = self._consuming.pull(actor.key, max_messages, max_bytes, clock.now_us(), begun_us, *lease)
        if pulled is not None:
            self._charge(actor, begun_us, pulled)
            if pulled.following is not None:
                self._reads.ahead(pulled.following)
        return pulled

    def _charge(self, actor: PullActor, begun_us: int, pulled: PulledBatch | None) -> None:
        now_us = self._clock.monotonic_us()
        cost_us = max(now_us - begun_us, _PULL_US)
        if pulled is not None:
            cost_us += len(pulled.batch.bodies) // _BYTES_A_US
        self._shares.charge(actor.account, cost_us, now_us)

    def _use_at_once(self) -> None:
        self._at_once -= 1
        if self._at_once == 0:
            self._wake.set()

    async def _wait(self, actor: PullActor, pull: WaitingPull, wait_ms: int) -> PulledBatch | None:
        self.waiting += 1
        actor.enter(pull)
        try:
            if wait_ms > 0:
                with trio.move_on_after(self._wait_s(pull, wait_ms)):
                    await pull.served.wait()
            if pull in actor.mailbox and self._has_passed(pull) and self._consuming.waiting_rows(actor.key):
                self._drop(actor, pull)  # there are messages, and its turn did not come in time
            if not pull.served.is_set() and (wait_ms <= 0 or actor.suspended):
                # It waits only until its turn; or there are messages, and the disk has not read them yet.
                await pull.wait_for_turn()
        finally:
            self.waiting -= 1
            if not pull.served.is_set():
                pull.served.set()  # an outlet that has room later must not rejoin it
                if pull in actor.mailbox:
                    self._leave(actor, pull)
            actor.leave(pull)
        if pull.error is not None:
            error = pull.take_error()
            try:
                raise error
            finally:
                del error  # otherwise the error and its frame refer to each other until the garbage collector runs
        return pull.pulled if pull.answer is None else None

    def _wait_s(self, pull: WaitingPull, wait_ms: int) -> float:
        """How long a pull waits for messages: not past its deadline."""
        if pull.deadline_ms is not None:
            wait_ms = min(wait_ms, max(pull.deadline_ms - self._clock.now_ms(), 0))
        return wait_ms / 1000

    def _has_passed(self, pull: WaitingPull) -> bool:
        return pull.deadline_ms is not None and self._clock.now_ms() >= pull.deadline_ms

    def waits(self, subject: int, group: int) -> bool:
        """Whether a pull of the group waits for messages."""
        return group in self._groups_of.get(subject, ())

    def wake(self, keys: Iterable[QueueKey], rows: int) -> None:
        """Serves or wakes pulls that wait for queues with new messages (`Delivered.arrived`). `rows`: their new
        messages in all."""
        for subject, target_group in keys:
            groups = self._groups_of.get(subject, ())
            for group in list(groups) if target_group == 0 else [target_group] if target_group in groups else []:
                key = (subject, group)
                if target_group == 0 and self._consuming.passes_over(key):
                    continue  # no pull is woken, and no row is left to look at
                actor = self._actors[key]
                if rows <= LARGE_ROWS and self._at_once > 0 and actor.ticket is None and not actor.suspended:
                    # Serving it in the step that brought the messages costs less than putting it in line.
                    self._use_at_once()
                    self._serve(actor)
                else:
                    self._make_ready(actor)

    def close(self) -> None:
        """Hand out nothing more: the broker's files will be closed. Waiting pulls end with their connections."""
        self._closed = True
        for actor in self._actors.values():
            self._leave_line(actor)
            actor.end_reading()

    def wake_group(self, subject: int, group: int) -> None:
        """Wakes the pulls of a group after an ack: it may have had too many messages outstanding."""
        if self.waits(subject, group):
            self._make_ready(self._actors[subject, group])

    def end_group(self, subject: int, group: int) -> None:
        """Ends the waiting pulls of a removed group without messages, so that none of them makes the group anew. Pulls
        that wait for room in their outlet end too."""
        actor = self._actors.get((subject, group))
        if actor is None:
            return
        for pull in actor.waiting:
            pull.served.set()
            if pull in actor.mailbox:
                self._leave(actor, pull)

    def _make_ready(self, actor: PullActor) -> None:
        if actor.ticket is None and not actor.suspended and not self._closed:
            ticket = self._shares.join(actor.account, self._wake.set)
            self._in_line[ticket] = actor
            actor.set_ticket(ticket)
            self._wake.set()

    def _leave_line(self, actor: PullActor) -> None:
        if actor.ticket is not None:
            self._shares.leave(actor.ticket)
            del self._in_line[actor.ticket]
            actor.set_ticket(None)

    def _suspend(self, actor: PullActor, plan: ReadPlan) -> None:
        """Serve no pull of the group until the plan has run."""
        self._leave_line(actor)
        actor.suspend(actor.reading or self._reads.reading())
        assert actor.reading is not None
        actor.reading.drop(plan.kind)  # a pull takes one record after the other
        self._reads.begin(plan, actor.reading, partial(self._resume, actor))

    def _resume(self, actor: PullActor) -> None:
        """A read of the group has ended."""
        actor.resume()
        if actor.mailbox and not self._closed:
            self._make_ready(actor)
        else:
            actor.end_reading()

    async def run(self) -> None:
        """Give turns until cancelled. Other tasks run between the steps."""
        while True:
            if not len(self._shares):
                await self._wake.wait()
            self._wake = trio.Event()
            self._at_once = _AT_ONCE_PER_TURN
            await self._step()
            await trio.lowlevel.checkpoint()

    async def _step(self) -> None:
        """Turns, as long as the step has time and room for bytes."""
        room = self._limits.turn_bytes_max
        end_us = self._clock.monotonic_us() + _STEP_US
        waited = False
        for _ in range(len(self._shares)):
            ticket = self._shares.next()
            if ticket is None:
                return
            actor = self._in_line.pop(ticket)
            actor.set_ticket(None)
            if not waited and self._consuming.waiting_rows(actor.key) > LARGE_ROWS:
                waited = True
                await self._turns.take()
                end_us = self._clock.monotonic_us() + _STEP_US
            room -= self._serve(actor)
            if room <= 0 or self._clock.monotonic_us() >= end_us:
                return

    def _serve(self, actor: PullActor) -> int:
        """Serve the first pull in the mailbox; returns the bytes that count for this step.

        An actor with more pulls goes in line again."""
        if not actor.mailbox or self._closed or actor.suspended:
            return 0
        pull = next(iter(actor.mailbox))
        clock = self._clock
        now_us, begun_us = clock.now_us(), clock.monotonic_us()
        if self._has_passed(pull):
            self._drop(actor, pull)
            return 0
        room = pull.outlet.reply_bytes()
        if room <= 0:
            self._leave(actor, pull)
            if actor.mailbox:
                self._make_ready(actor)
            pull.outlet.when_room(partial(self._rejoin, actor, pull))
            return 0
        messages = min(pull.max_messages, self.turn_rows_max)
        try:
            pull.take(
                self._consuming.pull(actor.key, messages, min(pull.max_bytes, room), now_us, begun_us, *pull.lease)
            )
        except ReadNeeded as needed:
            self._suspend(actor, needed.plan)
            return 0
        except StoreError as error:
            pull.fail(error)
        actor.end_reading()
        self._charge(actor, begun_us, pull.pulled)
        if pull.pulled is None and pull.error is None:
            if self._consuming.is_unfinished(actor.key):
                self._make_ready(actor)
                return self._limits.turn_bytes_max
            self._answer_impatient(actor)
            return 0
        self._answer(actor, pull)
        return 0 if pull.pulled is None else len(pull.pulled.batch.bodies)

    def _answer(self, actor: PullActor, pull: WaitingPull) -> None:
        """The pull got messages or an error."""
        pull.served.set()
        self._leave(actor, pull)
        if actor.mailbox:
            self._make_ready(actor)
        elif pull.pulled is not None and pull.pulled.following is not None:
            self._reads.ahead(pull.pulled.following)
        if pull.answer is not None and pull.pulled is not None:
            try:
                pull.answer(pull.pulled)
            except Exception as error:  # noqa: BLE001 - raised where the pull waits
                pull.fail(error)

    def _drop(self, actor: PullActor, pull: WaitingPull) -> None:
        """The deadline of a pull passed before its turn came."""
        self.deadlines_passed += 1
        pull.fail(DeadlinePassed("the pull got its turn after its deadline_ms; it took no messages"))
        pull.served.set()
        self._leave(actor, pull)
        if actor.mailbox:
            self._make_ready(actor)

    def _answer_impatient(self, actor: PullActor) -> None:
        """Answer the pulls that do not wait: there are no messages."""
        for pull in [pull for pull in actor.mailbox if not pull.patient]:
            pull.served.set()
            self._leave(actor, pull)

    def _join(self, actor: PullActor, pull: WaitingPull) -> None:
        actor.mailbox[pull] = None
        self._groups_of.setdefault(actor.key[0], set()).add(actor.key[1])

    def _rejoin(self, actor: PullActor, pull: WaitingPull) -> None:
        """Put a pull back into the mailbox: its outlet has room again."""
        if not pull.served.is_set():  # otherwise it was given up meanwhile
            self._join(actor, pull)
            self._make_ready(actor)

    def _leave(self, actor: PullActor, pull: WaitingPull) -> None:
        del actor.mailbox[pull]
        if not actor.mailbox:
            self._leave_line(actor)
            actor.end_reading()
            subject, group = actor.key
            groups = self._groups_of[subject]
            groups.discard(group)
            if not groups:
                del self._groups_of[subject]

    def check_invariants(self) -> None:
        """The line has the actors that say so, and each pull is counted once. For tests."""
        self._shares.check_invariants()
        assert len(self._in_line) == len(self._shares)
        for ticket, actor in self._in_line.items():
            assert actor.ticket is ticket and actor.mailbox, "an actor without a pull is in line"
        for actor in self._actors.values():
            actor.check_invariants()
            assert bool(actor.mailbox) == self.waits(*actor.key)
        assert sum([actor.pulls for actor in self._actors.values()]) == self.waiting
