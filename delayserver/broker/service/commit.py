"""Group commit of the broker: while one sync runs, the next group gathers. Checkpoints and retention go beside."""

from __future__ import annotations

from contextlib import suppress

import trio

from delayserver.broker.service.broker import Broker
from delayserver.broker.service.durability import BrokerSync, CheckpointWrite
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError, SyncFailedError

# Retention frees whole segments, which fill in seconds at the fastest: looking every few seconds is often enough.
UPKEEP_MS = 5_000


class BrokerCommit:
    """Makes the broker durable for whoever waits. `run` is a task of the server; when it raises, the server stops."""

    def __init__(self, broker: Broker, believable: BelievableClock, runtime: Runtime) -> None:
        """`believable`: retention goes by it."""
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
        """Wait until all that the broker has taken so far (deliveries, acks) is durable.

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
            # One for each caller: a shared one would gather the frames of all of them, and keep them.
            raise type(group.failure)(*group.failure.args)

    async def stored(self, end: int) -> None:
        """Wait until the store is durable up to an offset, also where acks of the same group find no room. Raises as
        `durable`."""
        try:
            await self.durable()
        except DiskFullError:
            if self._broker.synced_offset < end:
                raise

    def soon(self) -> None:
        """Make what was taken so far durable without anybody waiting for it."""
        self._work.set()

    async def run(self) -> None:
        """Sync whenever somebody waits. Raises SyncFailedError."""
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
        """Checkpoints when enough was stored, retention every few seconds. A full disk only puts them off."""
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
        """Close the broker's files cleanly, when no sync and no checkpoint is under way; none begins any more."""
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
