"""Members of a shard for tests: the real log, follower and group commit, on a disk in memory and one shared log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import numpy as np
import trio

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.config.settings import StorageSettings
from delayserver.follow.follower import Follower
from delayserver.follow.patient_appender import PatientAppender
from delayserver.follow.shard_writer import ShardWriter
from delayserver.lead.beating import Beating
from delayserver.lead.claiming import Claiming, OwnDirectory
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.log_appender import LogAppender
from delayserver.runtime.marks import Bell
from delayserver.runtime.room_wait import RoomWait
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import (
    RECORD_BYTES_MAX,
    AppendFailed,
    LogDescription,
    LogLost,
    LogRecord,
    LogTrimmed,
    LogUnavailable,
)
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import Committed, Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.digest import Digest
from delayserver.state.shard.leader_horizon import LeaderHorizon
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.seat import Seat
from delayserver.state.shard.shard_sequences import ShardSequences
from delayserver.state.shard.standing import Standing
from store.disk.memory_filesystem import MemoryFileSystem
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import FollowedBatch, MessageBatch
from store.records.segment import Appendable
from store.shared.envelope import LogWriter, ShardIdentity
from store.shared.followed import followed_to
from store.tables.names import Names
from tests.fakes.clock import SimulatedClock
from tests.fakes.rows import messages
from tests.fakes.workers import FakeWorkers

IDENTITY = ShardIdentity(77, 5)


class Records:
    """What all logs of a shard share. `answers`: whether it lets anybody read or append."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        # The lowest position that can be read.
        self.first = 0
        self.grown = trio.Event()
        self.answers = True

    def add(self, record: bytes) -> None:
        self.data.append(record)
        self.ring()

    def ring(self) -> None:
        """All members look whether there is something to read."""
        self.grown.set()
        self.grown = trio.Event()


class ListLog:
    """One member's view. `connected`: whether it reaches the log; what it appends meanwhile lands when it does again."""

    def __init__(self, records: Records) -> None:
        self._records = records
        # How long the log takes to give a record to this member.
        self.delay_s = 0.0
        # Where its run began to read.
        self.began_at = -1
        self._unsent: list[bytes] = []
        self._connected = True
        self._paused = False
        self._lost_from: int | None = None
        self._failed = False

    def fail(self) -> None:
        """What this member has handed over can never be confirmed."""
        self._failed = True
        self._records.ring()

    def lose_from(self, count: int) -> None:
        """From the `count`th record on, nothing that this member appends from now on comes into the log."""
        self._lost_from = count

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        self.began_at = position
        if position > len(self._records.data):
            raise LogLost(0, len(self._records.data), position, "it has less than it had")
        while True:
            grown = self._records.grown
            if self._failed:
                raise AppendFailed("a record is longer than the log takes")
            if position < self._records.first:
                raise LogTrimmed(0, position, self._records.first)
            data = self._records.data[position:]
            if data and self._connected and not self._paused:
                await trio.sleep(self.delay_s)
                arrived([LogRecord(position + place, each) for place, each in enumerate(data)])
                position += len(data)
                await trio.lowlevel.checkpoint()
            else:
                await grown.wait()

    def append(self, record: bytes) -> None:
        if self._lost_from is not None:
            self._lost_from -= 1
            if self._lost_from < 0:
                return
        self._unsent.append(record)
        self._send()

    def _send(self) -> None:
        if self._connected:
            for record in self._unsent:
                self._records.add(record)
            self._unsent.clear()

    def connect(self, connected: bool) -> None:
        """Cut this member off, or let it reach the log again."""
        self._connected = connected
        self._send()
        self._records.ring()

    async def ask(self) -> int:
        await trio.lowlevel.checkpoint()
        if not self._connected:
            raise LogUnavailable("cut off")
        return len(self._records.data)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._records.ring()

    async def trim(self, position: int) -> None:
        await trio.lowlevel.checkpoint()
        self._records.first = max(self._records.first, position)

    async def describe(self) -> LogDescription:
        await trio.lowlevel.checkpoint()
        return LogDescription(3, 2, RECORD_BYTES_MAX, self._records.first, len(self._records.data), 3)


class Member:
    """One life of a member's process."""

    def __init__(
        self,
        name: str,
        number: int,
        records: Records,
        fs: MemoryFileSystem,
        instance: int,
        inline_bytes_max: int = 1 << 16,
    ) -> None:
        self.fs, self.records = fs, records
        storage, cluster = StorageSettings(), ClusterSettings(rank=number)
        self.clock, self.workers = SimulatedClock(), FakeWorkers()
        runtime = Runtime.on(clock=self.clock, workers=self.workers)
        self.log = MessageLog.open(fs, "/log", IDENTITY.server_id, segment_bytes=1 << 16)
        start = followed_to(self.log, self.log.first)
        self.shared = ListLog(records)
        seat = Seat(0, IDENTITY, LogWriter(number, instance), name, f"{name}:1")
        self.standing = Standing(seat, start, "1.2.3")
        fs.make_directory("/d")
        self.proposals = Proposals(
            self.shared, seat, Names.open(fs, "/d", IDENTITY.server_id, shared=True), runtime.clock
        )
        self.positions = Positions(durable=self.log.synced, accepted_sequence=0, replayed=0, replayed_sequence=0)
        self.queue = LogQueue(self.positions, runtime.clock)
        gathering = Gathering(storage, runtime.clock)
        self.accepted = AcceptedLog(self.queue, Balance(), gathering)
        appender = LogAppender(self.log, inline_bytes_max, runtime.clock, runtime.workers, assumed=False)
        self.digest = Digest(self.queue, {}, whole=True)
        self.room = RoomWait(fs, "/log", "the log", self.clock)
        appending = PatientAppender(appender, self.room, self.clock)
        self.follower = Follower(start, appending, self.accepted, self.standing, self.proposals, self.digest, runtime)
        writer = ShardWriter(self.proposals, self.accepted, self.positions)
        self.sequences = ShardSequences(self.positions.accepted_sequence)
        self.commit = GroupCommit(gathering, self.sequences, writer, self.accepted, self.positions, storage, runtime)
        # Nothing is replayed here.
        replayed = Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0)
        directory = OwnDirectory(runtime.damage, replayed)
        self.claiming = Claiming(self.shared, self.standing, self.proposals, ClusterMap(), cluster, directory)
        leading = Leading(self.standing, runtime.clock, cluster.lease_ms, cluster.log_wait_ms)
        self.horizon = LeaderHorizon(leading, Bell())
        self.beating = Beating(self.standing, self.horizon, self.proposals, self.digest, cluster, runtime.clock)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[trio.Nursery]:
        """Follows, and claims where the primary is silent."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.follower.run, self.shared)
            nursery.start_soon(self._lead)
            nursery.start_soon(self.commit.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def _lead(self) -> None:
        while True:
            await self.claiming.run()
            await self.beating.run()

    async def send(self, count: int = 2) -> Committed:
        """Commit messages, and wait for the answer."""
        return await self.commit.commit(fresh_messages(count))

    def contents(self) -> list[Appendable]:
        """The records of message_log, but for the places of the shared log."""
        return [
            entry.batch
            for entry in LogScan(self.log, self.log.first, self.log.end)
            if not isinstance(entry.batch, FollowedBatch)
        ]

    def marks(self) -> int:
        """How many times records were written to message_log."""
        return sum(isinstance(entry.batch, FollowedBatch) for entry in LogScan(self.log, self.log.first, self.log.end))


def fresh_messages(count: int) -> MessageBatch:
    """Messages that are not due soon, without sequences."""
    return messages(0, count).with_columns(origin_sequence=np.zeros(count, np.int64))
