"""Group commit of the broker: while one sync runs, the next group gathers. Checkpoints and retention run beside it.

Hand-outs are written without a sync by the step that hands out, and `run_counts` syncs 0.1 s later what no ack has
synced. The page cache outlives the process, and a process is what a poison message takes down. It costs some 20 µs a
pull.

Everything of the broker shares these syncs, but for small publishes, which are synced where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from delayserver.broker.actions.given_up import first_of_segment
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.durability import BrokerSync
from delayserver.broker.service.shared_broker import SharedBroker
from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.disk_pace import DiskPace
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.segment_maker import SegmentMaker
from store.errors import DiskFullError, SyncFailedError

# Retention removes whole segments. A segment takes seconds to fill at least, so a look every few seconds is enough.
UPKEEP_MS = 5_000
# A hand-out is in the page cache at once. A loss of power forgets those of the last so many milliseconds, and of the sync
# after them.
COUNTS_MS = 100

Stored = Callable[[Exception | None], None]


class BrokerCommit:
    """Makes deliveries and acks durable for waiting callers. `run` is a task; its errors stop the server."""

    def __init__(
        self, broker: Broker, believable: BelievableClock, runtime: Runtime, shared: SharedBroker | None = None
    ) -> None:
        """`believable` is the clock of retention. `shared`: in a member of a cluster, whose log makes durable."""
        self._broker = broker
        self._shared = shared
        self._durability = broker.durability
        self._retention = broker.retention
        self._files = broker.state.files
        self._notes = broker.state.notes
        self._clock = runtime.clock
        self._believable = believable
        self._workers = runtime.workers
        self._work = trio.Event()
        self._gathering = _Group()
        self._failure: BaseException | None = None
        self._sync_lock = trio.Lock()
        self._upkeep_lock = trio.Lock()
        self._grown = Bell()
        self._closing = False
        self._closed = False
        self._maker = SegmentMaker(broker.state.room, runtime)
        # Whether the event loop may wait for a small sync of the store itself.
        self.pace = DiskPace()

    async def durable(self) -> None:
        """Wait until all deliveries and acks so far are durable.

        Raises DiskFullError (try again later), SyncFailedError (final), and InDoubt if a member leads no longer.
        """
        if self._failure is not None:
            raise SyncFailedError("an earlier sync of the broker failed; restart to recover") from self._failure
        if not self._durability.needs_sync() and not self._durability.syncing:
            return
        group = self._gathering
        self._work.set()
        await group.done.wait()
        if group.failure is not None:
            # Each caller gets its own error: a shared one would collect and keep the frames of all callers.
            raise type(group.failure)(*group.failure.args)

    async def wait_stored(self, end: int) -> None:
        """Waits until the store is durable up to an offset, even if acks of the same group find no room on the disk.
        Raises as `durable`."""
        try:
            await self.durable()
        except DiskFullError:
            if self._files.store.synced < end:
                raise

    def when_stored(self, end: int, done: Stored) -> None:
        """Call `done` in the step in which the store is known to be durable up to an offset. It gets None then, otherwise
        the error: as `wait_stored` raises it."""
        if self._failure is not None:
            done(SyncFailedError("an earlier sync of the broker failed; restart to recover"))
            return
        self._gathering.add(end, done)
        self._work.set()

    def soon(self) -> None:
        """Request a sync of all deliveries and acks so far, without waiting for it."""
        self._work.set()

    async def run(self) -> None:
        """Sync whenever a caller waits or `soon` was called. Raises SyncFailedError."""
        try:
            await self._run()
        finally:
            # Some waiting callers are shielded from cancellation, so a stop would hang without these answers.
            ended = SyncFailedError("the broker has stopped; its syncs have ended")
            self._failure = self._failure or ended
            self._gathering.fail(ended)
            self._gathering.done.set()

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work = trio.Event()
            group, self._gathering = self._gathering, _Group()
            try:
                await self._sync()
            except DiskFullError as error:
                group.fail(error)
            except DelayServerError as error:  # this process leads no longer: it ends
                group.fail(error)
                group.end(self._files.store.synced)
                await trio.sleep_forever()
            except BaseException as error:
                self._failure = error
                group.fail(SyncFailedError("the broker's sync failed; restart to recover"))
                raise
            finally:
                group.end(self._files.store.synced)
                if self._failure is not None:
                    self._gathering.fail(group.failure)
                    self._gathering.end(self._files.store.synced)

    async def run_upkeep(self) -> None:
        """Every few seconds, write a checkpoint if one is due, and apply retention. A full disk delays both. A member that
        leads no longer ends."""
        while True:
            await self._clock.sleep_ms(UPKEEP_MS)
            try:
                await self._upkeep()
            except (DiskFullError, InDoubt):
                continue

    async def run_counts(self) -> None:
        """Sync what was handed out, if no other sync does so in time."""
        while True:
            await self._broker.counted.rung()
            self._broker.counted.hush()
            await self._clock.sleep_ms(COUNTS_MS)
            if not self._closing and not self._notes.counts_synced:
                self.soon()

    async def run_ahead(self) -> None:
        """Make the next segments of the store and the index before an append needs them."""
        while True:
            await self._grown.rung()
            self._grown.hush()
            for log in self._files.logs:
                if log.end >= log.prepare_from and await self._maker.make(log):
                    self._grown.ring()  # look again: it may have found no room

    async def _upkeep(self) -> None:
        async with self._upkeep_lock:
            if self._closed:
                return
            if self._shared is not None:
                self._shared.forget_windows()
            now_us, latest_us = self._believable.now_us(), self._believable.latest_us()
            by_log = self._shared is not None and self._shared.gives_up()
            if self._shared is not None and by_log:
                if self._shared.leads:
                    await self._give_up(self._shared, now_us, latest_us)
                self._retention.give_up()
            if self._durability.checkpoint_due() or self._retention.needs_checkpoint(now_us, latest_us, by_log=by_log):
                with suppress(DiskFullError):  # retention may make room
                    await self._checkpoint()
            self._retention.retire(now_us, latest_us, alone=self._shared is None, by_log=by_log)
            for cuts in self._retention.block_cuts():
                await self._workers.run(cuts.load)
                cuts.finish()

    async def _give_up(self, shared: SharedBroker, now_us: int, latest_us: int) -> None:
        """Let all members give up what this primary needs no more. Where the next segment cannot be read, a later one is
        waited for."""
        base = self._retention.to_give_up(now_us, latest_us)
        if base:
            await self.durable()  # so the log has the acks that made it so, in front
            found = await self._workers.run(partial(first_of_segment, self._files.store, base))
            if found is not None:
                await shared.give_up(*found)

    async def _checkpoint(self) -> None:
        """Write a checkpoint. With many queues its steps on the event loop are short, and others run between them."""
        with self._durability.checkpoint_capture() as capture:
            while capture.step():
                await trio.lowlevel.checkpoint()
            plan = capture.plan()
        if self._shared is not None:  # a start may go back to the mark before
            if self._shared.leads:
                await self.durable()
            await self._shared.mark()
        await self._workers.run(plan.run)
        for _ in self._durability.finish_checkpoint(plan):
            await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Close the broker's files cleanly. Waits for a running sync and checkpoint, and lets no other one begin."""
        self._closing = True
        async with self._sync_lock, self._upkeep_lock:
            self._closed = True
            for log in self._files.logs:
                log.drop_prepared()
            if self._shared is None:
                self._broker.close()
            else:  # the checkpoint of the end has written a mark
                self._broker.abandon()

    async def _sync(self) -> None:
        async with self._sync_lock:
            if not self._closed:
                await (self._sync_locked() if self._shared is None else self._shared.sync())
                if any(log.end >= log.prepare_from for log in self._files.logs):
                    self._grown.ring()
                return
        # The files are closed. Callers that still wait are answered when `run` ends.
        await trio.sleep_forever()

    async def _sync_locked(self) -> None:
        plan: BrokerSync = self._durability.sync_plan()
        finished = False
        started_us = self._clock.monotonic_us()
        try:
            await self._workers.run(plan.run)
            finished = True
            if not self.pace.quick:  # otherwise small groups measure it themselves
                self.pace.add_sync(self._clock.monotonic_us() - started_us)
        finally:
            if finished:
                self._durability.finish_sync()
            else:
                self._durability.abort_sync(plan)


class _Group:
    __slots__ = ("_stored", "done", "failure")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure: Exception | None = None
        self._stored: list[tuple[int, Stored]] = []

    def add(self, end: int, done: Stored) -> None:
        """`done` waits for the store up to an offset."""
        self._stored.append((end, done))

    def end(self, synced_offset: int) -> None:
        """The sync has ended, once for each who waits. The store is durable up to an offset, also where acks of the group
        found no room."""
        self.done.set()
        stored, self._stored = self._stored, []
        for end, done in stored:
            done(None if isinstance(self.failure, DiskFullError) and synced_offset >= end else self.failure)

    def fail(self, error: Exception | None) -> None:
        """All that wait for the group get this error."""
        self.failure = error
