"""The group commit over a log that another process writes too: its groups are accepted when their records came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import trio
import trio.testing

from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import DelayServerError, DiskFull, StorageFailed
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup, Committed, Gathering
from delayserver.state.positions.log_queue import LogQueue
from delayserver.state.positions.positions import Positions
from store.disk.memory_filesystem import MemoryFileSystem
from store.errors import DiskFullError, StoreError, SyncFailedError
from store.logs.message_log import LogEntry
from store.records.batches import MessageBatch
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows
from store.tables.identity import SequenceReservation
from tests.fakes.clock import SimulatedClock
from tests.fakes.rows import messages

Records = Sequence[ColumnBatch | MessageRows]
RECORD_BYTES = 100


class Sent(NamedTuple):
    """Records of one writer on their way."""

    records: Records
    group: CommitGroup | None


class Member:
    """A process that reads the log: it accepts what arrives, and is the writer of its own group commit."""

    def __init__(self) -> None:
        settings, runtime = StorageSettings(), Runtime.on(clock=SimulatedClock())
        self.positions = Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0)
        self.queue = LogQueue(self.positions, runtime.clock)
        self.queue.catch_up()
        self.balance = Balance()
        gathering = Gathering(settings, runtime.clock)
        self.accepted = AcceptedLog(self.queue, self.balance, gathering)
        self.on_the_way: list[Sent] = []
        fs = MemoryFileSystem(1 << 20)
        fs.make_directory("/d")
        self.sequences = SequenceReservation.rebuild(fs, "/d", 1, above=100)
        self.commit = GroupCommit(gathering, self.sequences, self, self.accepted, self.positions, settings, runtime)

    def takes_now(self, size_bytes: int) -> bool:
        """Never: a record has to come back first."""
        return False

    def write_now(self, group: CommitGroup, records: Records) -> None:
        raise AssertionError("it takes none now")

    async def write(self, group: CommitGroup, records: Records) -> None:
        self.on_the_way.append(Sent(records, group))
        await trio.lowlevel.checkpoint()

    def unknown(self) -> DelayServerError:
        return StorageFailed("the server stopped")

    def arrive(self, records: Records, group: CommitGroup | None = None) -> None:
        """Records come out of the log."""
        entries, end = [], self.positions.durable.value
        for record in records:
            entries.append(LogEntry(end, end + RECORD_BYTES, record))
            end += RECORD_BYTES
        self.accepted.accept(entries, group)

    def arrive_own(self) -> None:
        """The first records of this process come back."""
        sent = self.on_the_way.pop(0)
        self.arrive(sent.records, sent.group)


class Refusing(Member):
    """Its log takes nothing."""

    error: StoreError

    async def write(self, group: CommitGroup, records: Records) -> None:
        await trio.lowlevel.checkpoint()
        raise self.error


async def test_a_group_is_answered_when_its_records_came_back_behind_those_of_others(nursery: trio.Nursery) -> None:
    member, told = Member(), list[Committed | DelayServerError]()
    first = member.sequences.next
    nursery.start_soon(member.commit.run)
    member.commit.submit(messages(0, 3).with_columns(origin_sequence=np.zeros(3, np.int64)), told.append)
    await trio.testing.wait_all_tasks_blocked()
    assert told == [] and member.positions.commits_begun.value == 1
    member.arrive([messages(98, 2).with_columns(origin_sequence=np.zeros(2, np.int64))])
    await trio.testing.wait_all_tasks_blocked()
    assert told == [], "what others wrote answers nobody here"
    assert member.balance.accepted == 2 and member.positions.accepted_sequence.value == 99
    member.arrive_own()
    [committed] = told
    assert isinstance(committed, Committed) and isinstance(committed.batch, MessageBatch)
    assert committed.first_sequence == first
    assert member.balance.accepted == 5 and member.positions.durable.value == 2 * RECORD_BYTES
    await trio.testing.wait_all_tasks_blocked()
    assert member.positions.commits_ended.value == 1
    assert [len(entry.batch) for entry in member.queue.take(1 << 20, 1 << 20)] == [2, 3]
    nursery.cancel_scope.cancel()


async def test_groups_follow_each_other_before_the_first_came_back(nursery: trio.Nursery) -> None:
    member, told = Member(), list[Committed | DelayServerError]()
    nursery.start_soon(member.commit.run)
    for _ in range(3):
        member.commit.submit(messages(0, 2).with_columns(origin_sequence=np.zeros(2, np.int64)), told.append)
        await trio.testing.wait_all_tasks_blocked()
    assert len(member.on_the_way) == 3 and told == []
    member.arrive_own()
    assert len(told) == 1
    stopped = trio.Event()

    async def stop() -> None:
        await member.commit.stop()
        stopped.set()

    nursery.start_soon(stop)
    await trio.testing.wait_all_tasks_blocked()
    member.arrive_own()
    await trio.testing.wait_all_tasks_blocked()
    assert not stopped.is_set(), "a stop waits for what is on its way"
    member.arrive_own()
    await stopped.wait()
    firsts = [each.first_sequence for each in told if isinstance(each, Committed)]
    assert firsts == [firsts[0], firsts[0] + 2, firsts[0] + 4]
    nursery.cancel_scope.cancel()


async def test_groups_on_their_way_are_told_that_the_server_stopped() -> None:
    member, told = Member(), list[Committed | DelayServerError]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.commit.run)
        for _ in range(2):
            member.commit.submit(messages(0, 2), told.append)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [type(error) for error in told] == [StorageFailed, StorageFailed]
    assert member.positions.commits_ended.value == member.positions.commits_begun.value


async def test_a_log_without_room_refuses_a_group_and_takes_the_next() -> None:
    member, told = Refusing(), list[Committed | DelayServerError]()
    member.error = DiskFullError("no room")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.commit.run)
        for _ in range(2):
            member.commit.submit(messages(0, 3), told.append)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [type(error) for error in told] == [DiskFull, DiskFull]
    assert member.balance.accepted == 0


async def test_a_log_that_failed_refuses_all_that_wait_and_ends_the_commit() -> None:
    member, told = Refusing(), list[Committed | DelayServerError]()
    member.error = SyncFailedError("gone")
    with pytest.RaisesGroup(StoreError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit.run)
            member.commit.submit(messages(0, 3), told.append)
    assert [type(error) for error in told] == [StorageFailed]
    assert member.positions.durable.value == 0
