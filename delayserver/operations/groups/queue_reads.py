"""The operation `read`: messages of a subject from a position on, without a group."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from delayserver.broker.actions.group_moves import NOTHING_YET, Looked
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.first_messages import FirstMessages
from delayserver.protocol.schema.stored import ReadMessages
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS

ReadResult = Looked


class QueueReads:
    """Reads messages, and waits for the first one."""

    def __init__(self, broker: LocalBroker, names: NameDesk, first_messages: FirstMessages, runtime: Runtime) -> None:
        self._positions = broker.core.positions
        self._broker = broker
        self._names = names
        self._first_messages = first_messages
        self._turns = runtime.turns

    def name(self, code: int) -> str:
        """The text of a tag's code."""
        return self._names.name(code)

    async def read(self, read: ReadMessages) -> ReadResult:
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

    async def read_or_wait(self, read: ReadMessages, may_wait: bool) -> ReadResult:
        """`read`, which waits only if it may."""
        return await self.read(read if may_wait else replace(read, wait_ms=0))

    async def _look(self, subject: int, read: ReadMessages) -> ReadResult:
        first, end = self._positions.bounds(subject)
        if first <= read.position < end and min(end - read.position, read.max_messages) > LARGE_ROWS:
            await self._turns.take()
        look = partial(self._positions.look, subject, read.position, read.max_messages, read.max_bytes)
        return await self._broker.reads.answer(look)
