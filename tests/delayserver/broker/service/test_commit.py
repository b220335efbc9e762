"""Group commit of the broker when the disk does not play along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.commit import BrokerCommit
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.clock import SystemClock
from delayserver.runtime.runtime import Runtime
from store.disk.filesystem import FileSystem, RealFileSystem
from store.errors import DiskFullError, SyncFailedError
from store.records.batches import StoredBatch
from tests.delayserver.broker.brokers import DirectBroker, drain
from tests.fakes.disk import FakeDisk
from tests.fakes.workers import FakeWorkers

SUBJECT, GROUP = 1, 9


def broker_with_messages(fs: FileSystem, count: int = 3, directory: str = "/data/broker") -> Broker:
    broker = Broker.open(fs, directory, 7, 0, BrokerLimits(segment_bytes=1 << 20))
    batch = StoredBatch.filled(
        count, sequence=np.arange(1, count + 1), server_id=7, subject=SUBJECT, bodies_length=1, bodies=b"x" * count
    )
    broker.arrivals.deliver(batch, 0)
    return broker


async def test_all_waiting_callers_get_the_error_of_a_failed_sync_and_the_task_ends(autojump_clock: MockClock) -> None:
    disk = FakeDisk()
    commit = BrokerCommit(
        broker_with_messages(disk), BelievableClock(SystemClock(), 0, 0), Runtime.on(workers=FakeWorkers())
    )
    disk.fail_next_sync("broker/store/")
    failures = []

    async def wait() -> None:
        with pytest.raises(SyncFailedError) as caught:
            await commit.durable()
        failures.append(caught.value)

    with pytest.raises(ExceptionGroup) as caught:  # the crash of a task is a crash of its owner
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(commit.run)
    assert caught.group_contains(SyncFailedError)
    assert len(failures) <= 2
    with pytest.raises(SyncFailedError):
        await commit.durable()


async def test_acks_that_found_no_space_are_durable_with_the_next_commit(autojump_clock: MockClock) -> None:
    disk = FakeDisk(capacity_bytes=16 << 20)
    broker = broker_with_messages(disk, 1_000)
    broker.durability.sync()
    commit = BrokerCommit(broker, BelievableClock(SystemClock(), 0, 0), Runtime.on(workers=FakeWorkers()))
    pulled = broker.consuming.pull((SUBJECT, GROUP), 1_000, 1 << 20, 0, 0)
    assert pulled is not None
    for some in (pulled.delivery[1::2], pulled.delivery[::2]):  # one by one, so that their rows do not fit into a page
        broker.consuming.ack((SUBJECT, GROUP), some)
    disk.capacity_bytes = disk.used_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        with pytest.raises(DiskFullError):
            await commit.durable()
        assert broker.durability.needs_sync()
        disk.capacity_bytes = None
        await commit.durable()
        assert not broker.durability.needs_sync()
        nursery.cancel_scope.cancel()
    disk.kill()
    broker = Broker.open(disk, "/data/broker", 7, 0, BrokerLimits(segment_bytes=1 << 20))
    assert broker.consuming.pull((SUBJECT, GROUP), 1, 100, 0, 0) is None


async def test_syncs_in_a_thread_go_beside_deliveries(tmp_path: Path) -> None:
    broker = broker_with_messages(RealFileSystem(), directory=str(tmp_path))
    commit = BrokerCommit(broker, BelievableClock(SystemClock(), 0, 0), Runtime.on())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit.run)
        for round_number in range(1, 50):
            async with trio.open_nursery() as waiters:
                waiters.start_soon(commit.durable)
                await trio.lowlevel.checkpoint()
                broker.arrivals.deliver(
                    StoredBatch.filled(200, sequence=round_number * 200 + np.arange(200), server_id=7, subject=SUBJECT,
                                       bodies_length=200, bodies=bytes(40_000)), 0
                )  # fmt: skip
        await commit.durable()
        assert not broker.durability.needs_sync()
        nursery.cancel_scope.cancel()
    broker.abandon()
    again = DirectBroker.open(RealFileSystem(), str(tmp_path), 7, 0, BrokerLimits(segment_bytes=1 << 20))
    assert len(drain(again, GROUP, 0, SUBJECT)) == 3 + 49 * 200
    again.close()
