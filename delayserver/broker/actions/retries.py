"""Redelivery after a nack or an ack timeout, through the delay pipeline or from the message's place in its queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.pulled import ROW_BYTES
from delayserver.broker.queues.deliveries import EPOCHS, split_deliveries
from delayserver.broker.queues.groups import Cursor, GroupKey
from delayserver.broker.queues.places import WAITING, Place
from delayserver.broker.queues.ranges import Range, ranges_of
from delayserver.broker.redelivery import COPIES, RedeliveryPolicy
from store.records.batches import I64, MessageBatch, StoredBatch
from store.records.expiry import expired_rows
from store.records.redelivery import attempts_before

Found = tuple[list[Range], list[Range]]
"""Ranges of the main queue, then of the retry queue."""


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """Internal records for the server to append to its message_log, and the deliveries that they replace.

    `messages` has sequence 0 on every row: the server assigns it. It is None if there is no record to append.
    The server calls `settle_retry` once the records are durable, and `abandon_retry` if it could not append them.
    `main` and `retry` are the deliveries' ranges in the two queues. `unknown` counts deliveries that were not leased,
    `expired` those whose message has expired and does not come again.
    The records take `kept_bytes` of disk from `written_ms` on.
    """

    subject: int
    group: int
    messages: MessageBatch | None
    main: tuple[Range, ...]
    retry: tuple[Range, ...]
    unknown: int = 0
    expired: int = 0
    written_ms: int = 0
    kept_bytes: int = 0

    def __len__(self) -> int:
        return 0 if self.messages is None else len(self.messages)


def retry_messages(
    parts: Sequence[StoredBatch], times_before: Sequence[I64], group: int, due_ms: I64, now_us: int
) -> MessageBatch:
    """The internal records for stored rows: same subject, id, properties, body and expiry, one redelivery more.

    Every id is written out. An empty id would later be derived from the retry's own sequence.
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
        redelivery=attempts_before(stored.redelivery) + 1 + np.concatenate(times_before),
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
    # Retries are rare, so a loop over their messages is no hot path.
    ids: list[bytes | memoryview] = []
    position = 0
    for server_id, sequence, length in zip(
        stored.server_id.tolist(), _origins(stored).tolist(), lengths.tolist(), strict=True
    ):
        ids.append(stored.ids[position : position + length] if length else b"%012x-%012x" % (server_id, sequence))
        position += length
    return np.array([len(one) for one in ids], np.uint32), b"".join(ids)


class Retries:
    """Nacks and ended leases. A message goes to the delay pipeline and is done here, or it waits in its place."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.retried = 0

    def nack(self, key: GroupKey, deliveries: I64, delay_ms: int | None, now_us: int, lease_us: int) -> RetryBatch:
        """See `Broker.nack`."""
        group = self._state.groups.get(key)
        if group is None:
            return RetryBatch(*key, None, (), (), len(deliveries))
        found: Found = ([], [])
        for part in split_deliveries(deliveries):
            if part.epoch == self._state.epoch % EPOCHS:
                for start, stop in part.ranges:
                    found[part.retry].extend(group.cursor(part.retry).to_retry(start, stop))
        return self._batch(key, found, _Moment(now_us, lease_us, delay_ms), len(deliveries) - _count(found))

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
            for cursor in (group.main, group.retry):
                cursor.release(lease_us)
            found = (group.main.expired(lease_us, limit), group.retry.expired(lease_us, limit))
            batches.append(self._batch(key, found, _Moment(now_us, lease_us, None), 0))
            limit -= max(1, _count(found))
        for key in seen:  # their remaining leases come after those of all other groups
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

    def _batch(self, key: GroupKey, found: Found, moment: _Moment, unknown: int) -> RetryBatch:
        """Gather the messages of the ranges, up to the bound of bytes of a step. The rest stays leased until the delay
        of the nack has passed."""
        kept, now_ms = self._state.kept(key), moment.now_us // 1000
        kept.forget(now_ms)
        limits = self._state.limits
        gathered = _Gathered(limits.retry_bytes_max, limits.redelivery_bytes_max - kept.total)
        expired_before = self._state.expired_messages
        done: Found = ([], [])
        for retry, ranges in ((False, found[0]), (True, found[1])):
            cursor = self._state.groups[key].cursor(retry)
            for start, stop in sorted(ranges):
                reached = self._gather(key, retry, cursor, (start, stop), gathered, moment)
                done[retry].extend(cursor.retrying.common(start, reached))
                if reached < stop:
                    deadline_us = moment.lease_us + (moment.delay_ms or 0) * 1000
                    cursor.abandon(reached, stop, deadline_us)
                    self._state.deadlines.note(key, deadline_us)
        kept.begin(gathered.kept_bytes)
        batch = RetryBatch(
            *key,
            gathered.messages(key[1], moment.now_us),
            tuple(done[0]),
            tuple(done[1]),
            unknown,
            self._state.expired_messages - expired_before,
            now_ms,
            gathered.kept_bytes,
        )
        self.retried += len(batch)
        return batch

    def _gather(
        self, key: GroupKey, retry: bool, cursor: Cursor, span: Range, gathered: _Gathered, moment: _Moment
    ) -> int:
        """Gather a range from its stored batches; returns the position that it reached within the bound.

        Messages that would come again at or behind their expiry are done. Messages without room on disk wait in their
        place."""
        position, stop = span
        while position < stop and gathered.room > 0:
            run = self._state.run_at(key if retry else (key[0], 0), position)
            count = min(stop, run.position + run.row_count) - position
            batch = self._state.read(run)
            if batch is None:
                self._state.lost(count)
            else:
                row = run.row_start + position - run.position
                part, before = batch.slice(row, row + count), cursor.attempts_before(position, count)
                positions = np.arange(position, position + count)
                due_ms = moment.due_ms(self._state.limits.redelivery, attempts_before(part.redelivery) + before + 1)
                expired = expired_rows(part.expires_ms, due_ms * 1000)
                if expired is not None:
                    self._expire(key, retry, cursor, positions[expired])
                    rest = np.flatnonzero(~expired)
                    part, before, positions, due_ms = part.take(rest), before[rest], positions[rest], due_ms[rest]
                if len(part) and not gathered.add(part, before, due_ms):
                    self._wait_in_place(key, retry, cursor, positions, before + 1, due_ms, moment)
            position += count
        return position

    def _wait_in_place(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        positions: I64,
        times: I64,
        due_ms: I64,
        moment: _Moment,
    ) -> None:
        """Make one place for neighbours with the same count of hand-overs and the same due time."""
        breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(times) != 0) | (np.diff(due_ms) != 0)) + 1
        firsts, lasts = [0, *breaks.tolist()], [*(breaks - 1).tolist(), len(positions) - 1]
        for first, last in zip(firsts, lasts, strict=True):
            start, stop, until_ms = int(positions[first]), int(positions[last]) + 1, int(due_ms[first])
            until_us = moment.lease_us + max(until_ms * 1000 - moment.now_us, 0)
            place = Place(start, stop, int(times[first]), WAITING, until_us, until_ms)
            cursor.wait_in_place(place)
            self._state.in_place(key, retry, place)
            self._state.deadlines.note(key, until_us)

    def _expire(self, key: GroupKey, retry: bool, cursor: Cursor, positions: I64) -> None:
        for start, stop in ranges_of(positions):
            cursor.settle(start, stop)
            self._state.expired(key, retry, start, stop)

    def settle(self, batch: RetryBatch) -> None:
        """See `Broker.settle_retry`."""
        key = (batch.subject, batch.group)
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for start, stop in ranges:
                self._state.groups[key].cursor(retry).settle(start, stop)
                self._state.acked(key, retry, start, stop)
        if batch.kept_bytes:
            self._state.kept(key).end(batch.kept_bytes)
            self._state.kept(key).add(batch.written_ms, batch.kept_bytes)
            self._state.wrote_redeliveries(key, batch.written_ms, batch.kept_bytes)

    def abandon(self, batch: RetryBatch, lease_us: int) -> None:
        """See `Broker.abandon_retry`."""
        deadline_us = lease_us + self._state.limits.ack_timeout_ms_default * 1000
        key = (batch.subject, batch.group)
        if batch.kept_bytes:
            self._state.kept(key).end(batch.kept_bytes)
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for start, stop in ranges:
                self._state.groups[key].cursor(retry).abandon(start, stop, deadline_us)
                self._state.deadlines.note(key, deadline_us)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The moment of a nack or of ended leases, by the wall clock and by the clock of leases.

    `delay_ms` is the delay that the client asked for, or None."""

    now_us: int
    lease_us: int
    delay_ms: int | None

    def due_ms(self, policy: RedeliveryPolicy, number: I64) -> I64:
        """When each message comes again, i64[n]. `number` i64[n] counts its redeliveries from 1."""
        pauses = policy.pauses_ms(number) if self.delay_ms is None else np.full(len(number), self.delay_ms, np.int64)
        due_ms: I64 = pauses - (-self.now_us // 1000)
        return due_ms


@dataclass(slots=True)
class _Gathered:
    """Slices of stored batches until `room` bytes are used up. Slices that exceed `kept_room` are not gathered."""

    room: int
    kept_room: int
    kept_bytes: int = 0
    parts: list[StoredBatch] = field(default_factory=list)
    before: list[I64] = field(default_factory=list)
    due_ms: list[I64] = field(default_factory=list)

    def add(self, part: StoredBatch, before: I64, due_ms: I64) -> bool:
        """Gather messages if the group has room on disk for their redeliveries. True if they were gathered."""
        size = len(part.bodies) + len(part.properties) + len(part.ids) + ROW_BYTES * len(part)
        self.room -= size
        if self.kept_bytes + COPIES * size > self.kept_room:
            return False
        self.kept_bytes += COPIES * size
        self.parts.append(part)
        self.before.append(before)
        self.due_ms.append(due_ms)
        return True

    def messages(self, group: int, now_us: int) -> MessageBatch | None:
        if not self.parts:
            return None
        return retry_messages(self.parts, self.before, group, np.concatenate(self.due_ms), now_us)


def _count(found: Found) -> int:
    return sum([stop - start for ranges in found for start, stop in ranges])
