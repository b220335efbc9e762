"""Messages on their way back through the delay pipeline, after a nack or an ack timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.deliveries import EPOCHS, split_deliveries
from delayserver.broker.groups import Cursor, GroupKey
from delayserver.broker.pulled import ROW_BYTES
from delayserver.broker.ranges import Range
from delayserver.broker.state import BrokerState
from store.batches import I64, MessageBatch, StoredBatch

Found = tuple[list[Range], list[Range]]
"""Ranges of the main queue, and of the retry queue."""


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """Internal records for the server to append to its message_log, and the deliveries they stand for.

    `messages` has sequence 0 on every row: the server assigns it. It is None where nothing is to be retried. Once the
    records are durable the server calls `settle_retry`, if they could not be appended `abandon_retry`. `unknown` counts
    deliveries that were not leased.
    """

    subject: int
    group: int
    messages: MessageBatch | None
    main: tuple[Range, ...]
    retry: tuple[Range, ...]
    unknown: int = 0

    def __len__(self) -> int:
        return 0 if self.messages is None else len(self.messages)


def retry_messages(
    parts: Sequence[StoredBatch], times_before: Sequence[I64], group: int, due_ms: int, now_us: int
) -> MessageBatch:
    """The internal records for stored rows: same subject, id, properties, body and expiry; one redelivery more.

    Every id is written out, because a derived one would be derived from the retry's own sequence.
    """
    stored = StoredBatch.concatenate(parts)
    count = len(stored)
    ids_length, ids = _written_ids(stored)
    return MessageBatch.filled(
        count,
        due_ms=due_ms,
        accepted_us=now_us,
        expires_ms=stored.expires_ms,
        origin_sequence=_origins(stored),
        subject=stored.subject,
        target_group=group,
        redelivery=stored.redelivery + 1 + np.concatenate(times_before),
        ids_length=ids_length,
        properties_length=stored.properties_length,
        bodies_length=stored.bodies_length,
        ids=ids,
        properties=stored.properties,
        bodies=stored.bodies,
    )


def _origins(stored: StoredBatch) -> I64:
    origins: I64 = np.where(stored.origin_sequence != 0, stored.origin_sequence, stored.sequence)
    return origins


def _written_ids(stored: StoredBatch) -> tuple[NDArray[np.uint32], bytes | memoryview]:
    lengths = stored.ids_length
    if bool(lengths.all()):
        return lengths, stored.ids
    # Retries are the exception, so a loop over them is no hot path.
    ids: list[bytes | memoryview] = []
    position = 0
    for server_id, sequence, length in zip(
        stored.server_id.tolist(), _origins(stored).tolist(), lengths.tolist(), strict=True
    ):
        ids.append(stored.ids[position : position + length] if length else b"%012x-%012x" % (server_id, sequence))
        position += length
    return np.array([len(one) for one in ids], np.uint32), b"".join(ids)


class Retries:
    """Nacks and ended leases: from leased to the delay pipeline, and from there to done."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.retried = 0

    def nack(self, key: GroupKey, deliveries: I64, delay_ms: int, now_us: int, lease_us: int) -> RetryBatch:
        """See `Broker.nack`."""
        group = self._state.groups.get(key)
        if group is None:
            return RetryBatch(*key, None, (), (), len(deliveries))
        found: Found = ([], [])
        for part in split_deliveries(deliveries):
            if part.epoch == self._state.epoch % EPOCHS:
                for start, stop in part.ranges:
                    found[part.retry].extend(group.cursor(part.retry).to_retry(start, stop))
        taken = sum([stop - start for ranges in found for start, stop in ranges])
        due_ms = -(-(now_us + delay_ms * 1000) // 1000)
        return self._batch(key, found, due_ms, now_us, lease_us + delay_ms * 1000, len(deliveries) - taken)

    def expired(self, now_us: int, lease_us: int, limit: int) -> list[RetryBatch]:
        """See `Broker.expired_leases`."""
        batches: list[RetryBatch] = []
        deadlines = self._state.deadlines
        seen = []
        while limit > 0 and (first := deadlines.first(self._deadline_us)) is not None and first[0] <= lease_us:
            key = first[1]
            deadlines.forget(key)
            seen.append(key)
            group = self._state.groups[key]
            found = (group.main.expired(lease_us, limit), group.retry.expired(lease_us, limit))
            batches.append(self._batch(key, found, now_us // 1000, now_us, lease_us, 0))
            limit -= max(1, len(batches[-1]))
        for key in seen:  # what is left of them, after all others had their turn
            deadline_us = self._deadline_us(key)
            if deadline_us is not None:
                deadlines.note(key, deadline_us)
        return batches

    def next_deadline_us(self) -> int | None:
        """See `Broker.next_lease_deadline_us`."""
        first = self._state.deadlines.first(self._deadline_us)
        return None if first is None else first[0]

    def _deadline_us(self, key: GroupKey) -> int | None:
        group = self._state.groups[key]
        deadlines = [cursor.next_deadline_us() for cursor in (group.main, group.retry)]
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def _batch(
        self, key: GroupKey, found: Found, due_ms: int, now_us: int, deadline_us: int, unknown: int
    ) -> RetryBatch:
        """Gather the messages of the ranges; beyond the bound of bytes the rest stays leased until it would be due."""
        gathered = _Gathered(self._state.limits.retry_bytes_max)
        done: Found = ([], [])
        for retry, ranges in ((False, found[0]), (True, found[1])):
            cursor = self._state.groups[key].cursor(retry)
            for start, stop in sorted(ranges):
                reached = self._gather(key, retry, cursor, (start, stop), gathered)
                if reached > start:
                    done[retry].append((start, reached))
                if reached < stop:
                    cursor.abandon(reached, stop, deadline_us)
                    self._state.deadlines.note(key, deadline_us)
        messages = gathered.messages(key[1], due_ms, now_us)
        batch = RetryBatch(*key, messages, tuple(done[0]), tuple(done[1]), unknown)
        self.retried += len(batch)
        return batch

    def _gather(self, key: GroupKey, retry: bool, cursor: Cursor, span: Range, gathered: _Gathered) -> int:
        """Gather a range from its stored batches; returns how far the bound let it come."""
        position, stop = span
        while position < stop and gathered.room > 0:
            run = self._state.run_at(key if retry else (key[0], 0), position)
            count = min(stop, run.position + run.row_count) - position
            batch = self._state.read(run)
            if batch is None:
                self._state.damaged_messages += count
            else:
                row = run.row_start + position - run.position
                gathered.add(batch.slice(row, row + count), cursor.attempts_before(position, count))
            position += count
        return position

    def settle(self, batch: RetryBatch) -> None:
        """See `Broker.settle_retry`."""
        key = (batch.subject, batch.group)
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for start, stop in ranges:
                self._state.groups[key].cursor(retry).settle(start, stop)
                self._state.acked(key, retry, start, stop)

    def abandon(self, batch: RetryBatch, lease_us: int) -> None:
        """See `Broker.abandon_retry`."""
        deadline_us = lease_us + self._state.limits.ack_timeout_ms_default * 1000
        key = (batch.subject, batch.group)
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for start, stop in ranges:
                self._state.groups[key].cursor(retry).abandon(start, stop, deadline_us)
                self._state.deadlines.note(key, deadline_us)


@dataclass(slots=True)
class _Gathered:
    """Slices of stored batches until `room` bytes are used up."""

    room: int
    parts: list[StoredBatch] = field(default_factory=list)
    before: list[I64] = field(default_factory=list)

    def add(self, part: StoredBatch, before: I64) -> None:
        self.parts.append(part)
        self.before.append(before)
        self.room -= len(part.bodies) + len(part.properties) + len(part.ids) + ROW_BYTES * len(part)

    def messages(self, group: int, due_ms: int, now_us: int) -> MessageBatch | None:
        return retry_messages(self.parts, self.before, group, due_ms, now_us) if self.parts else None
