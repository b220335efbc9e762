"""The operations on positions: one group with its backlog, `seek`, `remove_group`, and `read` without a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from delayserver.broker.actions.positions import NOTHING_YET, Looked
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.positions import EARLIEST, LATEST, POSITION, TIME, Goal, unknown_group
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.consuming import ConsumerGroup
from delayserver.operations.groups.first_messages import FirstMessages
from delayserver.operations.groups.policies import waiting_letters
from delayserver.operations.groups.redelivery import Redelivery, commit_errors
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS

__all__ = ["EARLIEST", "LATEST", "POSITION", "TIME", "Goal", "QueuePositions", "Read", "ReadResult"]


class Read(NamedTuple):
    """A request for the messages of a subject from a position on. If none stand there yet, it waits for `wait_ms`."""

    subject: str
    position: int
    max_messages: int
    max_bytes: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Sought:
    """Where a group goes on, with the bounds of its subject."""

    position: int
    first: int
    end: int


ReadResult = Looked


class QueuePositions:
    """The operations on positions."""

    def __init__(
        self,
        broker: LocalBroker,
        redelivery: Redelivery,
        names: NameDesk,
        first_messages: FirstMessages,
        runtime: Runtime,
    ) -> None:
        self._core = broker.core
        self._broker = broker
        self._redelivery = redelivery
        self._names = names
        self._first_messages = first_messages
        self._turns = runtime.turns

    def name(self, code: int) -> str:
        """The text of a tag's code."""
        return self._names.name(code)

    async def group(self, subject: str, group: str) -> ConsumerGroup:
        """One consumer group with its backlog. Raises SubjectInvalid, GroupUnknown."""
        row = await self._broker.reads.answer(partial(self._core.group_row, self._known(subject, group)))
        if row is None:
            raise unknown_group()
        row = self._redelivery.whole(row)
        return ConsumerGroup(subject, group, row, waiting_letters(self._core, self._names.code, subject, group))

    async def seek(self, subject: str, group: str, goal: Goal) -> Sought:
        """Moves a group, durably. Raises SubjectInvalid, GroupUnknown, PositionOutOfRange, DiskFull, StorageFailed."""
        code, group_code = self._known(subject, group)
        with commit_errors():
            position = await self._broker.positions.seek(code, group_code, goal)
        return Sought(position, *self._core.positions.bounds(code))

    async def remove(self, subject: str, group: str) -> None:
        """Removes a group, durably. Raises SubjectInvalid, GroupUnknown, DiskFull, StorageFailed."""
        with commit_errors():
            await self._broker.positions.remove(*self._known(subject, group))

    async def read(self, read: Read) -> ReadResult:
        """The messages from a position on; leases nothing. Raises SubjectInvalid, QueueFull, StoreError."""
        subject = self._names.known_subject(read.subject)
        found = await self._look(subject, read)
        if found.status != NOTHING_YET or not read.wait_ms:
            return found
        self._first_messages.require_place()
        wait_ms = read.wait_ms
        if not subject:
            subject, wait_ms = await self._first_messages.wait(read.subject, "", wait_ms)
            found = await self._look(subject, read)
        if found.status == NOTHING_YET:
            await self._broker.lookers.wait(subject, wait_ms)
            found = await self._look(subject, read)
        return found

    async def read_or_wait(self, read: Read, may_wait: bool) -> ReadResult:
        """`read`, which waits only if it may."""
        return await self.read(read if may_wait else read._replace(wait_ms=0))

    async def _look(self, subject: int, read: Read) -> ReadResult:
        first, end = self._core.positions.bounds(subject)
        if first <= read.position < end and min(end - read.position, read.max_messages) > LARGE_ROWS:
            await self._turns.take()
        look = partial(self._core.positions.look, subject, read.position, read.max_messages, read.max_bytes)
        return await self._broker.reads.answer(look)

    def _known(self, subject: str, group: str) -> tuple[int, int]:
        """The codes of the names. Raises SubjectInvalid, GroupUnknown."""
        codes = self._names.known(subject, group)
        if not all(codes):
            raise unknown_group()
        return codes
