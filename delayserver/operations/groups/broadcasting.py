"""Pulls of broadcast groups: every consumer gets every message, for as long as it lives.

A broadcast group is a place in a subject. It has no leases: each message is handed out once, and nothing waits for an
ack. It holds back no message, is not on disk, and ends with its consumer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
import trio

from delayserver.broker.actions.group_moves import FOUND, RETIRED, TOO_LARGE
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.service.group_positions import LATEST, Goal, out_of_range
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.consuming import Pull
from delayserver.operations.groups.queue_reads import QueueReads, ReadResult
from delayserver.protocol.errors import GroupsFull
from delayserver.protocol.schema.stored import ReadMessages
from delayserver.runtime.runtime import Runtime
from delayserver.state.connections.broadcasts import BROADCASTS_MAX, Broadcasts
from store.records.expiry import expired_rows
from store.tables.names import SUBJECT

InRoom = Callable[[Callable[[bool], Awaitable[ReadResult]]], Awaitable[ReadResult]]


class Broadcasting:
    """The operation `pull` of broadcast groups."""

    def __init__(
        self,
        broker: LocalBroker,
        reads: QueueReads,
        names: NameDesk,
        runtime: Runtime,
    ) -> None:
        self._broker = broker
        self._reads = reads
        self._names = names
        self._clock = runtime.clock

    async def pull(self, groups: Broadcasts, pull: Pull, in_room: InRoom) -> PulledBatch | None:
        """The next messages of a group of a consumer that have not expired; None if none came in time. The first pull makes
        the group. `in_room` reads when the consumer has room for the result.

        Raises SubjectInvalid, GroupsFull, PositionOutOfRange (once for messages that retention removed), QueueFull."""
        name = (self._names.check_subject(pull.subject), self._names.check_subject(pull.group, "group"))
        until_us = self._clock.monotonic_us() + pull.wait_ms * 1000
        place = await self._place(groups, name, pull.start)
        while True:
            wait_ms = max((until_us - self._clock.monotonic_us()) // 1000, 0)
            read = ReadMessages(
                subject=pull.subject,
                position=place,
                max_messages=pull.max_messages,
                max_bytes=pull.max_bytes,
                wait_ms=wait_ms,
            )
            found = await in_room(partial(self._reads.read_or_wait, read))
            now_at = groups.place(name)
            if now_at is None:  # the consumer is gone
                return None
            if now_at != place:  # another pull of the consumer was served first
                place = now_at
                continue
            groups.put(name, found.next)
            place = found.next
            if found.status == RETIRED:
                detail = "retention removed messages before this broadcast group got them; the next pull goes on at "
                raise out_of_range((found.first, found.end), f"{detail}{found.first}")
            pulled = self._unexpired(found.found)
            if pulled is not None or found.status not in (FOUND, TOO_LARGE):
                return pulled
            await trio.lowlevel.checkpoint()  # a whole backlog can have expired

    def _unexpired(self, pulled: PulledBatch | None) -> PulledBatch | None:
        """The messages that have not expired; None for none."""
        expired = None if pulled is None else expired_rows(pulled.batch.expires_ms, self._clock.now_us())
        if pulled is None or expired is None:
            return pulled
        rows = np.flatnonzero(~expired)
        if not len(rows):
            return None
        return PulledBatch(pulled.batch.pick(rows), pulled.delivery[rows], pulled.attempt[rows])

    async def _place(self, groups: Broadcasts, name: tuple[str, str], start: Goal | None) -> int:
        place = groups.place(name)
        if place is not None:
            return place
        code = self._names.code(SUBJECT, name[0])
        position = await self._broker.positions.find(code, start or Goal(LATEST)) if code else 0
        place = groups.place(name)
        if place is not None:  # another pull of the consumer made it
            return place
        if not groups.has_room:
            raise GroupsFull(f"a connection has at most {BROADCASTS_MAX} broadcast groups")
        groups.put(name, position)
        return position
