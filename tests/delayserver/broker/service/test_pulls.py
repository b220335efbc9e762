"""Long polling: woken by the arrival, fair between (subject, group), safe to cancel. Time is trio's simulated clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.broker_reads import BrokerReads
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.pulls import Outlet, PullService
from delayserver.protocol.errors import DeadlinePassed, GroupsFull, QueueFull, ShuttingDown
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.runtime import Runtime
from store.records.batches import StoredBatch
from tests.fakes.disk import FakeDisk
from tests.fakes.workers import FakeWorkers

GROUP = 9


class TrioTime:
    """A `Clock` that shows trio's (simulated) time."""

    def now_us(self) -> int:
        return int(trio.current_time() * 1_000_000)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def monotonic_us(self) -> int:
        return self.now_us()

    def boot_us(self) -> int:
        return self.now_us()

    def wait_s(self, wall_us: int) -> float:
        return max(wall_us - self.now_us(), 0) / 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        await trio.sleep(duration_ms / 1000)

    async def sleep_until_us(self, wall_us: int) -> None:
        await trio.sleep(self.wait_s(wall_us))


class Node:
    """A broker with its tasks running."""

    def __init__(self, limits: BrokerLimits) -> None:
        self.disk = FakeDisk()
        self.broker = Broker.open(self.disk, "/data/broker", 7, 0, limits)
        self.runtime = Runtime.on(clock=TrioTime(), workers=FakeWorkers())
        self.reads = BrokerReads(self.broker.state.files.reads, self.runtime)
        self.pulls = PullService(self.broker.consuming, self.broker.state.groups, limits, self.reads, self.runtime)
        self.commit = BrokerCommit(self.broker, BelievableClock(TrioTime(), 0, 0), self.runtime)
        self.sequence = 1

    def deliver(self, subject: int, count: int) -> None:
        batch = StoredBatch.filled(
            count,
            sequence=np.arange(self.sequence, self.sequence + count),
            server_id=7,
            subject=subject,
            bodies_length=1,
            bodies=b"x" * count,
        )
        self.sequence += count
        self.pulls.wake(self.broker.arrivals.deliver(batch, 0).arrived, count)

    @property
    def actors(self) -> int:
        """How many groups with or without pulls the service remembers. Nothing but its memory shows it."""
        return len(self.pulls._actors)

    async def pull(self, subject: int, count: int = 100, wait_ms: int = 60_000) -> int:
        pulled = await self.pulls.pull(subject, GROUP, count, 1 << 20, wait_ms)
        return 0 if pulled is None else len(pulled)


LIMITS = BrokerLimits(segment_bytes=1 << 20, waiting_pulls_max=300)


@pytest.fixture
async def node(nursery: trio.Nursery) -> AsyncIterator[Node]:
    """A running node; its tasks end with the test."""
    node = Node(LIMITS)
    nursery.start_soon(node.pulls.run)
    nursery.start_soon(node.commit.run)
    yield node
    node.pulls.check_invariants()
    nursery.cancel_scope.cancel()


async def test_a_waiting_pull_is_woken_by_the_arrival_and_not_by_a_timer(node: Node, autojump_clock: MockClock) -> None:
    got = []

    async def consume() -> None:
        got.append((await node.pull(1), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.sleep(3.25)
        arrived = trio.current_time()
        node.deliver(1, 5)
    assert got == [(5, arrived)]


async def test_a_pull_of_nothing_ends_after_its_wait_and_one_without_wait_at_once(
    node: Node, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    assert await node.pull(1, wait_ms=2000) == 0
    assert trio.current_time() == start + 2
    for _ in range(50):  # more than are served without a turn
        assert await node.pull(1, wait_ms=0) == 0
    assert trio.current_time() == start + 2
    assert node.pulls.waiting == 0


async def test_a_pull_without_wait_is_answered_although_patient_ones_stand_before_it(
    node: Node, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.pull, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert await node.pull(1, wait_ms=0) == 0
        nursery.cancel_scope.cancel()
    assert node.pulls.waiting == 0


async def test_a_group_with_two_hundred_consumers_delays_another_by_one_round(
    node: Node, autojump_clock: MockClock
) -> None:
    order: list[int] = []

    async def consume(subject: int) -> None:
        assert await node.pull(subject, count=1) == 1
        order.append(subject)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(consume, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(consume, 2)
        await trio.testing.wait_all_tasks_blocked()
        node.deliver(1, 1000)
        node.deliver(2, 1)
    assert order.index(2) <= 2


async def test_a_crowd_of_new_pulls_on_a_backlog_delays_another_group_by_few(
    node: Node, autojump_clock: MockClock
) -> None:
    node.deliver(1, 1000)
    node.deliver(2, 1)
    order: list[int] = []

    async def consume(subject: int) -> None:
        assert await node.pull(subject, count=1) == 1
        order.append(subject)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(consume, 1)
        nursery.start_soon(consume, 2)
    assert order.index(2) <= 12


async def test_a_cancelled_pull_takes_nothing_with_it(node: Node, autojump_clock: MockClock) -> None:
    with trio.move_on_after(1):
        await node.pull(1)
    assert node.pulls.waiting == 0
    with trio.CancelScope() as scope:
        scope.cancel()
        await node.pull(1)
    node.deliver(1, 3)
    assert await node.pull(1, wait_ms=0) == 3


async def test_a_pull_that_is_served_in_the_moment_of_its_cancellation_is_answered(
    node: Node, autojump_clock: MockClock
) -> None:
    got = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def consume() -> None:
                got.append(await node.pull(1))

            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked()
            node.deliver(1, 3)
            while node.pulls.waiting and not node.broker.status()["pulled"]:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert got == [3] or node.broker.status()["pulled"] == 0


async def test_a_pull_that_waits_for_room_does_not_make_a_removed_group_anew(
    node: Node, autojump_clock: MockClock
) -> None:
    room = [0]
    blocked: list[Callable[[], None]] = []
    got: list[tuple[PulledBatch | None, float]] = []
    outlet = Outlet(lambda: room[0], blocked.append)
    node.deliver(1, 1)
    assert await node.pull(1) == 1
    node.deliver(1, 1)

    async def consume() -> None:
        got.append((await node.pulls.pull(1, GROUP, 100, 1 << 20, 60_000, outlet=outlet), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        assert len(blocked) == 1, "it waits for room"
        node.broker.state.groups.remove((1, GROUP))
        node.pulls.end_group(1, GROUP)
        removed = trio.current_time()
        room[0] = 1 << 20
        blocked.pop()()
    assert got == [(None, removed)]
    assert (1, GROUP) not in node.broker.state.groups


async def test_more_waiting_pulls_than_the_bound_are_refused_by_name(node: Node, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(LIMITS.waiting_pulls_max):
            nursery.start_soon(node.pull, 1)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(QueueFull):
            await node.pull(1)
        nursery.cancel_scope.cancel()


async def test_one_group_has_a_bounded_mailbox_and_leaves_the_rest_to_the_others(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    few = Node(replace(LIMITS, mailbox_pulls_max=5))
    nursery.start_soon(few.pulls.run)
    for _ in range(5):
        nursery.start_soon(few.pull, 1)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(QueueFull, match="of this group"):
        await few.pull(1)
    nursery.start_soon(few.pull, 2)
    await trio.testing.wait_all_tasks_blocked()
    assert few.pulls.waiting == 6
    few.deliver(1, 100)
    await trio.testing.wait_all_tasks_blocked()
    assert few.pulls.waiting == 5 - 1 + 1, "one pull took all of them, and its place is free"
    few.pulls.check_invariants()
    nursery.cancel_scope.cancel()


async def test_the_group_that_used_the_least_lately_goes_first_and_use_is_forgotten(
    node: Node, autojump_clock: MockClock
) -> None:
    """Not the sum for ever: that would punish an old group for its past."""
    node.deliver(1, 1_000)
    for _ in range(100):
        assert await node.pull(1, count=10) == 10
    order: list[int] = []

    async def consume(subject: int) -> None:
        await node.pulls.pull(
            subject, GROUP, 100, 1 << 20, 60_000, answer=lambda pulled: order.append(int(pulled.batch.subject[0]))
        )

    async def together() -> list[int]:
        order.clear()
        async with trio.open_nursery() as nursery:
            for subject in (1, 1, 1, 2, 2, 2):
                nursery.start_soon(consume, subject)
            await trio.testing.wait_all_tasks_blocked()
            node.deliver(1, 300)
            node.deliver(2, 300)
        return order

    assert await together() == [2, 2, 2, 1, 1, 1]
    await trio.sleep(60)
    assert await together() == [1, 2, 1, 2, 1, 2], "equal use: the one that came first"


async def test_a_pull_whose_deadline_passed_before_its_turn_takes_nothing_and_is_counted(
    node: Node, autojump_clock: MockClock
) -> None:
    node.deliver(1, 1_000)
    now_ms = TrioTime().now_ms()
    for deadline_ms in (0, now_ms):
        with pytest.raises(DeadlinePassed):
            await node.pulls.pull(1, GROUP, 10, 1 << 20, 60_000, deadline_ms=deadline_ms)
    assert node.pulls.deadlines_passed == 2
    assert node.broker.status()["pulled"] == 0
    pulled = await node.pulls.pull(1, GROUP, 10, 1 << 20, 0, deadline_ms=now_ms + 1)
    assert pulled is not None
    assert pulled.batch.sequence.tolist() == list(range(1, 11))


async def test_a_pull_waits_for_messages_until_its_deadline_at_most(node: Node, autojump_clock: MockClock) -> None:
    start = trio.current_time()
    assert await node.pulls.pull(1, GROUP, 10, 1 << 20, 60_000, deadline_ms=TrioTime().now_ms() + 2_000) is None
    assert trio.current_time() == pytest.approx(start + 2, abs=0.002)
    assert node.pulls.deadlines_passed == 0


async def test_actors_without_pulls_are_forgotten_beyond_a_bound(node: Node, autojump_clock: MockClock) -> None:
    for subject in range(1, 10_000):
        assert await node.pull(subject, wait_ms=0) == 0
    assert node.actors <= 4096


async def test_more_consumer_groups_than_the_bound_are_refused_by_name_and_known_ones_go_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    few = Node(replace(LIMITS, groups_max=2))
    nursery.start_soon(few.pulls.run)
    few.deliver(1, 4)
    for group in (1, 2, 1):
        await few.pulls.pull(1, group, 1, 1 << 20, 0)
    with pytest.raises(GroupsFull, match="consumer groups"):
        await few.pulls.pull(1, 3, 1, 1 << 20, 0)
    assert await few.pulls.pull(1, 2, 1, 1 << 20, 0) is not None
    assert few.broker.status()["groups"] == 2


async def test_one_sync_answers_all_that_wait_for_a_commit(node: Node, autojump_clock: MockClock) -> None:
    node.deliver(1, 3)
    before = node.disk.counts["datasync"]
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(node.commit.durable)
    assert not node.broker.durability.needs_sync()
    assert node.disk.counts["datasync"] - before == 1
    await node.commit.durable()
    assert node.disk.counts["datasync"] - before == 1


async def test_a_few_messages_are_handed_on_in_their_own_step_although_others_wait(
    node: Node, autojump_clock: MockClock
) -> None:
    answered: list[tuple[int, int]] = []

    async def consume(subject: int) -> None:
        await node.pulls.pull(
            subject, GROUP, 10_000, 1 << 20, 60_000, answer=lambda pulled: answered.append((subject, len(pulled)))
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, 1)
        nursery.start_soon(consume, 2)
        await trio.testing.wait_all_tasks_blocked()
        node.deliver(1, 1_000)  # a large one: it waits for its turn
        assert answered == []
        node.deliver(2, 3)
        assert answered == [(2, 3)], "no pass of the event loop lies between the arrival and the answer"
    assert answered == [(2, 3), (1, 1_000)]


async def test_where_groups_share_the_loop_a_pull_takes_less_in_one_step(node: Node, autojump_clock: MockClock) -> None:
    node.pulls.turn_rows_max = 300
    node.deliver(1, 1_000)
    assert [await node.pull(1, count=10_000) for _ in range(4)] == [300, 300, 300, 100]


async def test_after_close_waiting_and_new_pulls_get_nothing(nursery: trio.Nursery) -> None:
    """The files of the broker are closed next: a pull in line would read them."""
    node = Node(LIMITS)
    nursery.start_soon(node.pulls.run)
    nursery.start_soon(node.pull, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert node.pulls.waiting == 1
    node.pulls.wake_group(1, GROUP)
    node.pulls.close()
    node.deliver(1, 3)
    node.broker.close()
    await trio.testing.wait_all_tasks_blocked()
    assert node.pulls.waiting == 1
    with pytest.raises(ShuttingDown):
        await node.pull(1)
