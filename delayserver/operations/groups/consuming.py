"""The operations of consumers on the broker of this process: `pull`, `ack`, `nack` and `extend`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import trio

from delayserver.broker.actions.leasing import Acked, Extended
from delayserver.broker.broker_limits import NACK_DELAY_MS_MAX
from delayserver.broker.filters.filter import FilterText
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.queues.delivery_id import PIECE_ROWS_MAX, pieces_of
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.group_positions import EARLIEST, LATEST, TIME, Goal
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.pull_actor import Outlet
from delayserver.broker.service.pulls import TOO_MANY_GROUPS
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.first_messages import FirstMessages
from delayserver.operations.groups.group_filters import GroupFilters
from delayserver.operations.groups.redelivery import Nacked, Redelivery, commit_errors
from delayserver.protocol.arguments import invalid
from delayserver.protocol.errors import GroupsFull, QueueFull
from delayserver.protocol.schema.words import TIME_MS_MAX
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from store.records.batches import I64

# Bounds of a nack's delay, and of the lease that a pull may ask for.
DELAY_MS_MAX: Final = NACK_DELAY_MS_MAX
ACK_TIMEOUT_MS_MAX: Final = 86_400_000
# Leases that are extended in one step of 10 ms or less, wherever they lie.
EXTENDED_AT_ONCE: Final = 1024

Pulled: TypeAlias = PulledBatch
"""Leased messages in columns."""

PullRoom: TypeAlias = Outlet
"""How much the consumer of a pull may get."""

PullFilter: TypeAlias = FilterText
"""A tag subscription and a property expression, as text."""


def start_of(start: object) -> Goal | None:
    """Where a pull lets a new group begin. Raises InvalidArgument."""
    if start is None:
        return None
    if start in (EARLIEST, LATEST):
        return Goal(str(start))
    if type(start) is int and 0 <= start < TIME_MS_MAX:
        return Goal(TIME, start * 1000)
    raise invalid("start", f'"{EARLIEST}", "{LATEST}" or milliseconds since 1970', start)


class Pull(NamedTuple):
    """A request of a consumer for messages. If none come, the answer follows after `wait_ms`."""

    subject: str
    group: str
    max_messages: int
    max_bytes: int
    wait_ms: int
    ack_timeout_ms: int
    start: Goal | None = None
    """Where the group begins if this pull makes it. None: at the earliest message kept."""
    filter: PullFilter | None = None
    """The filter of the group from now on; None: the one that it has."""
    owner: int = 0
    """The connection whose end ends the leases, which `Consuming.own` knows. 0: they end in their time alone."""
    deadline_ms: int | None = None
    """If the pull gets its turn at or after this time, by the server's clock, it takes no messages."""


Handed = Callable[[Pulled, Callable[[], None]], None]
"""Takes the messages of a pull, and a callback to call if they never reach the consumer."""


class Consuming:
    """The operations of consumers."""

    def __init__(
        self,
        broker: LocalBroker,
        redelivery: Redelivery,
        filters: GroupFilters,
        names: NameDesk,
        first_messages: FirstMessages,
        runtime: Runtime,
    ) -> None:
        self._groups = broker.core.state.groups
        self._extending = broker.core.consuming
        self._broker = broker
        self._redelivery = redelivery
        self._filters = filters
        self._names = names
        self._first_messages = first_messages
        self._turns = runtime.turns
        self._clock = runtime.clock
        # By owner of leases: how long they outlive it, and the groups of which it had some.
        self._outlive_ms: dict[int, int] = {}
        self._owned: dict[int, set[GroupKey]] = {}

    @property
    def waiting_pulls(self) -> int:
        """Pulls that wait for messages."""
        return self._broker.pulls.waiting + self._first_messages.waiting

    @property
    def given_back(self) -> int:
        """Deliveries so far whose reply was never sent."""
        return self._redelivery.given_back

    # -- owners of leases

    def own(self, owner: int, outlive_ms: int) -> None:
        """A connection wants its leases, also those of before, to end `outlive_ms` after it. `end_owner` follows."""
        self._outlive_ms[owner] = outlive_ms
        self._owned.setdefault(owner, set())

    def end_owner(self, owner: int) -> None:
        """A connection has ended: the messages that it has leased come again."""
        outlive_ms = self._outlive_ms.pop(owner)
        for key in self._owned.pop(owner):
            self._redelivery.end_leases_of(key, owner, outlive_ms)

    def _note_owned(self, owner: int, key: GroupKey) -> None:
        """An owner gets leases of a group. What a connection that has ended gets is not received, and comes back as such."""
        groups = self._owned.get(owner)
        if groups is not None:
            groups.add(key)

    # -- pull

    def name(self, code: int) -> str:
        """The text of a code, such as that of a message's tag."""
        return self._names.name(code)

    async def pull(
        self, pull: Pull, acks: I64 | None, handed: Handed, outlet: PullRoom, waiting: trio.CancelScope, work: Work
    ) -> bool:
        """Acks `acks` (i64[n]) as `ack` does, then gives messages to `handed` in the step that leases them.

        False if none came in time or the caller cancelled `waiting`. Leases nothing while `outlet` has no room.
        Raises SubjectInvalid, FilterInvalid, FilterInUse, TagsFull, QueueFull, GroupsFull, PositionOutOfRange,
        DeadlinePassed, ShuttingDown. The acks count also then."""
        name, group_name, max_messages, max_bytes, wait_ms, ack_timeout_ms, start, filter_text, owner, deadline_ms = (
            pull
        )
        if deadline_ms is not None:
            wait_ms = min(wait_ms, max(deadline_ms - self._clock.now_ms(), 0))
        subject, group = self._names.known(name, group_name)
        wanted = None if filter_text is None else await self._filters.compile(filter_text)
        if acks is not None:
            await self._ack(subject, group, acks, work)
            # The reply does not wait for the commit. After a crash before it these messages are delivered again.
            self._broker.commit.soon()
        del pull, acks  # they are views of the request, whose memory is freed before the wait
        answered = False

        def answer(pulled: Pulled) -> None:
            nonlocal answered
            self._redelivery.recompute_deadline()
            if owner:
                self._note_owned(owner, (subject, group))
            if len(pulled):
                self._broker.recently.add_pull(subject, group, pulled, self._clock.now_us())
            handed(pulled, partial(self._redelivery.redeliver_unreceived, subject, group, pulled.delivery))
            answered = True

        expired = self._groups.expired_messages
        with waiting:
            if not subject:
                subject, wait_ms = await self._first_messages.wait(name, group_name, wait_ms)
                if start is not None and start.kind == LATEST:
                    start = Goal(EARLIEST)  # all messages came behind this pull
            if subject:
                group = group or self._new_group(subject, group_name)
                if start is not None:
                    with commit_errors():
                        await self._broker.positions.begin(subject, group, start)
                await self._filters.for_pull(subject, group, wanted)
                self._broker.positions.require_not_passed(subject, group)
                await self._broker.pulls.pull(
                    subject, group, max_messages, max_bytes, wait_ms, ack_timeout_ms, answer, outlet, deadline_ms, owner
                )
        if self._groups.expired_messages > expired:
            self._broker.commit.soon()  # expired messages get no ack that would write their counts
        return answered

    def _new_group(self, subject: int, name: str) -> int:
        """The new code of a group at its first pull. Raises GroupsFull before anything is stored."""
        if not self._groups.admits((subject, 0)):
            raise GroupsFull(TOO_MANY_GROUPS)
        return self._names.group(name)

    # -- ack and nack

    async def ack(self, subject: str, group: str, deliveries: I64, work: Work) -> Acked:
        """Acks deliveries, i64[n] in any order, durably. Many are acked in steps, as slices of `work`.

        Raises SubjectInvalid, DiskFull, StorageFailed."""
        acked = await self._ack(*self._names.known(subject, group), deliveries, work)
        await self._redelivery.durable()
        return acked

    async def _turn_for(self, deliveries: I64) -> None:
        if len(deliveries) > LARGE_ROWS:
            await self._turns.take()

    async def _ack(self, subject: int, group: int, deliveries: I64, work: Work) -> Acked:
        if not subject or not group:  # no message of this group was ever handed out
            return Acked(0, len(deliveries))
        await self._turn_for(deliveries)
        acked = 0
        for piece, ranges in pieces_of(deliveries):
            acked += self._broker.ack(subject, group, piece).acked
            await work.items(ranges)
        return Acked(acked, len(deliveries) - acked)

    async def nack(
        self, subject: str, group: str, deliveries: I64, delay_ms: int | None, reason: str | None = ""
    ) -> Nacked:
        """Redelivers deliveries (i64[n]) after `delay_ms`; None for the group's own pauses. Durable when this returns.

        After the last attempt of the group's policy a message becomes a dead letter, which keeps the `reason`. With None
        no consumer has looked at the messages, so none becomes a dead letter.
        More than PIECE_ROWS_MAX are nacked in steps; those of earlier steps are nacked when a later one fails.
        Raises SubjectInvalid, DiskFull, StorageFailed."""
        subject_code, group_code = self._names.known(subject, group)
        if not subject_code or not group_code:  # no message of this group was ever handed out
            return Nacked(0, len(deliveries), 0, 0)
        total = Nacked(0, 0, 0, 0)
        for piece, _ in pieces_of(deliveries, PIECE_ROWS_MAX):
            await self._turn_for(deliveries)
            nacked = await self._redelivery.nack(subject_code, group_code, piece, delay_ms, reason)
            total = total + nacked
        return total

    async def extend(self, subject: str, group: str, deliveries: I64, ack_timeout_ms: int, owner: int = 0) -> Extended:
        """Lets the leases of deliveries, i64[n] in any order, end in `ack_timeout_ms`. They belong to `owner` then. Many are
        extended in steps.

        Raises SubjectInvalid, QueueFull; leases of earlier steps are extended then."""
        codes = self._names.known(subject, group)
        if not all(codes):  # no message of this group was ever handed out
            return Extended(0, len(deliveries))
        extended = 0
        parts = (
            ordered[first : first + EXTENDED_AT_ONCE]
            for ordered in (np.unique(piece) for piece, _ in pieces_of(deliveries, PIECE_ROWS_MAX))
            for first in range(0, len(ordered), EXTENDED_AT_ONCE)
        )
        for part in parts:
            await self._turn_for(deliveries)
            lease_us = self._clock.monotonic_us()
            owner = owner if owner in self._owned else 0  # it may have ended between two steps
            step = self._extending.extend(codes, part, lease_us, ack_timeout_ms, owner)
            extended += step.extended
            self._note_owned(owner, codes)
            if step.full:
                raise QueueFull(
                    "too many leases of the group have an end of their own; ack some, or pull fewer at once"
                )
        self._redelivery.recompute_deadline()
        return Extended(extended, len(deliveries) - extended)
