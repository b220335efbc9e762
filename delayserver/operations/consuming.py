"""The operations of consumers on the broker of this process: `pull`, `ack`, `nack` and `groups`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from delayserver.broker.actions.consuming import Acked
from delayserver.broker.actions.group_rows import GroupRow
from delayserver.broker.limits import NACK_DELAY_MS_MAX
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.pulls import TOO_MANY_GROUPS, Outlet
from delayserver.config.settings import BrokerSettings
from delayserver.operations.redelivery import Redelivery
from delayserver.protocol.errors import GroupsFull, QueueFull
from delayserver.receive.intake import Intake
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from store.records.batches import I64
from store.tables.names import CONSUMER_GROUP, SUBJECT, Names

# Bounds of a nack's delay, and of the lease that a pull may ask for.
DELAY_MS_MAX: Final = NACK_DELAY_MS_MAX
ACK_TIMEOUT_MS_MAX: Final = 86_400_000

Pulled: TypeAlias = PulledBatch
"""Messages that were handed out, in columns."""


class Pull(NamedTuple):
    """What a consumer asks for. Without messages it is answered after `wait_ms`."""

    subject: str
    group: str
    max_messages: int
    max_bytes: int
    wait_ms: int
    ack_timeout_ms: int


Handed = Callable[[Pulled, Callable[[], None]], None]
"""Takes the messages of a pull, and what it has to call if they never reach the consumer."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """How many deliveries come again, how many were not leased, and how many do not come again since they have expired."""

    nacked: int
    unknown: int
    expired: int


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group of a subject by their names, and what it has before it."""

    subject: str
    group: str
    row: GroupRow


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some consumer groups, and behind which one the next page begins; None behind the last page."""

    groups: list[ConsumerGroup]
    next: GroupKey | None


class Consuming:
    """What each request of a consumer does."""

    def __init__(
        self,
        broker: LocalBroker,
        redelivery: Redelivery,
        intake: Intake,
        names: Names,
        settings: BrokerSettings,
        runtime: Runtime,
    ) -> None:
        self._core = broker.core
        self._broker = broker
        self._redelivery = redelivery
        self._intake = intake
        self._names = names
        self._settings = settings
        self._turns = runtime.turns
        self._clock = runtime.clock
        # Pulls of subjects that no message has had yet.
        self._before_first = 0

    @property
    def waiting_pulls(self) -> int:
        """Pulls that wait for messages."""
        return self._broker.pulls.waiting + self._before_first

    @property
    def given_back(self) -> int:
        """Deliveries so far that were handed out and never sent."""
        return self._redelivery.given_back

    # -- pull

    async def pull(
        self, pull: Pull, acks: I64 | None, handed: Handed, outlet: Outlet, waiting: trio.CancelScope
    ) -> bool:
        """Ack `acks` (i64[n]), then give messages to `handed` in the very step in which they are handed out. False where
        there were none in time, or the caller ended the wait by cancelling `waiting`.

        While `outlet` has no room nothing is handed out. Raises SubjectInvalid, QueueFull, GroupsFull, ShuttingDown."""
        name, group_name, max_messages, max_bytes, wait_ms, ack_timeout_ms = pull
        subject, group = self._known(name, group_name)
        if acks is not None:
            await self._turn_for(acks)
            self._ack(subject, group, acks)
            # The reply does not wait for it: a crash in between hands those messages out again.
            self._broker.commit.soon()
        del pull, acks  # the request that they are views of is not kept while this waits
        answered = False

        def answer(pulled: Pulled) -> None:
            nonlocal answered
            self._redelivery.leased()
            handed(pulled, partial(self._redelivery.not_received, subject, group, pulled.delivery))
            answered = True

        expired = self._core.expired_messages
        with waiting:
            if not subject:
                subject, wait_ms = await self._first_message(name, wait_ms)
            if subject:
                group = group or self._new_group(subject, group_name)
                await self._broker.pulls.pull(
                    subject, group, max_messages, max_bytes, wait_ms, ack_timeout_ms, answer, outlet
                )
        if self._core.expired_messages > expired:
            self._broker.commit.soon()  # no ack of a consumer would bring these counts to disk
        return answered

    async def _first_message(self, subject: str, wait_ms: int) -> tuple[int, int]:
        """The code of a subject that no message has had yet, 0 where none comes in time, and what is left of the time."""
        if not wait_ms:
            return 0, 0
        if self.waiting_pulls >= self._settings.waiting_pulls_max:
            raise QueueFull("too many pulls wait already; pull again later, or raise waiting_pulls_max")
        began_us = self._clock.monotonic_us()
        self._before_first += 1
        try:
            code = await self._intake.first_message(subject, wait_ms)
        finally:
            self._before_first -= 1
        return code, max(wait_ms - (self._clock.monotonic_us() - began_us) // 1000, 0)

    def _new_group(self, subject: int, name: str) -> int:
        """The code of a group that has its first pull. Raises GroupsFull before anything is stored."""
        if not self._core.admits(subject, 0):
            raise GroupsFull(TOO_MANY_GROUPS)
        return int(self._intake.intern(CONSUMER_GROUP, [name])[0])

    # -- ack and nack

    async def ack(self, subject: str, group: str, deliveries: I64) -> Acked:
        """Ack deliveries (i64[n], any order). Durable when this returns. Raises SubjectInvalid, DiskFull, StorageFailed."""
        codes = self._known(subject, group)
        await self._turn_for(deliveries)
        acked = self._ack(*codes, deliveries)
        await self._redelivery.durable()
        return acked

    async def _turn_for(self, deliveries: I64) -> None:
        if len(deliveries) > LARGE_ROWS:
            await self._turns.take()

    def _ack(self, subject: int, group: int, deliveries: I64) -> Acked:
        if not subject or not group:  # nothing of it was ever handed out
            return Acked(0, len(deliveries))
        return self._broker.ack(subject, group, deliveries)

    async def nack(self, subject: str, group: str, deliveries: I64, delay_ms: int | None) -> Nacked:
        """Have deliveries (i64[n]) come again in `delay_ms`; None for the group's own pauses. The redeliveries are durable
        when this returns. Raises SubjectInvalid, DiskFull, StorageFailed."""
        subject_code, group_code = self._known(subject, group)
        if not subject_code or not group_code:  # nothing of it was ever handed out
            return Nacked(0, len(deliveries), 0)
        batch = await self._redelivery.nack(subject_code, group_code, deliveries, delay_ms)
        return Nacked(len(deliveries) - batch.unknown, batch.unknown, batch.expired)

    def _known(self, subject: str, group: str) -> tuple[int, int]:
        """The codes of the names, 0 for one that was never seen: it is checked and not stored. Raises SubjectInvalid."""
        subject_code = self._names.code(SUBJECT, subject)
        if not subject_code:
            self._intake.check_subject(subject)
        group_code = self._names.code(CONSUMER_GROUP, group)
        if not group_code:
            self._intake.check_subject(group, "group")
        return subject_code, group_code

    # -- groups

    async def groups(self, subject: str | None, after: GroupKey, count_max: int) -> GroupPage:
        """The first consumer groups behind `after`, of one subject or of all. Raises SubjectInvalid."""
        code = 0
        if subject is not None:
            code = self._names.code(SUBJECT, self._intake.check_subject(subject))
            if not code:
                return GroupPage([], None)
        keys = self._core.group_keys(after, code, count_max)
        groups = []
        for key in keys:
            await trio.lowlevel.checkpoint()  # each reads a stored record
            row = self._core.group_row(key)
            if row is not None:
                groups.append(ConsumerGroup(self._names.name(row.subject), self._names.name(row.group), row))
        return GroupPage(groups, keys[-1] if len(keys) == count_max else None)
