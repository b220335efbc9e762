"""Reads of the broker's store beside the event loop: shared, bounded, held until they are used. The disk is slow here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from delayserver.broker.actions.delivered_batch import DUPLICATE, STORED
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.filters.filter import Filter
from delayserver.broker.service import broker_reads
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.broker_reads import FILTERS_AT_ONCE, READS_AT_ONCE, BrokerReads
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.pulls import PullService
from delayserver.protocol.errors import ShuttingDown, Superseded
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from store.errors import UnreadableError
from store.records.batches import I64, StoredBatch
from tests.delayserver.broker.brokers import GROUP, SERVER, SUBJECT, messages
from tests.delayserver.broker.service.test_pulls import TrioTime
from tests.fakes.disk import FakeDisk
from tests.fakes.workers import FakeWorkers

READ_S = 0.1
FRESH = SUBJECT + 1
LIMITS = BrokerLimits(
    segment_bytes=4096, queue_segment_bytes=4096, queue_runs_max=4, read_ahead_bytes=2000, cache_bytes_max=100_000
)
# Room in the cache for nothing: a result lives only as long as it is held.
NO_CACHE = replace(LIMITS, cache_bytes_max=0)
ROOMY = BrokerLimits(segment_bytes=1 << 20, queue_segment_bytes=1 << 20)


class SlowNode:
    """A broker with its tasks, on a disk that takes READ_S for a read. A new one knows nothing of its messages."""

    def __init__(self, disk: FakeDisk, limits: BrokerLimits = LIMITS) -> None:
        self.disk = disk
        self.broker = Broker.open(self.disk, "/data/broker", SERVER, 0, limits)
        workers = FakeWorkers()
        workers.around = self._slowly
        self.reads_begun = 0
        self.reads_at_once = 0
        self.reads_at_once_max = 0
        runtime = Runtime.on(clock=TrioTime(), workers=workers)
        self.commit = BrokerCommit(self.broker, BelievableClock(TrioTime(), 0, 0), runtime)
        self.reads = BrokerReads(self.broker.state.files.reads, runtime)
        self.pulls = PullService(self.broker.consuming, self.broker.state.groups, limits, self.reads, runtime)
        self.local = LocalBroker(self.broker, self.commit, self.reads, self.pulls, runtime)

    async def _slowly(self, function: str, work: Callable[[], Any]) -> Any:
        if "ReadPlan" not in getattr(work, "__qualname__", ""):
            return work()
        self.reads_begun += 1
        self.reads_at_once += 1
        self.reads_at_once_max = max(self.reads_at_once_max, self.reads_at_once)
        with trio.CancelScope(shield=True):  # a thread is not given up
            await trio.sleep(READ_S)
        self.reads_at_once -= 1
        return work()

    async def pull(
        self, subject: int = SUBJECT, count: int = 10, wait_ms: int = 60_000, group: int = GROUP
    ) -> list[int]:
        pulled = await self.pulls.pull(subject, group, count, 1 << 20, wait_ms)
        return [] if pulled is None else pulled.batch.sequence.tolist()

    async def lease(self, count: int = 10) -> I64:
        """Pull; the deliveries."""
        pulled = await self.pulls.pull(SUBJECT, GROUP, count, 1 << 20, 0)
        return np.empty(0, np.int64) if pulled is None else pulled.delivery

    async def timed(self, into: dict[Any, float], name: Any, *arguments: Any) -> None:
        """A pull that gets something; notes when."""
        assert await self.pull(*arguments)
        into[name] = trio.current_time()


def backlog(count: int = 100, subjects: tuple[int, ...] = (SUBJECT,)) -> FakeDisk:
    """The disk of a broker that has messages 1 to `count` of each subject, ten in a record."""
    disk = FakeDisk()
    broker = Broker.open(disk, "/data/broker", SERVER, 0, LIMITS)
    for subject in subjects:
        for first in range(1, count + 1, 10):
            broker.arrivals.deliver(messages(first, min(10, count + 1 - first), subject=subject), 0)
    broker.close()
    disk.kill()
    return disk


@pytest.fixture
async def start(nursery: trio.Nursery) -> AsyncIterator[Callable[..., SlowNode]]:
    """Starts nodes; at the end no read and no result may be left."""
    nodes = []

    def begin(disk: FakeDisk, limits: BrokerLimits = LIMITS) -> SlowNode:
        node = SlowNode(disk, limits)
        nodes.append(node)
        nursery.start_soon(node.local.run)
        return node

    yield begin
    with trio.CancelScope(shield=True):
        await trio.sleep(3 * READ_S)
    for node in nodes:
        assert node.broker.state.files.reads.held_bytes == 0, "no call needs the result, and it is held"
        assert node.reads.waiting == node.reads_at_once == 0
        node.broker.check_invariants()
    nursery.cancel_scope.cancel()


Start = Callable[..., SlowNode]


async def test_while_a_group_waits_for_its_read_another_is_answered_in_the_step_of_its_arrival(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(10))
    times: dict[Any, float] = {}
    answered: list[int] = []

    async def hold() -> None:
        await node.pulls.pull(
            FRESH, GROUP, 10, 1 << 20, 60_000, answer=lambda pulled: answered.extend(pulled.batch.sequence.tolist())
        )

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.timed, times, "cold")
        nursery.start_soon(hold)
        await trio.sleep(READ_S / 2)
        assert node.reads_at_once == 1
        node.local.deliver(messages(1001, 1, subject=FRESH))
        assert answered == [1001]
    assert times == {"cold": began + READ_S}


@pytest.mark.parametrize("limits", [LIMITS, NO_CACHE], ids=["cache", "no cache"])
async def test_a_backlog_comes_whole_and_in_order_with_any_cache(
    start: Start, autojump_clock: MockClock, limits: BrokerLimits
) -> None:
    node = start(backlog(1000), limits)
    got: list[int] = []
    while found := await node.pull(count=37, wait_ms=0):
        got += found
    assert got == list(range(1, 1001))
    assert node.broker.state.damages.texts == []


async def test_with_a_cache_the_disk_is_asked_once_for_neighbouring_messages(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(1000))
    while await node.pull(count=10, wait_ms=0):
        pass
    stored = node.broker.state.files.store.synced
    # Beside the records: one block for every four runs of ten messages, unless a read of its records came first.
    assert node.reads_begun <= stored / LIMITS.read_ahead_bytes * 1.5 + 1000 / 10 / 2


async def test_groups_that_need_the_same_bytes_share_a_read(start: Start, autojump_clock: MockClock) -> None:
    node = start(backlog(20))
    times: dict[Any, float] = {}
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for group in range(20):
            nursery.start_soon(node.timed, times, group, SUBJECT, 10, 60_000, GROUP + group)
    assert node.reads_begun == 1
    assert set(times.values()) == {began + READ_S}


async def test_many_groups_have_a_bounded_number_of_reads_at_a_time(start: Start, autojump_clock: MockClock) -> None:
    subjects = tuple(range(1, 41))
    node = start(backlog(40, subjects))
    async with trio.open_nursery() as nursery:
        for subject in subjects:
            nursery.start_soon(node.timed, {}, subject, subject)
    assert node.reads_at_once_max == READS_AT_ONCE


async def test_a_pull_without_wait_gets_messages_that_must_be_read_from_disk(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog())
    assert await node.pull(wait_ms=0) == list(range(1, 11))
    assert await node.pull(count=1, wait_ms=1) == [11], "its wait ends before the read does"


async def test_a_consumer_that_leaves_while_its_read_is_under_way_takes_nothing_with_it(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(10), NO_CACHE)
    with trio.move_on_after(READ_S / 2) as scope:
        await node.pull()
    assert scope.cancelled_caught
    assert node.pulls.waiting == 0
    assert node.reads_at_once == 1, "the thread goes on"
    assert await node.pull() == list(range(1, 11))
    assert node.reads_begun == 1, "and what it reads is used"


async def test_a_read_that_the_disk_refuses_is_tried_again_before_its_messages_are_passed_over(
    start: Start, autojump_clock: MockClock
) -> None:
    disk = backlog()
    node = start(disk)
    path = node.broker.state.files.store.log.segments()[0][2]
    disk.unreadable[path] = [(64, 65)]
    for _ in range(2):
        with pytest.raises(UnreadableError):
            await node.pull()
    del disk.unreadable[path]
    assert await node.pull() == list(range(1, 11))
    assert node.broker.status()["damaged_messages"] == 0


async def test_one_failed_read_counts_once_however_many_groups_wait_for_it(
    start: Start, autojump_clock: MockClock
) -> None:
    disk = backlog()
    node = start(disk)
    path = node.broker.state.files.store.log.segments()[0][2]
    disk.unreadable[path] = [(64, 65)]
    refused = 0

    async def consume(group: int) -> None:
        nonlocal refused
        with pytest.raises(UnreadableError):
            await node.pull(group=group)
        refused += 1

    async with trio.open_nursery() as nursery:
        for group in range(5):
            nursery.start_soon(consume, GROUP + group)
    assert refused == 5
    assert node.broker.status()["damaged_messages"] == 0


async def test_retention_waits_for_a_read_of_the_segment_that_it_would_remove(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(300), NO_CACHE)
    while len(leased := await node.lease(1000)):  # all is consumed by one group
        node.broker.consuming.ack((SUBJECT, GROUP), leased)
    node.broker.durability.sync()
    node.broker.durability.checkpoint()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(node.pull, group=GROUP + 1, count=5))
        await trio.sleep(READ_S / 2)
        assert node.reads_at_once == 1
        assert node.broker.state.files.reads.lowest("store") is not None
        # Not the second group's, which has acked nothing: as if the store were beyond its bound.
        assert node.broker.state.files.store.retire(1 << 40) == []
    assert node.broker.state.files.store.retire(1 << 40)


async def test_a_stop_waits_for_the_reads_under_way_and_begins_no_others(
    start: Start, autojump_clock: MockClock
) -> None:
    subjects = tuple(range(1, 21))
    node = start(backlog(10, subjects), replace(LIMITS, read_ahead_bytes=1))
    async with trio.open_nursery() as nursery:
        for subject in subjects:
            nursery.start_soon(node.pull, subject)
        await trio.sleep(READ_S / 2)
        assert node.reads_at_once == READS_AT_ONCE
        await node.local.close()
        assert (node.reads_at_once, node.reads_begun) == (0, READS_AT_ONCE)
        with pytest.raises(ShuttingDown):
            await node.pull()
        with pytest.raises(ShuttingDown):
            await node.reads.finish(node.broker.arrivals.deliver_uncertain(messages(1, 5), 0))
        nursery.cancel_scope.cancel()


async def test_a_nack_of_cold_messages_reads_them_and_others_go_on(start: Start, autojump_clock: MockClock) -> None:
    node = start(backlog(100), NO_CACHE)
    leased = np.concatenate([await node.lease(), await node.lease()])
    before = node.reads_begun
    batch = await node.reads.finish(node.broker.retries.nack((SUBJECT, GROUP), leased, 0, 0, 0))
    assert batch.messages is not None
    assert len(batch) == 20
    assert node.reads_begun > before
    node.broker.retries.settle(batch)
    assert await node.pull() == list(range(21, 31))


async def test_a_nack_that_is_given_up_leaves_its_deliveries_leased(start: Start, autojump_clock: MockClock) -> None:
    node = start(backlog(100), NO_CACHE)
    leased = await node.lease()
    with trio.move_on_after(READ_S / 2) as scope:
        await node.reads.finish(node.broker.retries.nack((SUBJECT, GROUP), leased, 0, 0, 0))
    assert scope.cancelled_caught
    assert node.broker.consuming.ack((SUBJECT, GROUP), leased).acked == len(leased)


async def test_ended_leases_of_a_cold_group_are_gathered_once(start: Start, autojump_clock: MockClock) -> None:
    node = start(backlog(100), NO_CACHE)
    found = await node.pull()
    end_us = (node.broker.retries.next_deadline_us() or 0) + 1
    (call,) = node.broker.retries.take_expired(end_us, end_us, 100)
    batches = []

    async def end() -> None:
        batches.append(await node.reads.finish(call))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        await trio.sleep(READ_S / 2)
        assert node.broker.retries.next_deadline_us() is None
        assert node.broker.retries.take_expired(end_us, end_us, 100) == []
    assert len(batches[0]) == len(found)


async def test_an_uncertain_hand_off_reads_its_window_once_and_sees_messages_stored_meanwhile(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(100))
    outcomes: dict[str, list[int]] = {}

    async def deliver(name: str, first: int, count: int) -> None:
        delivered = await node.local.deliver_uncertain(messages(first, count), lambda: None)
        outcomes[name] = delivered.outcome.tolist()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, "half", 96, 10)
        nursery.start_soon(deliver, "same", 96, 10)
        await trio.sleep(READ_S / 2)
        node.local.deliver(messages(104, 2))
    stored = [outcomes[name] for name in ("half", "same")]
    assert sorted(stored) == sorted([[DUPLICATE] * 5 + [STORED] * 3 + [DUPLICATE] * 2, [DUPLICATE] * 10])
    assert node.reads_begun == 1
    await deliver("again", 96, 12)
    assert outcomes["again"] == [DUPLICATE] * 10 + [STORED] * 2
    assert node.reads_begun == 1, "the keys are in memory"


async def test_an_uncertain_hand_off_of_windows_without_stored_messages_reads_nothing(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(100))
    batch = StoredBatch.concatenate([messages(1_000 + place, 1, place * 60_000) for place in range(50, 90)])
    delivered = await node.local.deliver_uncertain(batch, lambda: None)
    assert delivered.outcome.tolist() == [STORED] * 40
    again = await node.local.deliver_uncertain(batch, lambda: None)
    assert again.outcome.tolist() == [DUPLICATE] * 40
    assert node.reads_begun == 0


async def test_keys_beyond_their_bound_are_read_again_and_nothing_is_stored_twice(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(100), replace(LIMITS, known_rows_max=50))
    for _ in range(2):
        delivered = await node.local.deliver_uncertain(messages(90, 20), lambda: None)
        assert int(np.count_nonzero(delivered.outcome == STORED)) == (9 if _ == 0 else 0)
    assert node.reads_begun == 2


async def test_a_server_that_was_replaced_during_the_read_stores_nothing(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(100))
    end = node.broker.state.files.store.end

    def admit() -> None:
        raise Superseded("another process")

    with pytest.raises(Superseded):
        await node.local.deliver_uncertain(messages(101, 1), admit)
    assert node.broker.state.files.store.end == end


async def test_a_row_of_a_group_reads_its_oldest_message_beside_the_event_loop(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(100))
    await node.pull(count=1)
    row = await node.reads.answer(partial(node.broker.group_rows.row, (SUBJECT, GROUP)))
    assert row is not None
    assert (row.lag, row.oldest_ms) == (100, 0)


async def test_many_groups_whose_filters_want_nothing_of_a_long_cold_backlog_come_to_its_end(
    start: Start, autojump_clock: MockClock, disk: FakeDisk
) -> None:
    """Each holds the result of a read while it waits for its next one. Together they may hold more than the bound."""
    broker = Broker.open(disk, "/data/broker", SERVER, 0, ROOMY)
    for number in range(1, 601):
        broker.arrivals.deliver(messages(number, 1).with_columns(tag=np.full(1, 1 + (number == 600), np.uint32)), 0)
    broker.close()
    disk.kill()
    node = start(disk, ROOMY)
    for group in range(12):
        node.broker.consuming.use_filter((SUBJECT, GROUP + group), Filter([2], None))
    found: list[list[int]] = []

    async def consume(group: int) -> None:
        found.append(await node.pull(group=group))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for group in range(12):
                nursery.start_soon(consume, GROUP + group)
    assert found == [[600]] * 12


async def test_filters_are_asked_a_few_at_a_time_and_other_reads_go_beside_them(
    start: Start, autojump_clock: MockClock
) -> None:
    subjects = tuple(range(1, 11))
    node = start(backlog(40, subjects))
    for subject in subjects:
        node.broker.consuming.use_filter((subject, subject), Filter([7], None))
    async with trio.open_nursery() as nursery:
        for subject in subjects:
            nursery.start_soon(partial(node.pull, subject, wait_ms=1, group=subject))
        await trio.sleep(READ_S / 2)
        assert node.reads_at_once == FILTERS_AT_ONCE
        nursery.start_soon(partial(node.pull, 1, group=77))
        await trio.testing.wait_all_tasks_blocked()
        assert node.reads_at_once == FILTERS_AT_ONCE + 1


async def test_a_group_that_is_removed_before_its_ended_leases_are_gathered_has_none(
    start: Start, autojump_clock: MockClock
) -> None:
    node = start(backlog(10))
    assert await node.pull()
    end_us = (node.broker.retries.next_deadline_us() or 0) + 1
    (call,) = node.broker.retries.take_expired(end_us, end_us, 100)
    node.broker.state.groups.remove((SUBJECT, GROUP))
    batch = await node.reads.finish(call)
    assert (len(batch), batch.given_up) == (0, None)
    node.broker.retries.settle(batch)
    assert await node.pull() == list(range(1, 11)), "a pull makes the group anew"


async def test_what_is_read_ahead_for_a_group_with_a_filter_is_read_once(
    start: Start, autojump_clock: MockClock, disk: FakeDisk
) -> None:
    broker = Broker.open(disk, "/data/broker", SERVER, 0, ROOMY)
    for number in range(1, 601):
        tag = np.full(1, 1 + (number % 50 == 0), np.uint32)
        broker.arrivals.deliver(messages(number, 1).with_columns(tag=tag), 0)
    broker.close()
    disk.kill()
    node = start(disk, ROOMY)
    node.broker.consuming.use_filter((SUBJECT, GROUP), Filter([2], None))
    got: list[int] = []
    while found := await node.pull(count=10, wait_ms=0):
        got += found
        await trio.sleep(2 * READ_S)  # the consumer handles them
    assert got == list(range(50, 601, 50))
    assert node.reads_begun == 3, "a read looks at 256 records at most"


@pytest.mark.parametrize("removed", [False, True])
async def test_other_work_comes_between_the_steps_that_gather_many_messages_for_redelivery(
    start: Start, autojump_clock: MockClock, removed: bool
) -> None:
    """Those of a consumer that acked every second message before it died, which are gathered one by one."""
    node = start(FakeDisk(), ROOMY)
    for first in range(1, 2001, 100):
        node.local.deliver(messages(first, 100))
    leased = await node.lease(2000)
    node.broker.consuming.ack((SUBJECT, GROUP), leased[::2])
    end_us = (node.broker.retries.next_deadline_us() or 0) + 1
    (call,) = node.broker.retries.take_expired(end_us, end_us, 1000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            if removed and turns == 20:
                node.broker.state.groups.remove((SUBJECT, GROUP))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        batch = await node.reads.finish(call)
        nursery.cancel_scope.cancel()
    assert batch.messages is not None
    if removed:
        assert turns < 100 and len(batch) < 1000
    else:
        assert turns > 100
        assert batch.messages.origin_sequence.tolist() == list(range(2, 2001, 2))
    node.broker.retries.settle(batch)


async def test_calls_that_hold_too_much_together_end_one_after_the_other(
    start: Start, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(backlog(400), NO_CACHE)
    monkeypatch.setattr(broker_reads, "BYTES_MAX", 3 * LIMITS.read_ahead_bytes)
    leased: list[I64] = []
    while len(one := await node.lease(40)):
        leased.append(one)
    redelivered: list[int] = []
    held_max = 0

    async def nack(deliveries: I64) -> None:
        nonlocal held_max
        batch = await node.reads.finish(node.broker.retries.nack((SUBJECT, GROUP), deliveries, 0, 0, 0))
        held_max = max(held_max, node.broker.state.files.reads.held_bytes)
        assert batch.messages is not None
        redelivered.extend(batch.messages.origin_sequence.tolist())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for deliveries in leased:
                nursery.start_soon(nack, deliveries)
    assert sorted(redelivered) == list(range(1, 401))
    assert held_max <= 6 * LIMITS.read_ahead_bytes, "calls that wait for their first read have none"
