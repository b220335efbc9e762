"""Redelivery after a nack or an ack timeout, through the delay pipeline or from the message's place in its queue. After
the last attempt of the group's policy the message is given up instead: `dead_letter_burial.py` stores it.

A redelivery is an internal record of the pipeline, so it has three copies on disk. Past the group's bound of bytes
messages wait in their place instead, and those with an order key always do. A place holds back the store, as a lease
does. So redeliveries use the pipeline again as soon as there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.policy import WAIT
from delayserver.broker.pulled_batch import ROW_BYTES
from delayserver.broker.queues.delivery_id import MOVES, pack_place, split_deliveries, unpack_place
from delayserver.broker.queues.group_cursors import Cursor, GroupCursors, GroupKey
from delayserver.broker.queues.places import WAITING, Place
from delayserver.broker.queues.ranges import Range, RangeSet, ranges_of
from delayserver.broker.reads import Steps, having_read
from delayserver.broker.redelivery_policy import COPIES, KeptBytes, RedeliveryPolicy
from store.errors import UnreadableError
from store.records.batches import I64, MessageBatch, StoredBatch
from store.records.column_batch import has_any
from store.records.expiry import expired_rows
from store.records.shared_column import attempts_before

Found = tuple[list[Range], list[Range]]
"""Ranges of the main queue, then of the retry queue."""


NACKED: Final = "nacked"
ACK_TIMEOUT: Final = "ack_timeout"
SKIPPED: Final = "skipped"
CONSUMER_GONE: Final = "the connection of its consumer ended"
# What a message takes of a record besides its own bytes: its columns, and an id that is written out.
_RECORD_ROW_BYTES: Final = 160
# Parts of records that are gathered in one step on the event loop, which takes a millisecond or two.
_STEP_PARTS: Final = 16
# Parts that are joined in one go.
_JOINED: Final = 64
# Reasons of messages that could not be given up on a full disk. Beyond the bound the reason becomes the ended lease.
_REASONS_KEPT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message is given up: NACKED or ACK_TIMEOUT and the text that the consumer gave, or SKIPPED and that of the
    operator."""

    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Messages whose last attempt failed. `attempts` i64[n], `places` i64[n] as `pack_place` makes them, `failures` of
    each. `main` and `retry` are their ranges in the two queues."""

    stored: StoredBatch
    attempts: I64
    places: I64
    failures: list[Failure]
    main: tuple[Range, ...]
    retry: tuple[Range, ...]

    def __len__(self) -> int:
        return len(self.stored)

    def failures_of(self, retry: bool) -> Iterator[tuple[Range, Failure]]:
        """The ranges of one queue whose messages failed for the same reason."""
        places = [
            (*unpack_place(packed), failure)
            for packed, failure in zip(self.places.tolist(), self.failures, strict=True)
        ]
        found = [(position, failure) for queue, position, failure in places if queue == retry]
        for failure in dict.fromkeys([failure for _, failure in found]):
            positions = np.array(sorted([position for position, of in found if of == failure]))
            for span in ranges_of(positions):
                yield span, failure


@dataclass(frozen=True, slots=True)
class _Unburied:
    """Why the messages of a range were to be given up when there was no room. It counts until the group is moved."""

    cursor: Cursor
    moves: int
    span: Range
    failure: Failure

    def holds(self, cursor: Cursor, position: int) -> bool:
        """Whether it is about this position of a queue."""
        return cursor is self.cursor and cursor.moves == self.moves and self.span[0] <= position < self.span[1]

    def is_over(self) -> bool:
        """Whether its messages are done, or the group was moved."""
        start, stop = max(self.span[0], self.cursor.committed), self.span[1]
        return self.cursor.moves != self.moves or start >= stop or not self.cursor.acked.missing(start, stop)


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """Internal records for the server to append to its message_log, and the deliveries that they replace.

    `messages` has sequence 0 on every row: the server assigns it. It is None if there is no record to append.
    The server calls `Retries.settle` once the records are durable, and `Retries.abandon` if it could not append them.
    `main` and `retry` are the deliveries' ranges in the two queues. `unknown` counts deliveries that were not leased,
    `expired` those whose message has expired and does not come again. `given_up` messages do not come again either:
    `DeadLetters.bury` or `Retries.keep_unburied` is called for them, before the others are settled.
    The records take `kept_bytes` of disk from `written_ms` on. `rest`, as `main` and `retry`: a nack had no room for these
    deliveries. They stay leased, for another nack once this batch is settled.
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
    given_up: GivenUp | None = None
    rest: Found = field(default_factory=lambda: ([], []))

    def __len__(self) -> int:
        return 0 if self.messages is None else len(self.messages)


def retry_messages(parts: Sequence[StoredBatch], times_before: Sequence[I64], group: int, due_ms: I64) -> MessageBatch:
    """The internal records for stored rows: same subject, id, properties, body and expiry, one redelivery more.

    `accepted_us` is when the message could first be delivered, so that its age is known however often it comes. Every id is
    written out. An empty id would later be derived from the retry's own sequence.
    """
    stored = StoredBatch.concatenate(parts)
    count = len(stored)
    ids_length, ids = written_ids(stored)
    return MessageBatch.filled(
        count,
        due_ms=due_ms,
        accepted_us=waits_since_us(stored),
        expires_ms=stored.expires_ms,
        origin_sequence=origins(stored),
        subject=stored.subject,
        target_group=group,
        redelivery=attempts_before(stored.redelivery) + 1 + np.concatenate(times_before),
        ids_length=ids_length,
        properties_length=stored.properties_length,
        bodies_length=stored.bodies_length,
        order_hash=stored.order_hash,
        tag=stored.tag,
        order_keys_length=stored.order_keys_length,
        ids=ids,
        properties=stored.properties,
        bodies=stored.bodies,
        order_keys=stored.order_keys,
    )


def waits_since_us(stored: StoredBatch) -> I64:
    """Since when each message waits for its consumers, i64[n]: it was due, or accepted if that was later. A redelivery
    waits since its message did."""
    first_us = np.maximum(stored.due_ms * 1000, stored.accepted_us)
    since_us: I64 = np.where(stored.target_group != 0, stored.accepted_us, first_us)
    return since_us


def origins(stored: StoredBatch) -> I64:
    """The sequences of the messages that were accepted first, i64[n]."""
    origins: I64 = np.where(stored.origin_sequence != 0, stored.origin_sequence, stored.sequence)
    return origins


def written_ids(stored: StoredBatch) -> tuple[NDArray[np.uint32], bytes | memoryview]:
    """The ids of stored messages as a ragged column, with derived ones written out."""
    lengths = stored.ids_length
    if bool(lengths.all()):
        return lengths, stored.ids
    # Retries are rare, so a loop over their messages is no hot path.
    ids: list[bytes | memoryview] = []
    position = 0
    for server_id, sequence, length in zip(
        stored.server_id.tolist(), origins(stored).tolist(), lengths.tolist(), strict=True
    ):
        ids.append(stored.ids[position : position + length] if length else b"%012x-%012x" % (server_id, sequence))
        position += length
    return np.array([len(one) for one in ids], np.uint32), b"".join(ids)


class Retries:
    """Nacks and ended leases. A message goes to the delay pipeline and is done here, or it waits in its place."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._groups = state.groups
        # Groups whose ended leases are being gathered.
        self._ending: set[GroupKey] = set()
        self._reasons: deque[_Unburied] = deque(maxlen=_REASONS_KEPT_MAX)
        self.retried = 0

    def nack(
        self,
        key: GroupKey,
        deliveries: I64,
        delay_ms: int | None,
        now_us: int,
        lease_us: int,
        failure: Failure | None = None,
    ) -> Steps[RetryBatch]:
        """Take leased deliveries (i64[n]) back. They become internal records for this group, due in `delay_ms`.
        If it is None, they are due after the pauses of the redelivery policy.

        Beyond the group's bound of bytes they wait in their place instead. A message that would come again at or behind
        its expiry is done for the group and counted as expired. With a `failure`, messages that had the last attempt of
        the group's policy are given up."""
        group = self._groups.get(key)
        if group is None:
            return RetryBatch(*key, None, (), (), len(deliveries))
        found: Found = ([], [])
        for part in split_deliveries(deliveries):
            cursor = group.cursor(part.retry)
            lease = part.lease_in(self._state.files.epoch.value)
            if lease is not None and part.moves == cursor.moves % MOVES:
                for start, stop in cursor.of_lease(part.ranges, lease):
                    found[part.retry].extend(cursor.to_retry(start, stop))
        unknown = len(deliveries) - _count(found)
        found = self._recall(key, group, found)
        return (yield from self._batch(key, found, _Moment(now_us, lease_us, delay_ms, failure), unknown))

    def take_expired(self, now_us: int, lease_us: int, limit: int) -> list[Steps[RetryBatch]]:
        """Takes back about `limit` deliveries whose ack timeout has passed. Returns one call a group; the caller must
        carry out all.

        They are due after the pauses of the redelivery policy. After a batch without messages the group may have
        messages that can be pulled again from their place."""
        calls: list[Steps[RetryBatch]] = []
        deadlines = self._groups.deadlines
        while limit > 0 and (first := deadlines.first(self._deadline_us)) is not None and first[0] <= lease_us:
            key = first[1]
            deadlines.forget(key)
            group = self._groups[key]
            for cursor in (group.main, group.retry):
                cursor.release(lease_us)
            found = (group.main.retry_expired(lease_us, limit), group.retry.retry_expired(lease_us, limit))
            found = self._recall(key, group, found)
            self._ending.add(key)
            calls.append(self._ended(key, found, _Moment(now_us, lease_us, None, Failure(ACK_TIMEOUT))))
            limit -= max(1, _count(found))
        return calls

    def end_leases_of(self, key: GroupKey, owners: set[int], now_us: int, lease_us: int) -> Steps[RetryBatch] | None:
        """Take back the deliveries of a group whose leases belong to these owners, which are gone; None if there are none.
        The call must be carried out.

        A message comes again at once the first time. Later it waits for the pauses of the redelivery policy, as if it had
        had one attempt less. The attempt counts, because a consumer may have had the message."""
        group = self._groups.get(key)
        if group is None:
            return None
        found = self._recall(key, group, (group.main.end_leases_of(owners), group.retry.end_leases_of(owners)))
        if not _count(found):
            return None
        failure = Failure(ACK_TIMEOUT, CONSUMER_GONE)
        return self._batch(key, found, _Moment(now_us, lease_us, None, failure, gone=True), 0)

    def skip(
        self, key: GroupKey, main: I64, retry: I64, failure: Failure, now_us: int, lease_us: int
    ) -> Steps[RetryBatch]:
        """Give up those of the messages at these positions, i64[n] each, for which an order key waits. The group must have a
        dead-letter subject. The call must be carried out, and goes on as after a nack. A consumer that has one loses its
        lease."""
        group = self._groups.get(key)
        if group is None:
            return RetryBatch(*key, None, (), ())
        found = (group.main.fail_heads(main), group.retry.fail_heads(retry))
        return (yield from self._batch(key, found, _Moment(now_us, lease_us, None, failure), 0))

    def _recall(self, key: GroupKey, group: GroupCursors, found: Found) -> Found:
        """Only the first message of each order key fails. Those that went out behind it are taken back without counting
        an attempt. Returns the ranges that fail."""
        for retry, ranges in ((False, found[0]), (True, found[1])):
            for place in group.cursor(retry).recall(ranges):
                self._state.notes.add_counted(key, retry, *place[:3])
        main, of_retry = [
            [part for span in ranges for part in group.cursor(retry).retrying.common(*span)]
            for retry, ranges in ((False, found[0]), (True, found[1]))
        ]
        return main, of_retry

    def _ended(self, key: GroupKey, found: Found, moment: _Moment) -> Steps[RetryBatch]:
        """Gather a group's ended leases. Meanwhile no other leases of the group end."""
        try:
            if key not in self._groups:  # it was removed before this began
                return RetryBatch(*key, None, (), ())
            return (yield from self._batch(key, found, moment, 0))
        finally:
            self._ending.discard(key)
            deadline_us = self._deadline_us(key)
            if deadline_us is not None:  # its remaining leases come after those of all other groups
                self._groups.deadlines.note(key, deadline_us)

    def next_deadline_us(self) -> int | None:
        """When `take_expired` has work, by the clock of `lease_us`; None while no message is leased or waits."""
        first = self._groups.deadlines.first(self._deadline_us)
        return None if first is None else first[0]

    def _deadline_us(self, key: GroupKey) -> int | None:
        group = self._groups.get(key)
        if group is None or key in self._ending:
            return None
        deadlines = [cursor.next_deadline_us() for cursor in (group.main, group.retry)]
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def _batch(self, key: GroupKey, found: Found, moment: _Moment, unknown: int) -> Steps[RetryBatch]:
        """Gather the messages of the ranges, up to the bound of bytes of a step. The rest of a nack stays leased until its
        delay and another ack timeout have passed, and the rest of ended leases ends in the next step. If the call is given
        up or the disk fails, all stay leased for another ack timeout."""
        kept, now_ms = self._groups.kept(key), moment.now_us // 1000
        kept.forget(now_ms)
        limits = self._state.limits
        gathered = _Gathered(limits.retry_bytes_max, limits.redelivery_bytes_max, kept)
        attempts_max = self._state.policies.attempts_max(key) if moment.failure is not None else 0
        done: Found = ([], [])
        rest: Found = ([], [])
        group = self._groups[key]
        finished = False
        later_us = moment.lease_us + limits.ack_timeout_ms_default * 1000
        rest_us = max(later_us, moment.lease_us + (moment.delay_ms or 0) * 1000)
        if moment.failure is not None and moment.failure.reason == ACK_TIMEOUT:
            rest_us = moment.lease_us
        try:
            for retry, ranges in ((False, found[0]), (True, found[1])):
                cursor = group.cursor(retry)
                for start, stop in sorted(ranges):
                    reached = yield from self._gather(key, retry, cursor, (start, stop), gathered, moment, attempts_max)
                    for part in cursor.retrying.common(start, reached):
                        done[retry].extend(gathered.dead[retry].missing(*part))
                    if reached < stop:
                        self._lease_again(key, cursor, (reached, stop), rest_us)
                        rest[retry].append((reached, stop))
            finished = True
        finally:
            if not finished:
                kept.end(gathered.kept_bytes)
                for retry, ranges in ((False, found[0]), (True, found[1])):
                    for span in ranges:
                        self._lease_again(key, group.cursor(retry), span, later_us)
        batch = RetryBatch(
            *key,
            gathered.messages(key[1]),
            tuple(done[0]),
            tuple(done[1]),
            unknown,
            gathered.expired,
            now_ms,
            gathered.kept_bytes,
            self._given_up(key, group, gathered),
            rest,
        )
        self.retried += len(batch)
        return batch

    def _given_up(self, key: GroupKey, group: GroupCursors, gathered: _Gathered) -> GivenUp | None:
        """The messages to give up. A group that was moved or removed during a read has none."""
        current: list[RangeSet] = []
        for retry in (False, True):
            cursor = group.cursor(retry)
            ranges = RangeSet()
            if self._is_current(key, retry, cursor):
                for span in gathered.dead[retry]:
                    for part in cursor.retrying.common(*span):
                        ranges.add(*part)
            current.append(ranges)
        return gathered.given_up(current[False], current[True])

    def _lease_again(self, key: GroupKey, cursor: Cursor, span: Range, deadline_us: int) -> None:
        """Lease the positions of a range that are still being retried."""
        for start, stop in cursor.retrying.common(*span):
            cursor.abandon(start, stop, deadline_us)
            self._groups.deadlines.note(key, deadline_us)

    def _gather(
        self,
        key: GroupKey,
        retry: bool,
        cursor: Cursor,
        span: Range,
        gathered: _Gathered,
        moment: _Moment,
        attempts_max: int,
    ) -> Steps[int]:
        """Gather a range from its stored batches; returns the position that it reached within the bound.

        Messages that would come again at or behind their expiry are done. Messages without room on disk wait in their
        place. Those that the disk cannot read stay leased, until so many reads have failed as a pull makes. After
        `attempts_max` attempts (0: without end) a message that has not expired is given up."""
        position, stop = span
        while gathered.room > 0:
            if gathered.ends_step():
                yield None
            # During a read or a pause, retention may remove messages, and an operator may move the group or remove it.
            left = cursor.retrying.common(position, stop) if position < stop else []
            if not left or not self._is_current(key, retry, cursor):
                return stop
            position = left[0][0]
            run = yield from having_read(partial(self._state.messages.run_at, key if retry else (key[0], 0), position))
            row, count = (
                run.row_start + position - run.position,
                min(left[0][1], run.position + run.row_count) - position,
            )
            try:
                batch = yield from having_read(partial(self._state.messages.read, run, patient=True))
            except UnreadableError:  # a later read may succeed, as for a pull
                timeout_ms = max(moment.delay_ms or 0, self._state.limits.ack_timeout_ms_default)
                self._lease_again(key, cursor, (position, position + count), moment.lease_us + 1000 * timeout_ms)
                continue
            if cursor.retrying.common(position, stop) != left or not self._is_current(key, retry, cursor):
                continue
            if batch is None:
                self._state.damages.count_lost(count)
            else:
                part = batch.slice(row, row + count)
                if not gathered.admits(part):
                    return position
                before = cursor.attempts_before(position, count)
                positions = np.arange(position, position + count)
                attempts = attempts_before(part.redelivery) + before + 1
                due_ms = moment.due_ms(self._state.policies.pauses(key), attempts)
                last = self._last(key, part, attempts, moment, attempts_max)
                if last is not None:
                    due_ms[last] = moment.now_us // 1000
                expired = expired_rows(part.expires_ms, due_ms * 1000)
                if expired is not None:
                    self._expire(key, retry, cursor, positions[expired])
                    gathered.pass_over(int(np.count_nonzero(expired)))
                    rest = np.flatnonzero(~expired)
                    part, before, positions, due_ms = part.take(rest), before[rest], positions[rest], due_ms[rest]
                    attempts, last = attempts[rest], None if last is None else last[rest]
                if last is not None and last.any():
                    self._give_up(
                        cursor,
                        retry,
                        gathered,
                        part.take(np.flatnonzero(last)),
                        positions[last],
                        attempts[last],
                        moment,
                    )
                    rest = np.flatnonzero(~last)
                    part, before, positions, due_ms = part.take(rest), before[rest], positions[rest], due_ms[rest]
                if has_any(part.order_hash):
                    keyed = np.flatnonzero(part.order_hash)
                    self._pause_keys(key, retry, cursor, positions[keyed], due_ms[keyed], moment)
                    gathered.look(part)
                    rest = np.flatnonzero(part.order_hash == 0)
                    part, before, positions, due_ms = part.take(rest), before[rest], positions[rest], due_ms[rest]
                if len(part) and not gathered.add(part, before + moment.attempts - 1, due_ms):
                    self._wait_in_place(key, retry, cursor, positions, before + moment.attempts, due_ms, moment)
            position += count
        return position

    def _last(
        self, key: GroupKey, part: StoredBatch, attempts: I64, moment: _Moment, attempts_max: int
    ) -> NDArray[np.bool_] | None:
        """Which messages are given up after this attempt, bool[n]; None without any."""
        if moment.failure is not None and moment.failure.reason == SKIPPED:
            return np.ones(len(part), bool)
        if not attempts_max:
            return None
        last: NDArray[np.bool_] = attempts >= attempts_max
        last &= (part.order_hash == 0) | (self._state.policies.of(key).failed_key != WAIT)
        return last

    def _is_current(self, key: GroupKey, retry: bool, cursor: Cursor) -> bool:
        """Whether the group still has this cursor."""
        group = self._groups.get(key)
        return group is not None and group.cursor(retry) is cursor

    def _give_up(
        self,
        cursor: Cursor,
        retry: bool,
        gathered: _Gathered,
        part: StoredBatch,
        positions: I64,
        attempts: I64,
        moment: _Moment,
    ) -> None:
        assert moment.failure is not None
        failures = [moment.failure] * len(part)
        if moment.failure.reason == ACK_TIMEOUT and self._reasons:
            failures = [self._reason_of(cursor, position, moment.failure) for position in positions.tolist()]
        gathered.give_up(part, retry, positions, attempts, failures)

    def _reason_of(self, cursor: Cursor, position: int, default: Failure) -> Failure:
        """Why a message was to be given up when there was no room; otherwise `default`."""
        for unburied in self._reasons:
            if unburied.holds(cursor, position):
                return unburied.failure
        return default

    def keep_unburied(self, batch: RetryBatch, lease_us: int) -> None:
        """Leases the messages that a batch gives up for another ack timeout, because they could not be stored. They are
        given up then."""
        given_up = batch.given_up
        assert given_up is not None
        key = (batch.subject, batch.group)
        deadline_us = lease_us + self._state.limits.ack_timeout_ms_default * 1000
        known = dict.fromkeys([unburied for unburied in self._reasons if not unburied.is_over()])
        for retry, ranges in ((False, given_up.main), (True, given_up.retry)):
            cursor = self._groups[key].cursor(retry)
            for span, failure in given_up.failures_of(retry):
                parts = cursor.retrying.common(*span)
                known |= dict.fromkeys([_Unburied(cursor, cursor.moves, part, failure) for part in parts])
            for start, stop in ranges:
                cursor.abandon(start, stop, deadline_us)
                self._groups.deadlines.note(key, deadline_us)
        self._reasons = deque(known, _REASONS_KEPT_MAX)

    def _pause_keys(
        self, key: GroupKey, retry: bool, cursor: Cursor, positions: I64, due_ms: I64, moment: _Moment
    ) -> None:
        """Let failed messages with an order key wait in their place. A record in the delay pipeline would come behind later
        messages of the key.

        A restart ends the pauses, because it does not know which messages have a key: the log has them as ready."""
        if not len(positions):
            return
        until_us = moment.lease_us + np.maximum(due_ms * 1000 - moment.now_us, 0)
        for place in cursor.pause(positions, until_us, moment.now_us, alone=moment.failure is not None):
            self._state.notes.add_counted(key, retry, *place[:3])
        self._groups.deadlines.note(key, int(until_us.min()))

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
            self._state.notes.in_place(key, retry, place)
            self._groups.deadlines.note(key, until_us)

    def _expire(self, key: GroupKey, retry: bool, cursor: Cursor, positions: I64) -> None:
        for start, stop in ranges_of(positions):
            cursor.settle(start, stop)
            self._groups.count_expired(key, retry, start, stop)

    def settle(self, batch: RetryBatch) -> None:
        """Counts the deliveries as acked, because the internal records of the batch are durable in the message_log."""
        key = (batch.subject, batch.group)
        group = self._groups.get(key)
        if group is None:  # it was removed meanwhile
            return
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for span in ranges:
                for start, stop in group.cursor(retry).settle(*span):
                    self._state.notes.add_acked(key, retry, start, stop)
        if batch.kept_bytes:
            self._groups.kept(key).end(batch.kept_bytes)
            self._groups.kept(key).add(batch.written_ms, batch.kept_bytes)
            self._state.notes.add_redelivery_bytes(key, batch.written_ms, batch.kept_bytes)

    def abandon(self, batch: RetryBatch, lease_us: int) -> None:
        """Leases the deliveries for another ack timeout, because the internal records could not be made durable."""
        deadline_us = lease_us + self._state.limits.ack_timeout_ms_default * 1000
        key = (batch.subject, batch.group)
        group = self._groups.get(key)
        if group is None:  # it was removed meanwhile
            return
        if batch.kept_bytes:
            self._groups.kept(key).end(batch.kept_bytes)
        for retry, ranges in ((False, batch.main), (True, batch.retry)):
            for start, stop in ranges:
                if group.cursor(retry).abandon(start, stop, deadline_us):
                    self._groups.deadlines.note(key, deadline_us)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The moment of a nack or of ended leases, by the wall clock and by the clock of leases.

    `delay_ms` is the delay that the client asked for, or None. `failure`: why the attempt failed. None: no consumer has
    had the message, so it is not given up. `gone`: the connection of the consumer ended. A message comes again at once then;
    one that has lost a consumer before waits, because it may be what ends them."""

    now_us: int
    lease_us: int
    delay_ms: int | None
    failure: Failure | None
    gone: bool = False

    @property
    def attempts(self) -> int:
        """The attempts that the hand-outs count as: none where nothing has failed."""
        return int(self.failure is not None)

    def due_ms(self, policy: RedeliveryPolicy, number: I64) -> I64:
        """When each message comes again, i64[n]. `number` i64[n] counts its redeliveries from 1."""
        if self.delay_ms is not None:
            pauses = np.full(len(number), self.delay_ms, np.int64)
        elif self.gone:
            pauses = np.where(number > 1, policy.pauses_ms(number - 1), 0)
        else:
            pauses = policy.pauses_ms(number)
        due_ms: I64 = pauses - (-self.now_us // 1000)
        return due_ms


@dataclass(slots=True)
class _Gathered:
    """Slices of stored batches until `room` bytes are used up. Slices that exceed `kept_max` are not gathered.

    `kept` counts what all calls for the group gather, `kept_bytes` what this one does."""

    room: int
    kept_max: int
    kept: KeptBytes
    kept_bytes: int = 0
    empty: bool = True
    expired: int = 0
    looks: int = 0
    joined: list[StoredBatch] = field(default_factory=list)
    parts: list[StoredBatch] = field(default_factory=list)
    before: list[I64] = field(default_factory=list)
    due_ms: list[I64] = field(default_factory=list)
    dead: tuple[RangeSet, RangeSet] = field(default_factory=lambda: (RangeSet(), RangeSet()))
    dead_parts: list[StoredBatch] = field(default_factory=list)
    dead_attempts: list[I64] = field(default_factory=list)
    dead_places: list[I64] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def ends_step(self) -> bool:
        """Called before each part. Whether those since the last pause are a step of work."""
        self.looks += 1
        return self.looks % _STEP_PARTS == 0

    def admits(self, part: StoredBatch) -> bool:
        """Whether there is room for a part. The first one always has it. Where one has none, no other one has: what is
        gathered becomes one record, and the log of a shard takes no longer one."""
        if not self.empty and _record_bytes(part) > self.room:
            self.room = 0
        return self.room > 0

    def _fill(self, part: StoredBatch) -> None:
        self.room -= _record_bytes(part)
        self.empty = self.empty and not len(part)

    def add(self, part: StoredBatch, before: I64, due_ms: I64) -> bool:
        """Gather messages if the group has room on disk for their redeliveries. True if they were gathered."""
        size = _size_of(part)
        self._fill(part)
        if self.kept.total + COPIES * size > self.kept_max:
            return False
        self.kept.begin(COPIES * size)
        self.kept_bytes += COPIES * size
        self.parts.append(part)
        if len(self.parts) >= _JOINED:
            self.joined.append(StoredBatch.concatenate(self.parts))
            self.parts.clear()
        self.before.append(before)
        self.due_ms.append(due_ms)
        return True

    def look(self, part: StoredBatch) -> None:
        """Count the bytes of messages that are read and wait in their place."""
        self._fill(part)

    def pass_over(self, count: int) -> None:
        """Count messages that do not come again, because they have expired."""
        self.expired += count

    def give_up(self, part: StoredBatch, retry: bool, positions: I64, attempts: I64, failures: list[Failure]) -> None:
        """Gather messages that do not come again."""
        self._fill(part)
        for start, stop in ranges_of(positions):
            self.dead[retry].add(start, stop)
        self.dead_parts.append(part)
        self.dead_attempts.append(attempts)
        self.dead_places.append(pack_place(positions, retry=retry))
        self.failures += failures

    def given_up(self, main: RangeSet, retry: RangeSet) -> GivenUp | None:
        """The messages that do not come again, of these ranges; None without any."""
        if not self.dead_parts or not (len(main) or len(retry)):
            return None
        stored, places = StoredBatch.concatenate(self.dead_parts), np.concatenate(self.dead_places)
        attempts, failures = np.concatenate(self.dead_attempts), self.failures
        count = main.count() + retry.count()
        if count < len(places):
            rows = [place for place, packed in enumerate(places.tolist()) if _holds(main, retry, packed)]
            stored, places, attempts = stored.take(np.array(rows)), places[rows], attempts[rows]
            failures = [failures[row] for row in rows]
        return GivenUp(stored, attempts, places, failures, tuple(main), tuple(retry))

    def messages(self, group: int) -> MessageBatch | None:
        if not self.before:
            return None
        return retry_messages([*self.joined, *self.parts], self.before, group, np.concatenate(self.due_ms))


def _record_bytes(part: StoredBatch) -> int:
    return _size_of(part) + (_RECORD_ROW_BYTES - ROW_BYTES) * len(part)


def _size_of(part: StoredBatch) -> int:
    return len(part.bodies) + len(part.properties) + len(part.ids) + len(part.order_keys) + ROW_BYTES * len(part)


def _holds(main: RangeSet, retry: RangeSet, packed: int) -> bool:
    of_retry, position = unpack_place(packed)
    return (retry if of_retry else main).following(position) is not None


def _count(found: Found) -> int:
    return sum([stop - start for ranges in found for start, stop in ranges])
