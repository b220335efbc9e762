"""The operation `waiting_keys`: order keys of a consumer group of this node that wait for a message that has failed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from delayserver.broker.actions.waiting_keys import READY, WaitingMessage
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.protocol.errors import GroupUnknown, PolicyInvalid
from delayserver.runtime.clock import Clock, read_both
from store.records.batches import I64

# Keys of one request: a step on the event loop reads a message of each.
LIST_MAX: Final = 256
SKIP_MAX: Final = 1024
RETRY_MAX: Final = 1 << 16


class WaitingKey(NamedTuple):
    """An order key that waits, and the message for which it does. `state`: `paused`, `ready` (a pull brings it) or `leased`.
    It has failed since `since_ms`, by this process's knowledge. Its pause or its lease ends at `next_ms`; None if it is
    ready. `behind`: how many later messages of the key wait, of those that the group has looked at."""

    position: int
    order_key: str
    message_id: str
    state: str
    attempts: int
    since_ms: int
    next_ms: int | None
    behind: int
    due_ms: int
    sequence: int
    server_id: str


@dataclass(frozen=True, slots=True)
class WaitingKeysPage:
    """Some waiting keys. The next page begins behind `next`; None on the last one. `left` counts all of them."""

    keys: list[WaitingKey]
    next: int | None
    left: int
    unreadable: int


class WaitingKeyOperations:
    """Works on the waiting keys of one group a request."""

    def __init__(self, broker: LocalBroker, redelivery: Redelivery, names: NameDesk, clock: Clock) -> None:
        self._core = broker.core
        self._reads = broker.reads
        self._pulls = broker.pulls
        self._redelivery = redelivery
        self._names = names
        self._clock = clock

    async def page(self, subject: str, group: str, after: int, count_max: int) -> WaitingKeysPage:
        """The first waiting keys behind a position. Raises SubjectInvalid, GroupUnknown."""
        key = self._key(subject, group)
        found = await self._reads.answer(partial(self._core.waiting_keys, key, after, count_max))
        ahead_us = read_both(self._clock).apart_us
        rows = [_row(each, ahead_us) for each in found.messages]
        return WaitingKeysPage(rows, found.next, found.left, found.unreadable)

    async def skip(self, subject: str, group: str, wanted: I64 | None, count_max: int, reason: str) -> tuple[int, int]:
        """Makes dead letters of the messages for which keys wait: of the first ones, or of those at positions `wanted`
        (i64[n]). So the keys go on. Returns how many it did, and how many keys wait still. Durable on return.

        Raises SubjectInvalid, GroupUnknown, PolicyInvalid if the group has no dead letters, DiskFull, StorageFailed."""
        key = self._key(subject, group)
        if not self._core.dead_subject(*key):
            raise PolicyInvalid(
                f"the group {group!r} of {subject!r} keeps no dead letters: set `attempts` in its policy, then skip"
            )
        skipped = await self._redelivery.skip(key, self._core.chosen_keys(key, wanted, count_max), reason)
        return skipped, self._left(key)

    def retry(self, subject: str, group: str, wanted: I64 | None, count_max: int) -> tuple[int, int]:
        """Ends the pauses of such messages, so that a pull brings them at once. Returns how many, and how many keys wait.
        Raises SubjectInvalid, GroupUnknown."""
        key = self._key(subject, group)
        retried = self._core.retry_keys(key, self._core.chosen_keys(key, wanted, count_max), self._clock.monotonic_us())
        self._pulls.acked(*key)
        return retried, self._left(key)

    def _left(self, key: GroupKey) -> int:
        return len(self._core.chosen_keys(key, None, 1 << 62))

    def _key(self, subject: str, group: str) -> GroupKey:
        key = self._names.known(subject, group)
        if not all(key) or not list(self._core.group_backlogs((key,))):
            raise GroupUnknown(f"this node knows no group {group!r} of the subject {subject!r}")
        return key


def _row(message: WaitingMessage, ahead_us: int) -> WaitingKey:
    """`ahead_us`: how far the wall clock is ahead of the clock of leases."""
    stored = message.stored
    sequence = int(stored.origin_sequence[0]) or int(stored.sequence[0])
    server_id = f"{int(stored.server_id[0]):012x}"
    return WaitingKey(
        message.place,
        bytes(stored.order_keys).decode(),
        bytes(stored.ids).decode() or f"{server_id}-{sequence:012x}",
        message.state,
        message.attempts,
        message.since_us // 1000,
        None if message.state == READY else (message.until_us + ahead_us) // 1000,
        message.behind,
        int(stored.due_ms[0]),
        int(stored.sequence[0]),
        server_id,
    )
