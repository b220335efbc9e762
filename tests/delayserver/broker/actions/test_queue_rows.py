"""Queue rows are rebuilt from the store: whatever a kill or damage takes of them, every stored message is reachable."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from delayserver.broker.queues.queue_table import STEP_QUEUES
from store.errors import UnreadableError
from tests.delayserver.broker import brokers
from tests.delayserver.broker.brokers import (
    GROUP,
    NOW_US,
    SUBJECT,
    drain,
    messages,
    open_broker,
    record_place,
)
from tests.fakes.disk import FakeDisk

# A read of the store brings a few records. A larger one would decode them all again for each pull: few stay in memory.
LIMITS = replace(brokers.LIMITS, read_ahead_bytes=1000)


def stored(disk: FakeDisk, *, checkpoint_at: int, count: int = 300) -> list[int]:
    """Store messages of one subject in many records, with spilled blocks and one checkpoint, and sync; the sequences."""
    broker = open_broker(disk, LIMITS)
    for number, first in enumerate(range(1, count, 3)):
        broker.deliver(messages(first, 3), False, NOW_US)
        if number == checkpoint_at:
            broker.durability.sync()
            broker.durability.checkpoint()
    broker.durability.sync()
    return list(range(1, count + 1))[: 3 * len(range(1, count, 3))]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("checkpoint_at", [0, 50, 99])
def test_a_kill_between_store_and_queue_rows_loses_no_message(checkpoint_at: int, seed: int, disk: FakeDisk) -> None:
    sequences = stored(disk, checkpoint_at=checkpoint_at)
    disk.crash(Random(seed))  # blocks behind the checkpoint were never synced: they are lost page by page
    assert drain(open_broker(disk, LIMITS)) == sequences


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "removed"])
def test_without_a_whole_checkpoint_the_queues_are_made_from_the_store(damage: str, disk: FakeDisk) -> None:
    sequences = stored(disk, checkpoint_at=50)
    path = "/data/broker/checkpoint"
    if damage == "flipped":
        disk.flip_bit(path, disk.size(path) // 2)
    elif damage == "removed":
        disk.remove(path)
    else:
        file = disk.open(path)
        file.truncate(0 if damage == "empty" else disk.size(path) // 2)
        file.datasync()
        file.close()
    disk.kill()
    assert drain(open_broker(disk, LIMITS)) == sequences


def test_a_damaged_block_is_made_again_from_the_store(disk: FakeDisk) -> None:
    sequences = stored(disk, checkpoint_at=99)
    for path in disk.files("/data/broker/queue/"):
        for offset in range(64, disk.size(path), 64):
            disk.flip_bit(path, offset + 8)
    disk.kill()
    assert drain(open_broker(disk, LIMITS)) == sequences


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_damaged_record_in_the_middle_costs_its_own_messages_alone(checkpoint: bool, disk: FakeDisk) -> None:
    sequences = stored(disk, checkpoint_at=99 if checkpoint else 0)
    broker = open_broker(disk, LIMITS)
    run, path, offset = record_place(broker, 150)
    lost = set(range(1 + run.position, 1 + run.position + run.row_count))
    broker.abandon()
    disk.flip_bit(path, offset + 100)
    disk.kill()
    broker = open_broker(disk, LIMITS)
    assert drain(broker) == [sequence for sequence in sequences if sequence not in lost]
    broker.deliver(messages(1001, 3), False, NOW_US)
    assert drain(broker) == [1001, 1002, 1003], "positions behind the damage are used once"
    assert broker.state.damages.texts


@pytest.mark.parametrize("seed", range(2))
def test_a_checkpoint_in_steps_beside_arrivals_is_recovered_from(seed: int, disk: FakeDisk) -> None:
    """Subjects enough for several steps. More is stored between the steps, then the power fails."""
    chance = Random(seed)
    limits = replace(LIMITS, segment_bytes=1 << 22, queue_runs_max=3, cache_bytes_max=0)
    broker = open_broker(disk, limits)
    subjects = list(range(1, 2 * STEP_QUEUES + 50))
    expected: dict[int, list[int]] = {}
    following = 1

    def deliver(some: list[int]) -> None:
        nonlocal following
        for subject in some:
            broker.deliver(messages(following, 1, subject=subject), False, NOW_US)
            expected.setdefault(subject, []).append(following)
            following += 1

    deliver(subjects)
    for round_number in range(2):
        with broker.durability.checkpoint_capture() as capture:
            while capture.step():
                deliver([*chance.sample(subjects, 20), 1, 1, 1, 1, 2])
            plan = capture.plan()
        deliver([1, 2])
        plan.run()
        for _ in broker.durability.finish_checkpoint(plan):
            deliver([chance.choice(subjects), 1])
        broker.check_invariants()
        assert broker.state.queues.awake_count < len(subjects) or round_number == 0
    broker.durability.sync()
    disk.crash(chance)
    broker = open_broker(disk, limits)
    broker.check_invariants()
    for subject in [1, 2, *chance.sample(subjects, 30)]:
        assert drain(broker, subject=subject) == expected[subject]


def test_a_start_with_many_subjects_wakes_none_of_them(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, segment_bytes=1 << 22))
    for subject in range(1, 500):
        broker.deliver(messages(subject, 1, subject=subject), False, NOW_US)
    broker.close()
    disk.kill()
    broker = open_broker(disk, replace(LIMITS, segment_bytes=1 << 22))
    assert (broker.status()["queues"], broker.state.queues.awake_count) == (499, 0)
    assert drain(broker, subject=7) == [7]
    assert broker.state.queues.awake_count == 1


def test_queues_at_rest_hold_back_messages_that_are_not_consumed(disk: FakeDisk) -> None:
    limits = replace(LIMITS, retention_ms=0, unconsumed_retention_ms=5000, queue_runs_max=100)
    broker = open_broker(disk, limits)
    broker.deliver(messages(1, 10, subject=2), False, NOW_US)
    for first in range(11, 300, 10):
        broker.deliver(messages(first, 10), False, NOW_US)
    broker.arrivals.window_complete(7, [60_000])
    broker.close()
    disk.kill()
    broker = open_broker(disk, limits)
    assert drain(broker) == list(range(11, 301))
    broker.durability.sync()
    broker.durability.checkpoint()
    assert broker.state.queues.awake_count == 0
    assert broker.retention.retire(NOW_US + 1000) == [], "no group consumed subject 2"
    assert broker.retention.retire(NOW_US + 6_000_000) != []
    assert broker.state.queues.awake_count == 0
    assert broker.positions.bounds(2) == (10, 10)


@pytest.mark.parametrize("pulls", [1, 2])
def test_a_disk_that_reads_nothing_for_a_moment_loses_no_message(pulls: int, disk: FakeDisk) -> None:
    """Neither the block of index rows nor the store from which it is made again can be read then."""
    sequences = stored(disk, checkpoint_at=99)
    disk.kill()
    broker = open_broker(disk, LIMITS)
    disk.unreadable |= {path: [(64, 1 << 30)] for path in disk.files("/data/broker/")}
    for _ in range(pulls):
        with pytest.raises(UnreadableError):
            broker.pull(SUBJECT, GROUP, 20, 1 << 20, NOW_US, NOW_US)
    disk.unreadable.clear()
    assert drain(broker) == sequences
    assert broker.status()["damaged_messages"] == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_read_that_the_disk_refuses_once_at_a_start_loses_no_message(checkpoint: bool) -> None:
    number = 0
    while True:
        disk = FakeDisk()
        sequences = stored(disk, checkpoint_at=10 if checkpoint else 1000, count=60)
        disk.kill()
        calls = [0]

        def refuse(operation: str, path: str) -> int:
            if operation == "pread" and "/broker/store/" in path:
                calls[0] += 1  # noqa: B023
                return errno.EIO if calls[0] == number + 1 else 0  # noqa: B023
            return 0

        disk.refuse = refuse
        try:
            broker = open_broker(disk, LIMITS)
        except UnreadableError:  # it says so, and the next start goes on
            disk.kill()
            broker = open_broker(disk, LIMITS)
        disk.refuse = None
        assert drain(broker) == sequences, number
        if calls[0] <= number:
            break
        number += 1
    assert number > 3
