"""The one place that builds real parts and starts the tasks. Everything else is handed what it needs.

`DelayServer` opens a data directory, recovers, serves, and stops cleanly; as role `broker` it serves consumers and other
servers only. One nursery owns all tasks: a crash of one is a crash of the server, never a log line and a silent stop.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import replace

import trio

from delayserver.broker.broker import Broker
from delayserver.broker.commit import BrokerCommit
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.pulls import PullService
from delayserver.broker_group import BrokerGroup
from delayserver.broker_node import NodeHealth
from delayserver.broker_service import BrokerService, EmbeddedNode
from delayserver.cancellation import Cancellation
from delayserver.chance import system_chance
from delayserver.checkpointing import Checkpointing
from delayserver.clock import Clock, SystemClock
from delayserver.day_tier import DayTier
from delayserver.deduplication import Deduplication
from delayserver.dispatcher import Dispatcher
from delayserver.front import BROKER, SERVER, Front
from delayserver.group_commit import GroupCommit
from delayserver.group_wheels import GroupWheels
from delayserver.housekeeping import Housekeeping
from delayserver.intake import Intake
from delayserver.latency import LatencyHistogram
from delayserver.loader import Loader
from delayserver.locator import Locator
from delayserver.lookup import Lookup
from delayserver.message_reader import AHEAD_BYTES_MAX, MessageReader
from delayserver.on_their_way import OnTheirWay
from delayserver.orphans import find_orphans
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.publisher import Publisher
from delayserver.recovery import Opened, count_accepted, count_placed, find_lost_broker, open_directory
from delayserver.remote_node import RemoteNode
from delayserver.replayer import Replayer
from delayserver.retention import Retention
from delayserver.routes import Routes
from delayserver.rows import ROW
from delayserver.settings import DispatchSettings, GroupSettings, Settings, for_broker, for_frames
from delayserver.status import Status
from delayserver.stopping import finish
from delayserver.transport import Connect, Listener, connect_socket
from delayserver.turns import Turns
from delayserver.window_book import WindowBook
from store.filesystem import FileSystem, RealFileSystem
from store.names import BROKER_GROUP
from wheel.cursors import LoadCursors
from wheel.hashed_wheel import HashedWheel

logger = logging.getLogger("delayserver")

Ready = Callable[[str, int], None]

# One record of a group that shares the event loop: reading it back takes half a millisecond.
SHARED_READ_AHEAD_BYTES = 128 * 1024


class DelayServer:
    """One server on one data directory. `open` recovers, `run` serves until `stop` or cancellation."""

    def __init__(
        self,
        settings: Settings,
        *,
        role: str = SERVER,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        chance: random.Random | None = None,
        connect: Connect = connect_socket,
    ) -> None:
        if role == BROKER:
            # The delay pipeline of a lone broker carries its own redeliveries, to itself.
            settings = for_broker(settings)
        self.settings = for_frames(settings)
        self.role = role
        self.clock: Clock = clock or SystemClock()
        self.fs: FileSystem = fs or RealFileSystem()
        self._chance = chance or system_chance()
        self._connect = connect
        self.ready = False
        self.stopping = trio.Event()
        self._remote: dict[str, RemoteNode] = {}
        self.address = ("", 0)

    # -- building

    def open(self) -> None:
        """Lock and recover the data directory, build all parts. Raises StoreError and its kinds."""
        holder = f"process {os.getpid()} (delayserver {self.role})"
        self.opened = open_directory(self.fs, self.settings, self.clock, self._chance, holder, self.role)
        self._build_storage(self.opened)
        self._build_dispatch(self.opened)
        self._build_front(self.opened)

    def _build_storage(self, opened: Opened) -> None:
        settings, storage = self.settings, self.settings.storage
        self.book = WindowBook(opened.schedule, opened.dispatch)
        self.book.open()
        self.recorder = OutcomeRecorder(
            opened.dispatch, opened.days, self.fs, settings.dispatch, storage.window_ms, self.clock
        )
        self.recorder.on_corruption = self._report_corruption
        self.deduplication = Deduplication(opened.schedule, opened.days)
        self.deduplication.on_corruption = self._report_corruption
        self.replayer = Replayer(
            opened.log,
            opened.schedule,
            opened.days,
            self.deduplication,
            self.fs,
            storage,
            self.clock,
            position=opened.checkpoint.replay_offset if not opened.checkpoint_lost else opened.log.first,
            replayed_sequence=opened.checkpoint.replayed_sequence,
        )
        self.replayer.count_skipped = not opened.checkpoint_lost
        self.tier = DayTier(
            opened.days,
            opened.schedule,
            opened.dispatch,
            self.recorder,
            self.replayer,
            self.deduplication,
            self.fs,
            storage,
            self.clock,
        )
        self.tier.on_corruption = self._report_corruption
        self.tier.open()
        drains = opened.checkpoint.coarse_days
        self.tier.positions = dict(zip(drains.start_ms.tolist(), drains.drain_offset.tolist(), strict=True))
        self.recorder.day_outcomes = self.tier.outcomes
        self.commit = GroupCommit(
            opened.log, opened.sequences, self.fs, storage, self.clock, publish=self.replayer.feed
        )
        self.commit.replayed(self.replayer.position)
        self.replayer.on_progress = self.commit.replayed
        start_ms = self.clock.now_ms() // settings.wheel.tick_ms * settings.wheel.tick_ms
        codes = opened.names.intern(BROKER_GROUP, [group.name for group in settings.groups]).tolist()
        self.group_codes = {group.name: code for group, code in zip(settings.groups, codes, strict=True)}
        self.routes = Routes(settings.routes, self.group_codes, opened.names)
        self.wheel = GroupWheels(
            {
                code: HashedWheel(start_ms, settings.wheel.tick_ms, settings.wheel.slots, payload_dtype=ROW)
                for code in codes
            },
            self.routes,
        )
        self.cursors = LoadCursors(storage.window_ms)
        self.loader = Loader(
            opened.schedule,
            self.book,
            self.recorder,
            self.wheel,
            self.cursors,
            self.fs,
            settings.wheel,
            storage.window_ms,
            self.clock,
        )
        self.loader.not_done_elsewhere = self.tier.not_done
        self.loader.has_replayed = self.replayer.has_replayed
        self.loader.has_published = self.replayer.has_published
        self.loader.maybe_attempted = opened.attempted.maybe
        self.loader.result_unknown = opened.attempted.unknown
        self.loader.on_corruption = self._report_corruption
        self.replayer.on_corruption = self._report_corruption
        for files in (opened.schedule, opened.dispatch):
            files.tell_damage(self._report_corruption)
        self.retention = Retention(
            opened.schedule,
            opened.dispatch,
            opened.log,
            opened.ledger,
            self.book,
            self.cursors,
            self.recorder,
            self.deduplication,
            self.fs,
            storage,
            self.clock,
        )
        self.retention.is_draining = opened.days.is_draining
        self.retention.on_corruption = self._report_corruption
        self.replayer.retired_up_to = self.retention.retired_up_to
        self.replayer.sums_wanted = self.cursors.is_taken
        self.retention.finish_interrupted()
        self._count_totals(opened)

    def _count_totals(self, opened: Opened) -> None:
        for key in opened.dispatch.keys():
            self.recorder.totals += opened.dispatch.counts(key)
        self.recorder.totals += self.retention.retired_totals() - self.tier.moved_already
        self.recorder.durable_totals[:] = self.recorder.totals

    def _build_dispatch(self, opened: Opened) -> None:
        settings = self.settings
        server_id = opened.directory.server_id
        limits = settings.broker
        lost = find_lost_broker(self.fs, opened)
        if lost is not None:
            self._report_corruption(lost)
        # Several groups take turns on the event loop: a consumer that lags reads back little in one step.
        shared = {"read_ahead_bytes": SHARED_READ_AHEAD_BYTES} if len(settings.groups) > 1 else {}
        self.broker = Broker.open(
            self.fs,
            f"{opened.directory.path}/broker",
            server_id,
            self.clock.now_us(),
            BrokerLimits(
                segment_bytes=limits.segment_bytes,
                cache_bytes_max=limits.cache_bytes_max,
                ack_timeout_ms_default=limits.ack_timeout_ms,
                retention_ms=limits.retention_ms,
                unconsumed_retention_ms=limits.unconsumed_retention_ms,
                groups_max=limits.groups_max,
                waiting_pulls_max=limits.waiting_pulls_max,
                pull_messages_max=limits.pull_messages_max,
                **shared,
            ),
        )
        self.broker_commit = BrokerCommit(self.broker, self.clock, threads=not self.fs.inline)
        self.turns = Turns(self.clock)
        self.replayer.take_turn = self.turns.take
        self.pulls = PullService(self.broker, self.turns, self.clock)
        if len(settings.groups) > 1:
            self.pulls.turn_rows_max = settings.wheel.shared_slice_rows
            self.recorder.hot_ms_max = 0
        self.groups = {
            self.group_codes[group.name]: self._build_group(group, self.group_codes[group.name], opened)
            for group in settings.groups
        }
        self.dispatcher = Dispatcher(
            self.wheel, self.groups, self.routes, self.loader, self.recorder, opened.horizon,
            self.fs, settings.wheel, self.clock,
        )  # fmt: skip
        self.loader.on_added = self.dispatcher.wake
        self.publisher = Publisher(
            self.replayer,
            self.book,
            self.cursors,
            self.loader,
            self.dispatcher,
            self.recorder,
            settings.wheel,
            self.clock,
        )
        self.publisher.accepted = opened.checkpoint.totals.get("accepted", 0)
        self.publisher.internal = opened.checkpoint.totals.get("internal", 0)
        if opened.checkpoint_lost:
            self.publisher.accepted, self.publisher.internal = count_accepted(opened)
        self.publisher.on_corruption = self._report_corruption
        self.replayer.publish = self.publisher.publish
        self.tier.publish_drained = self.publisher.publish_drained
        self.tier.is_taken = self.cursors.is_taken
        self.checkpointing = Checkpointing(
            self.fs, f"{opened.directory.path}/checkpoint", server_id, opened.schedule, opened.dispatch, self.replayer,
            self.recorder, self.publisher, self.tier, self.book, opened.horizon, settings.storage, self.clock,
            None if opened.checkpoint_lost else opened.checkpoint,
        )  # fmt: skip
        self.retention.durable_position = lambda: self.checkpointing.durable_position

    def _build_group(self, group: GroupSettings, code: int, opened: Opened) -> BrokerGroup:
        server_id = opened.directory.server_id
        nodes = []
        for node in group.nodes:
            if node.address == EmbeddedNode.address:
                broker: EmbeddedNode | RemoteNode = EmbeddedNode(
                    self.broker, self.broker_commit, self.pulls, self.clock, server_id
                )
            else:
                # One connection, whichever groups share the node: it refuses what comes over an older one.
                broker = self._remote.get(node.address) or RemoteNode(
                    node.address, server_id, self.settings.listen.frame_bytes_max, self._connect, opened.names.name
                )
                self._remote[node.address] = broker
            nodes.append(NodeHealth(broker, node.weight, self.settings.dispatch, self._chance.random))
        ahead_bytes_max = AHEAD_BYTES_MAX // len(self.settings.groups)
        built = BrokerGroup(
            group.name,
            code,
            nodes,
            MessageReader(opened.schedule, server_id, self.fs, self.turns, self.clock, ahead_bytes_max),
            self.recorder,
            opened.attempted,
            self._shared_dispatch(),
            self.turns,
            self.clock,
        )
        built.on_corruption = self._report_corruption
        return built

    def _shared_dispatch(self) -> DispatchSettings:
        """Several groups take turns on the event loop: each hands over in small steps."""
        settings = self.settings
        if len(settings.groups) == 1:
            return settings.dispatch
        rows = min(settings.dispatch.batch_messages_max, settings.wheel.shared_slice_rows)
        return replace(settings.dispatch, batch_messages_max=rows)

    def _build_front(self, opened: Opened) -> None:
        settings = self.settings
        self.lateness = LatencyHistogram()
        for group in self.groups.values():
            group.on_lateness = self.lateness.add
        self.intake = Intake(settings.message, opened.names, self.clock, self.retention.oldest_due_ms)
        self.intake.on_storage_failed = self.commit.storage_failed
        self.locator = Locator(opened.schedule, opened.days, settings.storage.window_ms)
        self.locator.on_corruption = self._report_corruption
        self.cancellation = Cancellation(
            self.commit,
            self.replayer,
            self.locator,
            self.recorder,
            self.wheel,
            self.loader,
            list(self.groups.values()),
            opened.attempted,
            lambda: self.commit.highest_sequence,
            self.fs,
            settings.storage.window_ms,
            self.clock,
        )
        self.cancellation.are_retired = self.retention.are_retired
        window_ms, groups = settings.storage.window_ms, list(self.groups.values())
        coming = OnTheirWay(self.commit, opened.log, self.replayer, window_ms, inline=self.fs.inline)
        self.retention.on_their_way, self.retention.on_closed = coming.windows, self.intake.ask_again
        self.lookup = Lookup(
            self.cancellation, self.recorder, opened.dispatch, groups, self.retention, opened.names, window_ms
        )
        self.broker_service = BrokerService(
            self.broker,
            self.broker_commit,
            self.pulls,
            opened.names,
            self.intake,
            self.commit,
            settings.broker,
            self.turns,
            self.clock,
        )
        self.housekeeping = Housekeeping(
            self.fs, opened, self.replayer, self.book, self.groups, self.dispatcher, settings, self.clock
        )
        self.recorder.on_durable = self.housekeeping.outcomes_durable
        self.status = Status(self)
        self.front = Front(self)
        self.handlers = self.front.handlers

    def _report_corruption(self, error: Exception) -> None:
        text = str(error)
        if text not in self.opened.damages and len(self.opened.damages) < 1000:
            self.opened.damages.append(text)
            logger.error("corruption: %s (run `delayserver recover check` on a copy)", text)

    # -- running

    async def run(self, listener: Listener, ready: Ready | None = None) -> None:
        """Serve until `stop`. Raises StoreError when a sync failed; a restart recovers."""
        self.address = listener.address
        async with trio.open_nursery() as nursery:
            for task in (self.commit.run, self.replayer.run, self.recorder.run, self.broker_service.run):
                nursery.start_soon(task)
            for node in self._remote.values():
                nursery.start_soon(node.run)
            await self._recover()
            nursery.start_soon(self.commit.warm)
            for task in (self.loader.run, self.dispatcher.run, self.dispatcher.refill, self.tier.run,
                         self.checkpointing.run, self.retention.run, self.housekeeping.run):  # fmt: skip
                nursery.start_soon(task)
            for group in self.groups.values():
                nursery.start_soon(group.run)
            nursery.start_soon(self.front.accept, listener, nursery)
            self.ready = True
            if ready is not None:
                ready(*self.address)
            await self.stopping.wait()
            listener.close()
            await finish(self)
            nursery.cancel_scope.cancel()

    async def _recover(self) -> None:
        """Replay what the checkpoint does not cover before anything may be loaded: a cancel among it must count."""
        found = self.commit.highest_sequence
        await self.replayer.caught_up.wait()
        if not self.opened.checkpoint_lost:
            self.publisher.count(*count_placed(self.opened, self.replayer.replayed_sequence))
        self.replayer.passed(found)
        await self.publisher.finish_recovery()
        await self.recorder.flush()
        await find_orphans(self)
        self.commit.accepted_before = self.publisher.accepted
        self.book.open()

    def stop(self) -> None:
        """Begin a clean stop."""
        self.stopping.set()

    def close(self) -> None:
        """Close all files."""
        self.opened.close()
