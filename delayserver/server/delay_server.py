"""`DelayServer` opens a data directory, recovers, serves, and stops cleanly. `parts.py` builds what it runs; `tasks.py`
lists its tasks.

As role `broker` it serves consumers and other servers only. One nursery owns all tasks: a crash of one is a crash of the
server, never a log line and a silent stop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import trio

from delayserver.config.pacing import Pacing
from delayserver.config.settings import (
    Settings,
    for_broker,
    for_frames,
)
from delayserver.front.front import BROKER, SERVER, Front, Service
from delayserver.front.handlers.table import handler_table
from delayserver.logs.events import EventLogger
from delayserver.net.transport import StreamListener
from delayserver.operations.access.tokens import OwnTokens
from delayserver.operations.nodes.reload import Reread
from delayserver.operations.nodes.servers import Servers
from delayserver.runtime.error_groups import first_of
from delayserver.runtime.fair_turns import FairTurns
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogUnavailable
from delayserver.runtime.steps import Steps
from delayserver.runtime.watchdog import Watchdog
from delayserver.server.broker_parts import settle_doubts_of_primary
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Doors, Ground, Membership, Outside
from delayserver.server.operations_of import operations_of
from delayserver.server.parts import Parts, build_parts
from delayserver.server.tasks import tasks_by_stage
from delayserver.startup.directory_opening import open_directory
from delayserver.startup.diverged import keep_diverged
from delayserver.state.connections.connection_memory import ConnectionMemory
from delayserver.state.connections.connections import Connections
from delayserver.state.connections.parties import Parties
from delayserver.state.positions.readiness import Readiness, Stage
from store.errors import DiskFullError, DivergedError, StoreError, UnreadableError

events = EventLogger()

Ready = Callable[[str, int], None]

# A directory that was in use opens in the room that its files have kept. One that is new, or of an older version, needs
# some blocks.
OPENING_BYTES = 64 * 1024
# So often a start reads a data directory that the disk cannot read, with a pause before each further time. The last time it
# goes around what cannot be read: messages of there are lost to it.
OPEN_TRIES = 3
# An heir that lives claims at once.
HEIR_MS = 1_000
OPEN_AGAIN_MS = 1_000


class LeadershipLost(Exception):
    """Another member leads, and this process did. It drops its memory: open the directory again, as a standby."""


def holder_of(role: str) -> str:
    """This process, in the error of a program that finds the data directory locked."""
    return f"process {os.getpid()} (delayserver {role})"


class DelayServer:
    """One server on one data directory. `open` recovers, `run` serves until `stop` or cancellation."""

    def __init__(
        self,
        settings: Settings,
        *,
        role: str = SERVER,
        runtime: Runtime | None = None,
        doors: Doors | None = None,
        reread: Reread | None = None,
        trusting: bool = False,
        membership: Membership | None = None,
    ) -> None:
        """`reread` reads the settings again, for `reload`. `trusting`: no client needs a token, since all of them belong to
        this program. `membership` makes it a member of a cluster."""
        self._trusting = trusting
        # The delay pipeline of a lone broker carries its own redeliveries, to itself.
        self.settings = for_frames(for_broker(settings) if role == BROKER else settings)
        self.role = role
        self.runtime = runtime or Runtime.on()
        self.clock, self.turns, self.damage = self.runtime.clock, self.runtime.turns, self.runtime.damage
        doors = doors or Doors()
        self.fs = doors.fs
        path = self.settings.storage.data_dir
        self.opening_room = RoomWait(self.fs, path, "the start of the server", self.clock)
        self.replay_room = RoomWait(self.fs, path, "the replay of accepted messages", self.clock)
        self.log_room = RoomWait(self.fs, path, "the copy of the shared log", self.clock)
        self.readiness = Readiness((self.opening_room, self.replay_room, self.log_room))
        # One for each process. By it a node distinguishes two processes with one server id.
        instance = f"{self.runtime.chance.getrandbits(64):016x}"
        self.servers = Servers(self.settings.listen, self.runtime)
        self.own_tokens = OwnTokens(self.runtime)
        self._parts: Parts | None = None
        self.stopping = self.readiness.stopping
        self._starting = trio.CancelScope()
        self._superseded = False
        self.address = ("", 0)
        self.fair_turns = FairTurns(self.turns, self.clock)
        self.watchdog = Watchdog(self.clock, self.settings.stall_log_ms)
        listen = self.settings.listen
        memory = ConnectionMemory(
            listen.memory_bytes_max,
            listen.memory_bytes_each,
            listen.unsent_bytes_max,
            listen.memory_bytes_of_client_max,
        )
        self.connections = Connections(memory, Parties(listen.shared_networks))
        self.front = Front(
            listen,
            role,
            self.readiness,
            self.connections,
            self.servers,
            self.fair_turns,
            self.runtime,
        )
        self.handlers = self.front.handlers
        self._outside = Outside(
            role,
            instance,
            doors,
            settings,
            reread,
            self.readiness,
            self.replay_room,
            self.log_room,
            self.servers,
            self.own_tokens,
            self.connections,
            self.watchdog,
            membership,
        )

    # -- building

    def open(self, *, patient: bool = False) -> None:
        """Lock and recover the data directory, build all parts; for any thread. Raises StoreError and its kinds: all is
        closed then, and after a DiskFullError or an UnreadableError it can be called again. With `patient` raises the
        latter where the disk cannot read something that it looks at; without, it goes around that."""
        holder = holder_of(self.role)
        membership, settings = self._outside.membership, self.settings
        member = None
        if membership is not None:
            # A member takes over its groups with the leadership: their names come through the log.
            settings = replace(settings, groups=(), routes=())
            member = membership.member
        opened = open_directory(self.fs, settings, self.runtime, holder, self.role, member=member, patient=patient)
        try:
            pacing = Pacing.of(self.settings)
            self._parts = build_parts(Ground(opened, self._outside, settings, pacing, self.runtime, patient))
        except StoreError:
            opened.close()
            raise

    @property
    def parts(self) -> Parts:
        """The parts of the server. The data directory must be open."""
        assert self._parts is not None, "the data directory is not open"
        return self._parts

    @property
    def is_open(self) -> bool:
        """Whether the data directory is open."""
        return self._parts is not None

    @property
    def read_last(self) -> Settings:
        """The settings as the operator gave them, or as a reload has read them since: those of the next life."""
        return self.parts.dispatch.reload.settings if self.is_open else self._outside.given

    # -- running

    async def run(
        self, listener: StreamListener, ready: Ready | None = None, *, opened: Callable[[], None] | None = None
    ) -> None:
        """Open the data directory (unless `open` did), recover, serve until `stop`. Requests are answered from the first
        moment on, as `not_ready` until it is. `opened` is called when the directory is open, `ready` when all is served.

        Raises what `open` raises but for a full disk, which is waited for, and StoreError when a sync failed; a restart
        recovers."""
        with self.watchdog.watching():
            try:
                await self._run(listener, ready, opened)
            except BaseExceptionGroup as group:
                self._keep_diverged(group)
                raise

    def _keep_diverged(self, group: BaseExceptionGroup[BaseException]) -> None:
        found = group.subgroup(DivergedError)
        error = None if found is None else first_of(found)
        if isinstance(error, DivergedError):
            with contextlib.suppress(StoreError):
                keep_diverged(self.fs, self.settings.storage.data_dir, error)

    async def _run(self, listener: StreamListener, ready: Ready | None, opened: Callable[[], None] | None) -> None:
        self.address = listener.address
        failure: StoreError | OSError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.front.accept, listener, nursery)
            if self._outside.membership is not None:
                nursery.start_soon(self.front.end_when_divided, self._outside.membership.map)
            with self._starting:
                try:
                    await self._open_when_there_is_room()
                except (StoreError, OSError) as error:  # for the caller as it is, not in a group
                    failure = error
                else:
                    parts = self.parts
                    table = handler_table(operations_of(parts, listener.addresses), self.settings, self.clock)
                    steps = Steps((parts.receive.commit, parts.broker.publishing))
                    leading = None if parts.cluster is None else parts.cluster.leading
                    if leading is not None:
                        self.readiness.pause_while(leading.why_not, leading.handing_over)
                    self.front.open(Service(steps, table, parts.groups.tokens, self._trusting, leading))
                    if opened is not None:
                        opened()
                    await self._start(nursery)
            if self.readiness.ready:
                if ready is not None:
                    ready(*self.address)
                host, port = self.address
                events.info("ready", "ready on {host} port {port}", host=host, port=port, role=self.role)
                await self.stopping.wait()
            if failure is None:
                events.info("stopping", "stopping; what is in flight is settled first")
                listener.close()
                await self._finish()
                events.info("stopped", "stopped")
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self._superseded:
            raise LeadershipLost("another member of the cluster leads")

    async def _open_when_there_is_room(self) -> None:
        tries = OPEN_TRIES
        while not self.is_open:
            try:
                # A stop does not wait for it: it is as safe as a kill, which may come at any moment of a start.
                await self.runtime.workers.run(partial(self.open, patient=tries > 1), abandon_on_cancel=True)
            except DiskFullError as error:
                self.opening_room.full(OPENING_BYTES, error)
                events.info("start_waits_for_room", "the start waits for room: {reason}", reason=str(error))
                await self.clock.sleep_ms(self.opening_room.pause_ms)
            except UnreadableError as error:
                tries -= 1
                if not tries:
                    raise
                self.damage.report(error)
                await self.clock.sleep_ms(OPEN_AGAIN_MS)
        self.opening_room.resume()

    async def _start(self, nursery: trio.Nursery) -> None:
        """Replay, then start all that serves."""
        parts = self.parts
        parts.receive.commit.refuse(self.readiness.refusal())
        recovery = parts.recovery
        self._start_tasks(nursery, Stage.REPLAYING)
        if not self._trusting:
            nursery.start_soon(self.front.guard)
        self._enter(Stage.REPLAYING)
        if parts.cluster is not None:
            await self._follow(nursery, parts.cluster)
            self._start_delivering(nursery)
        elif await recovery.try_replay() or not recovery.may_deliver_meanwhile():
            await recovery.finish()
            self._start_delivering(nursery)
        else:  # the replay waits for room: deliver what is placed already
            async with trio.open_nursery() as horizon:
                horizon.start_soon(parts.upkeep.checkpointing.run_horizon)
                await recovery.hold_cancels()
                self._start_delivering(nursery)
                self._enter(Stage.DELIVERING)
                await recovery.finish()
                horizon.cancel_scope.cancel()
        self._start_tasks(nursery, Stage.READY)
        parts.receive.commit.accept()
        self._enter(Stage.READY)

    async def _follow(self, nursery: trio.Nursery, cluster: ClusterParts) -> None:
        """Follow the shared log until this process leads, and has applied all that came before its claim."""
        parts = self.parts
        await parts.recovery.finish()
        self._start_tasks(nursery, Stage.FOLLOWING)
        self._enter(Stage.FOLLOWING)
        nursery.start_soon(self._tell_when_following, cluster)
        await cluster.claiming.run()
        cluster.standing.acts.set()
        claimed, horizon_ms = cluster.standing.read.value, cluster.standing.horizon_ms
        nursery.start_soon(cluster.beating.run)
        nursery.start_soon(self._end_when_superseded, nursery.cancel_scope, cluster)
        nursery.start_soon(self._end_after_hand_over, nursery.cancel_scope)
        await self._apply_to(claimed, cluster)
        sequence = parts.state.positions.accepted_sequence.value
        parts.opened.attempts.attempted.begin(horizon_ms + 1, sequence + 1)
        parts.state.balance.subjects.redeliveries.begin(sequence, frozenset())
        parts.receive.names.lead()
        await self._take_over_broker(cluster)
        await cluster.standing.lease.reached(1)
        if not cluster.standing.leads:
            await trio.sleep_forever()  # superseded already: nothing may be decided any more
        cluster.standing.took_over.set()
        membership = self._outside.membership
        assert membership is not None
        membership.map.led.advance(cluster.standing.epoch.value)
        await parts.dispatch.reload.lead()

    async def _apply_to(self, position: int, cluster: ClusterParts) -> None:
        """What other members decided before this position is in dispatch_log before this one decides anything."""
        positions = self.parts.state.positions
        await cluster.standing.applied.reached(position)
        await positions.replayed.reached(positions.durable.value)
        await self.parts.outcomes.recorder.flush()

    async def _take_over_broker(self, cluster: ClusterParts) -> None:
        core, shared = self.parts.broker.core, self.parts.broker.shared
        assert shared is not None, "a member has one"
        shared.take_over(cluster.standing.epoch.value)
        cluster.sequences.begin_above(shared.next_sequence)
        await settle_doubts_of_primary(core, self.parts.files.log, self.runtime.workers)

    async def _tell_when_following(self, cluster: ClusterParts) -> None:
        membership, standing = self._outside.membership, cluster.standing
        assert membership is not None
        while True:
            with contextlib.suppress(LogUnavailable):
                end = await cluster.log.ask()
                break
        # The record behind it shows who leads, and that the leader lives.
        await standing.read.reached(end + 1)
        if not standing.leads:
            membership.following(membership.leader_of(standing))

    async def _end_when_superseded(self, scope: trio.CancelScope, cluster: ClusterParts) -> None:
        standing = cluster.standing
        while standing.leads:
            await standing.epoch.reached(standing.epoch.value + 1)
        self._superseded = True
        scope.cancel()

    async def _end_after_hand_over(self, scope: trio.CancelScope) -> None:
        hand_over = self.parts.hand_over
        assert hand_over is not None
        await hand_over.run()
        await self.clock.sleep_ms(HEIR_MS)
        # The heir has not claimed: this member must be able to, in its next life.
        self._superseded = True
        scope.cancel()

    def _start_delivering(self, nursery: trio.Nursery) -> None:
        self._start_tasks(nursery, Stage.DELIVERING)
        nursery.start_soon(self.front.tell_steps, self.parts.upkeep.clock_stepped)

    def _start_tasks(self, nursery: trio.Nursery, stage: Stage) -> None:
        for task in tasks_by_stage(self.parts)[stage]:
            nursery.start_soon(task)

    def _enter(self, stage: Stage) -> None:
        self.readiness.enter(stage)
        self.front.enter(stage)

    # -- stopping

    def stop(self) -> None:
        """Begin a clean stop; of a server that is not ready yet, end its start."""
        self.stopping.set()
        self._starting.cancel()

    async def _finish(self) -> None:
        """Settle what is in flight, then write a clean end, so that the next start has nothing to recover. Past the bound,
        or without room, the next start recovers instead."""
        with trio.move_on_after(self.settings.shutdown_timeout_ms / 1000) as scope:
            try:
                await (self._settle() if self.readiness.ready else self._leave())
            except DiskFullError as error:
                events.warning(
                    "clean_end_failed",
                    "no room to write a clean end: {reason}; the next start will recover",
                    reason=str(error),
                )
        if scope.cancelled_caught:
            events.warning(
                "clean_end_timed_out",
                "not everything was settled in time; the next start will recover",
                timeout_ms=self.settings.shutdown_timeout_ms,
            )

    async def _settle(self) -> None:
        if self.parts.hand_over is not None:
            # What follows of the log is the next start's: its records may come while this process ends.
            await self.parts.hand_over.finish()
            return
        end = self.parts.end
        await end.settling.messages()
        uncertain = await end.checkpoint.write()
        self.handlers.close()
        await end.broker.close(uncertain)

    async def _leave(self) -> None:
        """A stop in the middle of a start: there is nothing to write down but what was delivered meanwhile."""
        if self.readiness.stage == Stage.FOLLOWING:
            return
        events.warning(
            "stopped_before_ready",
            "stopped before it was ready ({reason}); the next start begins again",
            reason=self.readiness.reason,
        )
        if self.readiness.stage == Stage.DELIVERING:
            await self.parts.end.settling.attempts()

    def close(self) -> None:
        """Close all files. A clean end has closed those of the broker already; a crash has not."""
        if self.is_open:
            self.parts.broker.core.abandon()
            self.parts.keys.index.close()
            self.parts.opened.close()
