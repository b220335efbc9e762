"""Redelivers messages after a nack, after an ack timeout, at the end of a connection that wants that, or if the reply with
them was not received.

They go through the delay pipeline again, as internal records for one consumer group, committed to message_log like
messages. The broker's progress log first names what they will replace, and the old delivery is settled only when these
records are durable. So a start finds out what a crash left. After the last attempt of the group's policy a message is stored
as a dead letter instead, and acked in the same sync of the broker.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

import trio

from delayserver.broker.actions.group_backlog import GroupRow
from delayserver.broker.actions.retries import NACKED, SKIPPED, Failure, RetryBatch
from delayserver.broker.queues.delivery_id import of_ranges, places_of, unpack_places
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.reads import Steps
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.protocol.errors import DelayServerError, DiskFull, StorageFailed
from delayserver.receive.group_commit import ROW_OVERHEAD_BYTES, GroupCommit
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.sequence_source import SequenceSource
from delayserver.state.counts.redeliveries import Redeliveries
from delayserver.upkeep.kept_room import KeptRoom
from store.errors import DiskFullError, StoreError
from store.records.batches import I64, MessageBatch
from store.tables.names import Names

# Ended leases that become internal records in one step.
EXPIRED_AT_ONCE = 4096
# Groups whose ended leases are gathered at a time. Each may hold `retry_bytes_max` bytes of messages.
GROUPS_AT_ONCE = 4
# Unreceived replies whose deliveries wait to be taken back. Those of further replies come again when their leases end.
UNRECEIVED_MAX = 4096
# Owners that are gone, each counted for every group of which it had leases. The leases of further ones end at once.
GONE_MAX = 65_536


@contextmanager
def commit_errors() -> Iterator[None]:
    """Translates the errors of the broker's commit. Raises DiskFull, StorageFailed."""
    try:
        yield
    except DiskFullError as error:
        raise DiskFull(str(error), retry_after_ms=1000) from error
    except StoreError as error:
        raise StorageFailed(str(error)) from error


@dataclass(frozen=True, slots=True)
class Nacked:
    """Counts: `nacked` deliveries, `unknown` ones that were not leased, and of the nacked ones those that do not come
    again: `expired`, and `dead_lettered` after their last attempt."""

    nacked: int
    unknown: int
    expired: int
    dead_lettered: int

    def __add__(self, other: Nacked) -> Nacked:
        return Nacked(
            self.nacked + other.nacked,
            self.unknown + other.unknown,
            self.expired + other.expired,
            self.dead_lettered + other.dead_lettered,
        )


class Redelivery:
    """Takes deliveries back. `run` is a task of the server."""

    def __init__(
        self,
        broker: LocalBroker,
        pipeline: GroupCommit,
        room: KeptRoom,
        sequences: SequenceSource,
        names: Names,
        redeliveries: Redeliveries,
        runtime: Runtime,
    ) -> None:
        self._broker = broker
        self._retries = broker.core.retries
        self._dead_letters = broker.core.dead_letters
        self._in_doubt = broker.core.in_doubt
        self._ended = broker.core.ended
        self._pipeline = pipeline
        self._room = room
        self._sequences = sequences
        self._names = names
        self._redeliveries = redeliveries
        self._clock = runtime.clock
        self._leases = trio.Event()
        self._unreceived: deque[tuple[int, int, I64]] = deque()
        # Owners of leases that are gone, with the time when these end, and a group of which each had some. A heap.
        self._gone: list[tuple[int, GroupKey, int]] = []
        self._more_gone = trio.Event()
        self._work_back = trio.Event()
        # Groups whose ended leases are being gathered or committed, or were refused a moment ago.
        self._ends = 0
        self._groups_at_once = trio.CapacityLimiter(GROUPS_AT_ONCE)
        # Deliveries so far whose reply was never sent.
        self.given_back = 0

    async def run(self) -> None:
        """Ends leases, also of owners that are gone, and takes back unreceived deliveries, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_leases)
            nursery.start_soon(self._take_back)
            nursery.start_soon(self._hear_of_earlier)
            nursery.start_soon(self._end_gone)

    def recompute_deadline(self) -> None:
        """Has the next end of a lease computed again, because new leases have begun."""
        self._leases.set()

    async def _hear_of_earlier(self) -> None:
        """Leases that ended with an earlier process are found by pulls."""
        while True:
            await self._ended.rung()
            self._ended.hush()
            self._leases.set()

    def redeliver_unreceived(self, subject: int, group: int, deliveries: I64) -> None:
        """Redelivers the deliveries of a reply that was not sent completely, so no client has read it."""
        if len(self._unreceived) < UNRECEIVED_MAX:
            self._unreceived.append((subject, group, deliveries))
            self._work_back.set()

    def end_leases_of(self, key: GroupKey, owner: int, after_ms: int) -> None:
        """An owner of leases of a group is gone: redelivers in `after_ms` what it has leased then."""
        if len(self._gone) >= GONE_MAX:
            after_ms = 0
        heappush(self._gone, (self._clock.monotonic_us() + after_ms * 1000, key, owner))
        self._more_gone.set()

    async def nack(self, subject: int, group: int, deliveries: I64, delay_ms: int | None, reason: str | None) -> Nacked:
        """Takes leased deliveries back, due again in `delay_ms`; None for the group's own pauses. After the last attempt
        they become dead letters, with `reason`. If that is None, they do not: the consumer has not begun to handle them.
        Durable on return. Raises DiskFull, StorageFailed, and the errors of the pipeline."""
        failure = None if reason is None else Failure(NACKED, reason)
        now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
        expired, dead, unknown, left = 0, 0, None, deliveries
        while unknown is None or len(left):
            call = self._retries.nack((subject, group), left, delay_ms, now_us, lease_us, failure)
            batch = await self._finish(call)
            self._leases.set()  # the redeliveries change the next deadline
            await self._retry(batch)
            unknown = batch.unknown if unknown is None else unknown
            expired, dead = expired + batch.expired, dead + (0 if batch.given_up is None else len(batch.given_up))
            left = of_ranges(left, *batch.rest)
        return Nacked(len(deliveries) - unknown, unknown, expired, dead)

    async def skip(self, key: GroupKey, places: I64, text: str) -> int:
        """Gives up the messages at places (i64[n]) for which an order key waits: they become dead letters with `text`.
        Those that have expired are done without a letter. Returns how many it was. Durable on return.

        Raises DiskFull, StorageFailed. Messages that it has not given up then still hold their keys."""
        skipped = 0
        while len(places):
            now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
            call = self._retries.skip(key, *unpack_places(places), Failure(SKIPPED, text), now_us, lease_us)
            batch = await self._finish(call)
            self._leases.set()
            await self._retry(batch)
            skipped += batch.expired + (0 if batch.given_up is None else len(batch.given_up))
            places = places_of(*batch.rest)
        return skipped

    async def _finish(self, call: Steps[RetryBatch]) -> RetryBatch:
        try:
            return await self._broker.reads.finish(call)
        except StoreError as error:
            raise StorageFailed(str(error)) from error

    async def durable(self) -> None:
        """Waits until everything that the broker has taken is on disk. Raises DiskFull, StorageFailed."""
        with commit_errors():
            await self._broker.commit.durable()

    async def commit(self, messages: MessageBatch, begin: Callable[[int], None]) -> None:
        """Commits internal records to message_log. `begin` notes before that they will be there, with their lowest offset.
        Raises DiskFull, StorageFailed, and the errors of the pipeline."""
        self._require_room(messages)
        begin(self._pipeline.durable_end)
        # The messages are leased no more. If the end of a connection cancelled this wait, they would belong to nobody.
        with trio.CancelScope(shield=True):
            await self.durable()
        await self._pipeline.commit(messages)

    def count_sent(self, messages: MessageBatch) -> None:
        """Counts committed records as on their way. Call it in the step in which their old deliveries are settled."""
        self._redeliveries.count_sent(messages)

    def whole(self, row: GroupRow) -> GroupRow:
        """A group's row with the redeliveries on their way through the delay pipeline, which the broker does not know."""
        key = (row.subject, row.group)
        waiting, since_ms = self._redeliveries.waiting(key), self._redeliveries.oldest_ms(key)
        oldest_ms = row.oldest_ms if since_ms is None else min(since_ms, row.oldest_ms or since_ms)
        return replace(row, lag=row.lag + waiting, retrying=max(0, row.retrying + waiting), oldest_ms=oldest_ms)

    async def _retry(self, batch: RetryBatch) -> None:
        """Stores the dead letters of a batch, then commits its internal records and settles the old deliveries."""
        buried = batch.given_up is None or await self._bury_all(batch)
        if batch.messages is not None:
            try:
                await self.commit(batch.messages, partial(self._in_doubt.begin_retry, batch))
            except DelayServerError:
                self._retries.abandon(batch, self._clock.monotonic_us())
                raise
        self._retries.settle(batch)
        if batch.messages is not None:
            self.count_sent(batch.messages)
        self._broker.pulls.wake_group(batch.subject, batch.group)
        await self.durable()
        if not buried:
            raise DiskFull("there is no room for dead letters; the messages wait in their place", retry_after_ms=1000)

    async def _bury_all(self, batch: RetryBatch) -> bool:
        """Stores dead letters, a bounded number in each step. False if there was no room for some: their messages stay
        leased. Raises StorageFailed."""
        burial, buried = self._dead_letters.burial(batch), True
        # The messages are leased no more. If the end of a connection cancelled this, they would belong to nobody.
        with trio.CancelScope(shield=True):
            while (part := burial.next_part()) is not None:
                if buried:
                    assert part.given_up is not None
                    buried = self._bury(part, len(part.given_up))
                else:
                    self._retries.keep_unburied(part, self._clock.monotonic_us())
                if burial.has_more():
                    await trio.lowlevel.checkpoint()
        return buried

    def _bury(self, batch: RetryBatch, count: int) -> bool:
        """Stores dead letters in this step. False if there is no room: the messages stay leased. Raises StorageFailed."""
        now_us = self._clock.now_us()
        subject, group = self._names.name(batch.subject), self._names.name(batch.group)
        try:
            arrived = self._dead_letters.bury(batch, subject, group, self._sequences.take(count), now_us)
        except DiskFullError:
            self._retries.keep_unburied(batch, self._clock.monotonic_us())
            return False
        except StoreError as error:  # as after a failed delivery: the server ends, and a restart recovers
            failed = StorageFailed(str(error))
            self._pipeline.refuse_from_now(failed)
            raise failed from error
        self._broker.pulls.wake(arrived, count)
        self._broker.lookers.wake(arrived)
        return True

    def _require_room(self, messages: MessageBatch) -> None:
        size = len(messages.bodies) + len(messages.properties) + len(messages.ids) + ROW_OVERHEAD_BYTES * len(messages)
        try:
            self._room.require_redelivery(size)
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error

    async def _take_back(self) -> None:
        """Redelivers unreceived deliveries at once, like a nack without a delay."""
        while True:
            if not self._unreceived:
                self._work_back = trio.Event()
                await self._work_back.wait()
            subject, group, deliveries = self._unreceived.popleft()
            with suppress(DelayServerError, StoreError):  # refused for now: they come again when their leases end
                await self.nack(subject, group, deliveries, 0, None)
                self.given_back += len(deliveries)

    async def _end_gone(self) -> None:
        """Ends the leases of owners that are gone."""
        async with trio.open_nursery() as nursery:
            while True:
                wait_us = self._gone[0][0] - self._clock.monotonic_us() if self._gone else None
                if wait_us is None or wait_us > 0:
                    self._more_gone = trio.Event()
                    with trio.move_on_after(math.inf if wait_us is None else wait_us / 1_000_000):
                        await self._more_gone.wait()
                    continue
                now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
                owners: dict[GroupKey, set[int]] = {}
                while self._gone and self._gone[0][0] <= lease_us:
                    _, key, owner = heappop(self._gone)
                    owners.setdefault(key, set()).add(owner)
                for key, its in owners.items():
                    call = self._retries.end_leases_of(key, its, now_us, lease_us)
                    if call is not None:
                        nursery.start_soon(self._end_of_gone, call)
                    await trio.lowlevel.checkpoint()  # a connection may have had leases of thousands of groups

    async def _end_of_gone(self, call: Steps[RetryBatch]) -> None:
        """Ends the leases of one group."""
        try:
            async with self._groups_at_once:
                await self._retry(await self._finish(call))
        except DelayServerError:
            pass  # refused for now; the deliveries stay leased
        finally:
            self._leases.set()

    async def _end_leases(self) -> None:
        """Ends leases. Groups whose messages the disk reads slowly hold up no others, while they are few."""
        async with trio.open_nursery() as nursery:
            await self._start_ends(nursery)

    async def _start_ends(self, nursery: trio.Nursery) -> None:
        while True:
            if self._ends >= GROUPS_AT_ONCE:
                self._leases = trio.Event()
                await self._leases.wait()
                continue
            deadline_us = self._retries.next_deadline_us()
            if deadline_us is None:
                self._leases = trio.Event()
                await self._leases.wait()
                continue
            wait_us = deadline_us - self._clock.monotonic_us()
            if wait_us > 0:
                self._leases = trio.Event()
                with trio.move_on_after(wait_us / 1_000_000):
                    await self._leases.wait()
                    await self._clock.sleep_ms(10)  # pulls come in bursts; leases last for seconds
                continue
            now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
            for call in self._retries.take_expired(now_us, lease_us, EXPIRED_AT_ONCE):
                self._ends += 1
                nursery.start_soon(self._end, call)
            await trio.lowlevel.checkpoint()

    async def _end(self, call: Steps[RetryBatch]) -> None:
        """Ends the leases of one group."""
        try:
            async with self._groups_at_once:
                await self._retry(await self._finish(call))
        except DelayServerError:
            await self._clock.sleep_ms(1000)  # refused for now; the deliveries stay leased
        finally:
            self._ends -= 1
            self._leases.set()  # the group has its own next deadline again
