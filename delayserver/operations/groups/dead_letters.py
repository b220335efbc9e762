"""The operation `dead_letters`: lists the dead letters of a consumer group of this node, sends them again, drops them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from delayserver.broker.actions import dead_letters as marks
from delayserver.broker.actions.dead_letters import property_maps, without_marks
from delayserver.broker.actions.dead_queue import Claim, Letters, resent_messages
from delayserver.broker.limits import NACK_DELAY_MS_MAX
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.policies import dead_letter_subject
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.protocol.errors import DelayServerError, GroupUnknown, InvalidArgument
from delayserver.runtime.clock import Clock
from store.records.batches import I64
from store.records.columns import ragged_offsets
from store.tables.names import SUBJECT

# Letters of one request: a step on the event loop reads them, and looks into the properties of each.
LIST_MAX: Final = 256
RESEND_MAX: Final = 1024
DROP_MAX: Final = 1 << 20
BYTES_MAX: Final = 4 << 20
# Messages a second; also the inverse is a spread that the bound of a delay still holds.
RATE_MIN, RATE_MAX = 1e-4, 1e6


class DeadLetter(NamedTuple):
    """A dead letter. `reason`: `nacked`, `ack_timeout` or `skipped`, and `text` what the consumer or the operator gave.
    `dead_ms`: when it was given up. `sequence`, `server_id` and `due_ms` are those of the message. A field that a letter
    does not have is empty or 0."""

    position: int
    message_id: str
    reason: str
    text: str
    attempts: int
    dead_ms: int
    due_ms: int
    sequence: int
    server_id: str
    properties: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Some dead letters. The next page begins behind `next`; None on the last one. `left` counts all letters."""

    letters: list[DeadLetter]
    next: int | None
    left: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class Resent:
    """`resent` letters go to their group again. `left` are there still. `next_ms`: the delay with which the next request
    goes on at the same rate. `unreadable` ones were passed over."""

    resent: int
    left: int
    next_ms: int
    unreadable: int


class DeadLetterOperations:
    """Works on the dead letters of one group a request."""

    def __init__(self, broker: LocalBroker, redelivery: Redelivery, names: NameDesk, clock: Clock) -> None:
        self._core = broker.core
        self._reads = broker.reads
        self._redelivery = redelivery
        self._names = names
        self._clock = clock

    async def page(self, subject: str, group: str, after: int, count_max: int) -> DeadPage:
        """The first letters behind the position `after`. Raises SubjectInvalid, GroupUnknown."""
        key, _ = self._keys(subject, group)
        letters = await self._reads.answer(partial(self._core.read_dead, key, after, count_max, BYTES_MAX))
        left = self._core.dead_letters(*key)
        more = letters
        if letters.stop:
            more = await self._reads.answer(partial(self._core.read_dead, key, letters.stop - 1, 1, 1))
        ended = not letters.stop or not (len(more) or more.unreadable)
        return DeadPage(_rows(letters), None if ended else letters.stop - 1, left, letters.unreadable)

    async def resend(
        self, subject: str, group: str, wanted: I64 | None, count_max: int, rate: float | None, first_ms: int
    ) -> Resent:
        """Sends letters to the group again, the first ones or those of the positions `wanted` (i64[n]), due from
        `first_ms` on, `rate` a second. Their attempts begin anew. Durable on return.

        A crash on the way leaves letters where they are, or sends them: each letter is in one place.
        Raises SubjectInvalid, GroupUnknown, InvalidArgument, DiskFull, StorageFailed and the errors of the pipeline."""
        key, codes = self._keys(subject, group)
        step_ms = 0.0 if rate is None else 1000 / rate
        if first_ms + step_ms * count_max > NACK_DELAY_MS_MAX:
            raise InvalidArgument(f"at this rate some would be due in more than {NACK_DELAY_MS_MAX} ms: resend fewer")
        claim, unreadable = await self._claim(key, wanted, count_max)
        letters = claim.letters
        if len(letters):
            now_us = self._clock.now_us()
            delays = first_ms + (np.arange(len(letters)) * step_ms).astype(np.int64)
            messages = resent_messages(letters, *codes, delays - (-now_us // 1000), now_us)
            try:
                await self._redelivery.commit(messages, partial(self._core.begin_dead, claim))
            except DelayServerError:
                self._core.give_back_dead(claim)
                raise
            self._core.settle_dead(claim)
            self._redelivery.sent(messages)
            await self._redelivery.durable()
        next_ms = first_ms + round(len(letters) * step_ms)
        return Resent(len(letters), self._core.dead_letters(*key), next_ms, unreadable)

    async def _claim(self, key: GroupKey, wanted: I64 | None, count_max: int) -> tuple[Claim, int]:
        """The first letters that can be read, and how many before or among them cannot."""
        after, unreadable = -1, 0
        while True:
            claim = await self._reads.answer(partial(self._core.claim_dead, key, wanted, after, count_max, BYTES_MAX))
            unreadable += claim.letters.unreadable
            if len(claim.letters) or not claim.letters.unreadable:
                return claim, unreadable
            after = claim.letters.stop - 1

    async def drop(self, subject: str, group: str, wanted: I64 | None, count_max: int) -> tuple[int, int]:
        """Drops letters, the first ones or those of the positions `wanted`: how many, and how many are left. Durable on
        return. Raises SubjectInvalid, GroupUnknown, DiskFull, StorageFailed."""
        key, _ = self._keys(subject, group)
        dropped = self._core.drop_dead(key, wanted, count_max)
        await self._redelivery.durable()
        return dropped, self._core.dead_letters(*key)

    def _keys(self, subject: str, group: str) -> tuple[GroupKey, GroupKey]:
        """The codes of the dead-letter subject and the group, and of the subject and the group."""
        codes = self._names.known(subject, group)
        dead_subject = self._names.code(SUBJECT, dead_letter_subject(subject, group))
        if not all(codes):
            raise GroupUnknown(f"this node knows no group {group!r} of the subject {subject!r}")
        if dead_subject and self._core.owner_of_dead(dead_subject) not in (None, codes):
            dead_subject = 0  # of another pair of names that makes the same subject
        return (dead_subject, codes[1]), codes


def _rows(letters: Letters) -> list[DeadLetter]:
    batch = letters.batch
    ids, bodies = bytes(batch.ids), bytes(batch.bodies)
    id_ends, body_ends = ragged_offsets(batch.ids_length).tolist(), ragged_offsets(batch.bodies_length).tolist()
    found = []
    columns = (letters.positions.tolist(), batch.due_ms.tolist(), batch.sequence.tolist(), batch.server_id.tolist())
    rows = zip(property_maps(batch), *columns, strict=True)
    for place, (properties, position, due_ms, sequence, server_id) in enumerate(rows):
        own_id = ids[id_ends[place] : id_ends[place + 1]].decode() or f"{server_id:012x}-{sequence:012x}"
        found.append(
            DeadLetter(
                position,
                own_id,
                properties.get(marks.REASON, ""),
                properties.get(marks.REASON_TEXT, ""),
                _number(properties.get(marks.ATTEMPTS)),
                due_ms,
                _number(properties.get(marks.DUE_MS)),
                _number(properties.get(marks.SEQUENCE)),
                properties.get(marks.SERVER_ID, ""),
                without_marks(properties),
                bodies[body_ends[place] : body_ends[place + 1]],
            )
        )
    return found


def _number(text: str | None) -> int:
    """A number of a property, which anybody may have written: 0 if it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else 0
