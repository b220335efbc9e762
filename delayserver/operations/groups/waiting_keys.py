"""The operation `waiting_keys`: order keys of a consumer group of this node that wait for a message that has failed."""

from __future__ import annotations

from functools import partial

import numpy as np

from delayserver.broker.actions.waiting_messages import READY, WaitingMessage
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.protocol.errors import GroupUnknown, PolicyInvalid
from delayserver.protocol.schema.waiting_keys import (
    ListWaitingKeys,
    RetryKeysResult,
    RetryWaitingKeys,
    SkipResult,
    SkipWaitingKeys,
    WaitingKey,
    WaitingKeysPage,
)
from delayserver.runtime.clock import Clock, read_both
from store.records.batches import I64


class WaitingKeyOperations:
    """Works on the waiting keys of one group a request."""

    def __init__(self, broker: LocalBroker, redelivery: Redelivery, names: NameDesk, clock: Clock) -> None:
        self._waiting = broker.core.waiting_keys
        self._table = broker.core.state.policies
        self._groups = broker.core.state.groups
        self._reads = broker.reads
        self._pulls = broker.pulls
        self._redelivery = redelivery
        self._names = names
        self._clock = clock

    async def page(self, asked: ListWaitingKeys) -> WaitingKeysPage:
        """The first waiting keys behind a position. Raises SubjectInvalid, GroupUnknown."""
        key = self._key(asked.subject, asked.group)
        found = await self._reads.answer(partial(self._waiting.page, key, asked.after, asked.max))
        ahead_us = read_both(self._clock).apart_us
        rows = [_row(each, ahead_us) for each in found.messages]
        return WaitingKeysPage(rows, found.next, found.left, found.unreadable)

    async def skip(self, asked: SkipWaitingKeys) -> SkipResult:
        """Makes dead letters of the messages for which keys wait, so that the keys go on. Durable on return.

        Raises SubjectInvalid, GroupUnknown, PolicyInvalid if the group has no dead letters, DiskFull, StorageFailed."""
        key = self._key(asked.subject, asked.group)
        if not self._table.dead_subject(key):
            raise PolicyInvalid(
                f"the group {asked.group!r} of {asked.subject!r} keeps no dead letters: set `attempts` in its policy, "
                "then skip"
            )
        chosen = self._waiting.chosen(key, positions_of(asked.positions), asked.max)
        return SkipResult(await self._redelivery.skip(key, chosen, asked.reason), self._left(key))

    async def retry(self, asked: RetryWaitingKeys) -> RetryKeysResult:
        """Ends the pauses of such messages, so that a pull brings them at once. Raises SubjectInvalid, GroupUnknown."""
        key = self._key(asked.subject, asked.group)
        chosen = self._waiting.chosen(key, positions_of(asked.positions), asked.max)
        retried = self._waiting.end_pauses(key, chosen, self._clock.monotonic_us())
        self._pulls.wake_group(*key)
        return RetryKeysResult(retried, self._left(key))

    def _left(self, key: GroupKey) -> int:
        return len(self._waiting.chosen(key, None, 1 << 62))

    def _key(self, subject: str, group: str) -> GroupKey:
        key = self._names.known(subject, group)
        if not all(key) or key not in self._groups:
            raise GroupUnknown(f"this node knows no group {group!r} of the subject {subject!r}")
        return key


def positions_of(positions: list[int] | None) -> I64 | None:
    """Positions that a request names, i64[n]; None for the first ones."""
    return None if positions is None else np.array(positions, np.int64)


def _row(message: WaitingMessage, ahead_us: int) -> WaitingKey:
    """`ahead_us`: how far the wall clock is ahead of the clock of leases."""
    stored = message.stored
    sequence = int(stored.origin_sequence[0]) or int(stored.sequence[0])
    server_id = f"{int(stored.server_id[0]):012x}"
    return WaitingKey(
        position=message.place,
        order_key=bytes(stored.order_keys).decode(),
        message_id=bytes(stored.ids).decode() or f"{server_id}-{sequence:012x}",
        state=message.state,
        attempts=message.attempts,
        since_ms=message.since_us // 1000,
        next_ms=None if message.state == READY else (message.until_us + ahead_us) // 1000,
        behind=message.behind,
        due_ms=int(stored.due_ms[0]),
        sequence=int(stored.sequence[0]),
        server_id=server_id,
    )
