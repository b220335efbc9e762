"""Messages that come again: after a nack, after an ack timeout, or because the reply with them was not received.

They go back through the delay pipeline: internal records, committed to message_log like messages, due for one consumer
group. Only when these are durable the old delivery is done.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import trio

from delayserver.broker.actions.retries import RetryBatch
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.protocol.errors import DelayServerError, DiskFull, StorageFailed
from delayserver.receive.group_commit import ROW_OVERHEAD_BYTES, GroupCommit
from delayserver.runtime.clock import Clock
from delayserver.upkeep.kept_room import KeptRoom
from store.errors import DiskFullError, StoreError
from store.records.batches import I64, MessageBatch

# Ended leases that become internal records in one step.
EXPIRED_AT_ONCE = 4096
# Replies that were not received and whose deliveries are not taken back yet. Those of more come again when their leases end.
UNRECEIVED_MAX = 4096


class Redelivery:
    """Takes deliveries back. `run` is a task of the server."""

    def __init__(self, broker: LocalBroker, pipeline: GroupCommit, room: KeptRoom, clock: Clock) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self._room = room
        self._clock = clock
        self._leases = trio.Event()
        self._unreceived: deque[tuple[int, int, I64]] = deque()
        self._work_back = trio.Event()
        # Deliveries so far that were handed out and never sent.
        self.given_back = 0

    async def run(self) -> None:
        """End leases, and take back what was not received; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_leases)
            nursery.start_soon(self._take_back)

    def leased(self) -> None:
        """Messages were handed out: their leases may end before those that are known."""
        self._leases.set()

    def not_received(self, subject: int, group: int, deliveries: I64) -> None:
        """A reply with these deliveries was not sent to its end, so no client has read it: they come again at once."""
        if len(self._unreceived) < UNRECEIVED_MAX:
            self._unreceived.append((subject, group, deliveries))
            self._work_back.set()

    async def nack(self, subject: int, group: int, deliveries: I64, delay_ms: int | None) -> RetryBatch:
        """Take leased deliveries back, due again in `delay_ms`; None for the group's own pauses. Durable when this returns.
        Raises DiskFull, StorageFailed, and what the pipeline raises."""
        clock = self._clock
        batch = self._broker.core.nack(subject, group, deliveries, delay_ms, clock.now_us(), clock.monotonic_us())
        self._leases.set()  # what waits in its place has a time of its own
        await self._retry(batch)
        return batch

    async def durable(self) -> None:
        """Wait until all that the broker has taken is on disk. Raises DiskFull, StorageFailed."""
        try:
            await self._broker.commit.durable()
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            raise StorageFailed(str(error)) from error

    async def _retry(self, batch: RetryBatch) -> None:
        """Send internal records through the pipeline, then settle the deliveries they stand for."""
        core = self._broker.core
        if batch.messages is not None:
            try:
                self._require_room(batch.messages)
                await self._pipeline.commit(batch.messages)
            except DelayServerError:
                core.abandon_retry(batch, self._clock.monotonic_us())
                raise
        core.settle_retry(batch)
        self._broker.pulls.acked(batch.subject, batch.group)
        await self.durable()

    def _require_room(self, messages: MessageBatch) -> None:
        size = len(messages.bodies) + len(messages.properties) + len(messages.ids) + ROW_OVERHEAD_BYTES * len(messages)
        try:
            self._room.require_redelivery(size)
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error

    async def _take_back(self) -> None:
        """What a client did not receive comes again at once, as after a nack without a delay."""
        while True:
            if not self._unreceived:
                self._work_back = trio.Event()
                await self._work_back.wait()
            subject, group, deliveries = self._unreceived.popleft()
            with suppress(DelayServerError, StoreError):  # refused for now: it comes again when its lease ends
                await self.nack(subject, group, deliveries, 0)
                self.given_back += len(deliveries)

    async def _end_leases(self) -> None:
        while True:
            deadline_us = self._broker.core.next_lease_deadline_us()
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
            for batch in self._broker.core.expired_leases(now_us, lease_us, EXPIRED_AT_ONCE):
                try:
                    await self._retry(batch)
                except DelayServerError:
                    await self._clock.sleep_ms(1000)  # refused for now; the deliveries stay leased
