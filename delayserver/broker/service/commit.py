"""Group commit of the broker: while one sync runs, the next group gathers. Checkpoints and retention have a task."""

from __future__ import annotations

from contextlib import suppress

import trio

from delayserver.broker.service.broker import Broker
from delayserver.broker.service.durability import BrokerSync, CheckpointWrite
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError, SyncFailedError

# Retention removes whole segments. A segment takes seconds to fill at least, so a look every few seconds is enough.
UPKEEP_MS = 5_000


class BrokerCommit:
    """Makes deliveries and acks durable for waiting callers. `run` is a task; its errors stop the server."""

    def __init__(self, broker: Broker, believable: BelievableClock, runtime: Runtime) -> None:
        """`believable` is the clock of retention."""
        self._broker = broker
        self._clock = runtime.clock
        self._believable = believable
        self._workers = runtime.workers
        self._work = trio.Event()
        self._gathering = _Group()
        self._failure: BaseException | None = None
        self._sync_lock = trio.Lock()
        self._upkeep_lock = trio.Lock()

    async def durable(self) -> None:
        """Wait until all deliveries and acks so far are durable.

        Raises DiskFullError (try again later) or SyncFailedError (final).
        """
        if self._failure is not None:
            raise SyncFailedError("an earlier sync of the broker failed; restart to recover") from self._failure
        if not self._broker.needs_sync() and not self._broker.syncing:
            return
        group = self._gathering
        self._work.set()
        await group.done.wait()
        if group.failure is not None:
            # Each caller gets its own error: a shared one would collect and keep the frames of all callers.
            raise type(group.failure)(*group.failure.args)

    async def stored(self, end: int) -> None:
        """Wait until the store is durable up to an offset, even if acks of the same group find no room on the disk.
        Raises as `durable`."""
        try:
            await self.durable()
        except DiskFullError:
            if self._broker.synced_offset < end:
                raise

    def soon(self) -> None:
        """Request a sync of all deliveries and acks so far, without waiting for it."""
        self._work.set()

    async def run(self) -> None:
        """Sync whenever a caller waits or `soon` was called. Raises SyncFailedError."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            group, self._gathering = self._gathering, _Group()
            try:
                await self._sync()
            except DiskFullError as error:
                group.fail(error)
            except BaseException as error:
                self._failure = error
                group.fail(SyncFailedError("the broker's sync failed; restart to recover"))
                raise
            finally:
                group.done.set()
                if self._failure is not None:
                    self._gathering.fail(group.failure)
                    self._gathering.done.set()

    async def run_upkeep(self) -> None:
        """Every few seconds, write a checkpoint if one is due, and apply retention. A full disk delays both."""
        while True:
            await self._clock.sleep_ms(UPKEEP_MS)
            try:
                await self._upkeep()
            except DiskFullError:
                continue

    async def _upkeep(self) -> None:
        async with self._upkeep_lock:
            now_us, latest_us = self._believable.now_us(), self._believable.latest_us()
            if self._broker.checkpoint_due() or self._broker.retires_past_checkpoint(now_us, latest_us):
                plan: CheckpointWrite = self._broker.checkpoint_plan()
                with suppress(DiskFullError):  # retention may make room
                    await self._workers.run(plan.run)
                    self._broker.finish_checkpoint(plan)
            self._broker.retire(now_us, latest_us)

    async def close(self) -> None:
        """Close the broker's files cleanly. Waits for a running sync and checkpoint, and lets no other one begin."""
        await self._sync_lock.acquire()
        await self._upkeep_lock.acquire()
        self._broker.close()

    async def _sync(self) -> None:
        async with self._sync_lock:
            await self._sync_locked()

    async def _sync_locked(self) -> None:
        plan: BrokerSync = self._broker.sync_plan()
        finished = False
        try:
            await self._workers.run(plan.run)
            finished = True
        finally:
            if finished:
                self._broker.finish_sync(plan)
            else:
                self._broker.abort_sync(plan)


class _Group:
    __slots__ = ("done", "failure")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure: Exception | None = None

    def fail(self, error: Exception | None) -> None:
        """All that wait for the group get this error."""
        self.failure = error
