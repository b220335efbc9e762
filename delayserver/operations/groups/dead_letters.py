"""The operation `dead_letters`: lists the dead letters of a consumer group of this node, sends them again, drops them."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from delayserver.broker.actions import dead_letter_burial as marks
from delayserver.broker.actions.dead_letter_burial import property_maps, without_marks
from delayserver.broker.actions.dead_queue import Claim, StoredLetters, resent_messages
from delayserver.broker.broker_limits import NACK_DELAY_MS_MAX
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.policies import dead_letter_subject
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.operations.groups.waiting_keys import positions_of
from delayserver.protocol.errors import DelayServerError, GroupUnknown, InvalidArgument
from delayserver.protocol.schema.dead_letters import (
    DeadLetter,
    DeadLetterPage,
    DropDeadLetters,
    DropResult,
    ListDeadLetters,
    ResendDeadLetters,
    ResendResult,
)
from delayserver.runtime.clock import Clock
from store.records.batches import I64
from store.records.column_batch import ragged_offsets
from store.tables.names import SUBJECT

BYTES_MAX: Final = 4 << 20


class DeadLetterOperations:
    """Works on the dead letters of one group a request."""

    def __init__(self, broker: LocalBroker, redelivery: Redelivery, names: NameDesk, clock: Clock) -> None:
        self._letters = broker.core.dead_letters
        self._queue = broker.core.dead_queue
        self._in_doubt = broker.core.in_doubt
        self._table = broker.core.state.policies
        self._reads = broker.reads
        self._redelivery = redelivery
        self._names = names
        self._clock = clock

    async def page(self, asked: ListDeadLetters) -> DeadLetterPage:
        """The first letters behind the position `after`. Raises SubjectInvalid, GroupUnknown."""
        key, _ = self._keys(asked.subject, asked.group)
        letters = await self._reads.answer(partial(self._queue.read, key, asked.after, asked.max, BYTES_MAX))
        left = self._letters.waiting(key)
        more = letters
        if letters.stop:
            more = await self._reads.answer(partial(self._queue.read, key, letters.stop - 1, 1, 1))
        ended = not letters.stop or not (len(more) or more.unreadable)
        rows = _rows(letters, bodies=asked.bodies)
        return DeadLetterPage(rows, None if ended else letters.stop - 1, left, letters.unreadable)

    async def resend(self, asked: ResendDeadLetters) -> ResendResult:
        """Sends letters to the group again. Their attempts begin anew. Durable on return.

        A crash on the way leaves letters where they are, or sends them: each letter is in one place.
        Raises SubjectInvalid, GroupUnknown, InvalidArgument, DiskFull, StorageFailed and the errors of the pipeline."""
        key, codes = self._keys(asked.subject, asked.group)
        step_ms = 0.0 if asked.rate is None else 1000 / asked.rate
        if asked.first_ms + step_ms * asked.max > NACK_DELAY_MS_MAX:
            raise InvalidArgument(f"at this rate some would be due in more than {NACK_DELAY_MS_MAX} ms: resend fewer")
        claim, unreadable = await self._claim(key, positions_of(asked.positions), asked.max)
        letters = claim.letters
        if len(letters):
            now_us = self._clock.now_us()
            delays = asked.first_ms + (np.arange(len(letters)) * step_ms).astype(np.int64)
            messages = resent_messages(letters, *codes, delays - (-now_us // 1000), now_us)
            try:
                await self._redelivery.commit(messages, partial(self._in_doubt.begin_resend, claim))
            except DelayServerError:
                self._queue.give_back(claim)
                raise
            self._queue.settle(claim)
            self._redelivery.count_sent(messages)
            await self._redelivery.durable()
        next_ms = asked.first_ms + round(len(letters) * step_ms)
        return ResendResult(len(letters), self._letters.waiting(key), next_ms, unreadable)

    async def _claim(self, key: GroupKey, wanted: I64 | None, count_max: int) -> tuple[Claim, int]:
        """The first letters that can be read, and how many before or among them cannot."""
        after, unreadable = -1, 0
        while True:
            claim = await self._reads.answer(partial(self._queue.claim, key, wanted, after, count_max, BYTES_MAX))
            unreadable += claim.letters.unreadable
            if len(claim.letters) or not claim.letters.unreadable:
                return claim, unreadable
            after = claim.letters.stop - 1

    async def drop(self, asked: DropDeadLetters) -> DropResult:
        """Drops letters. Durable on return. Raises SubjectInvalid, GroupUnknown, DiskFull, StorageFailed."""
        key, _ = self._keys(asked.subject, asked.group)
        dropped = self._queue.drop(key, positions_of(asked.positions), asked.max)
        await self._redelivery.durable()
        return DropResult(dropped, self._letters.waiting(key))

    def _keys(self, subject: str, group: str) -> tuple[GroupKey, GroupKey]:
        """The codes of the dead-letter subject and the group, and of the subject and the group."""
        codes = self._names.known(subject, group)
        dead_subject = self._names.code(SUBJECT, dead_letter_subject(subject, group))
        if not all(codes):
            raise GroupUnknown(f"this node knows no group {group!r} of the subject {subject!r}")
        if dead_subject and self._table.owner_of_dead(dead_subject) not in (None, codes):
            dead_subject = 0  # of another pair of names that makes the same subject
        return (dead_subject, codes[1]), codes


def _rows(letters: StoredLetters, *, bodies: bool) -> list[DeadLetter]:
    batch = letters.batch
    ids, stored = bytes(batch.ids), bytes(batch.bodies)
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
                body_ends[place + 1] - body_ends[place],
                stored[body_ends[place] : body_ends[place + 1]] if bodies else None,
            )
        )
    return found


def _number(text: str | None) -> int:
    """A number of a property, which anybody may have written: 0 if it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else 0
