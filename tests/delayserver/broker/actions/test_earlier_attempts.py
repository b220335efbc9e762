"""How often a message was handed out, over the ends of processes: neither forgotten nor given away."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from delayserver.broker.actions.retries import ACK_TIMEOUT, NACKED, Failure
from delayserver.broker.filters.filter import Filter
from delayserver.broker.policy import WAIT, ConsumerPolicy
from store.errors import DiskFullError
from store.records.batches import StoredBatch
from store.records.id_hash import hash_id
from tests.delayserver.broker.brokers import GROUP, LIMITS, NOW_US, SERVER, SUBJECT, DirectBroker, open_broker
from tests.fakes.disk import FakeDisk

DEAD_SUBJECT = 5
LETTERS = (DEAD_SUBJECT, GROUP)
IN_PLACE = replace(LIMITS, redelivery_bytes_max=0)


def keyed(first: int, *keys: str, tag: int = 0) -> StoredBatch:
    """Messages with sequences from `first` on and these order keys; "" for none."""
    count = len(keys)
    return StoredBatch.filled(
        count,
        sequence=np.arange(first, first + count),
        server_id=SERVER,
        window_ms=60_000,
        subject=SUBJECT,
        bodies_length=50,
        bodies=bytes(50 * count),
        order_hash=np.array([hash_id(key.encode()) if key else 0 for key in keys], np.uint64),
        order_keys_length=np.array([len(key) for key in keys], np.uint32),
        order_keys="".join(keys).encode(),
        tag=tag,
    )


def with_policy(disk: FakeDisk, policy: ConsumerPolicy) -> DirectBroker:
    broker = open_broker(disk)
    plan = broker.state.policies.write((SUBJECT, GROUP), policy, DEAD_SUBJECT)
    plan.run()
    broker.state.policies.apply(plan)
    return broker


def attempts(broker: DirectBroker, count: int = 100) -> dict[int, int]:
    """Pull: the attempt of each message, by its sequence."""
    pulled = broker.pull(SUBJECT, GROUP, count, 1 << 20, NOW_US, NOW_US)
    broker.check_invariants()
    return {} if pulled is None else dict(zip(pulled.batch.sequence.tolist(), pulled.attempt.tolist(), strict=True))


def killed(broker: DirectBroker, disk: FakeDisk) -> DirectBroker:
    """The process is killed, and another one starts."""
    broker.abandon()
    disk.kill()
    return open_broker(disk)


def stopped(broker: DirectBroker, disk: FakeDisk) -> DirectBroker:
    """The process stops cleanly, and another one starts."""
    broker.close()
    return open_broker(disk)


def cut_off(broker: DirectBroker, disk: FakeDisk) -> DirectBroker:
    """The machine loses its power a while after the last request."""
    broker.durability.sync()
    broker.abandon()
    disk.crash(Random(1))
    return open_broker(disk)


ENDS = [killed, stopped, cut_off]
End = Callable[[DirectBroker, FakeDisk], DirectBroker]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("key", ["", "k"], ids=["no key", "a key"])
def test_a_message_that_takes_the_process_down_is_given_up_after_its_last_attempt(end: End, key: str) -> None:
    disk = FakeDisk()
    broker = with_policy(disk, ConsumerPolicy(attempts=3))
    broker.deliver(keyed(1, key, "other"), False, NOW_US)
    broker.durability.sync()
    for number in (1, 2, 3):
        assert attempts(broker, 1) == {1: number}
        broker = end(broker, disk)
    assert attempts(broker) == {2: 1}
    (batch,) = broker.expired_leases(NOW_US, NOW_US, 100)
    assert batch.given_up is not None and batch.given_up.attempts.tolist() == [3]
    assert batch.given_up.failures == [Failure(ACK_TIMEOUT)] and batch.messages is None
    assert broker.dead_letters.bury(batch, "orders", "shop", 100, NOW_US) == [(DEAD_SUBJECT, 0)]
    broker = end(broker, disk)
    assert attempts(broker) == {2: 2} and broker.dead_letters.waiting(LETTERS) == 1


@pytest.mark.parametrize("end", ENDS)
def test_a_message_that_waited_for_its_key_was_never_handed_out(end: End, disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(keyed(1, "k"), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker) == {1: 1}
    broker.deliver(keyed(2, "k", "", "k"), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker) == {3: 1}
    broker = end(broker, disk)
    assert attempts(broker) == {1: 2, 2: 1, 3: 2, 4: 1}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_process_costs_one_attempt_for_each_order_key(end: End, disk: FakeDisk) -> None:
    broker = with_policy(disk, ConsumerPolicy(attempts=3))
    broker.deliver(keyed(1, "k", "k", "", "k"), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker) == {1: 1, 2: 1, 3: 1, 4: 1}
    broker = end(broker, disk)
    assert attempts(broker) == {1: 2, 2: 1, 3: 2, 4: 1}
    broker = end(broker, disk)
    assert attempts(broker, 2) == {1: 3, 2: 1}
    broker = end(broker, disk)
    assert attempts(broker) == {3: 3} and len(broker.expired_leases(NOW_US, NOW_US, 100)) == 1


@pytest.mark.parametrize("end", ENDS)
def test_messages_behind_a_failed_one_of_their_key_lose_their_attempt_for_good(end: End, disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(keyed(1, "k", "k"), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 2, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    broker.nack(SUBJECT, GROUP, pulled.delivery[:1], 60_000, NOW_US, NOW_US, Failure(NACKED, "no"))
    broker.durability.sync()
    broker = end(broker, disk)
    assert attempts(broker) == {1: 2, 2: 1}


@pytest.mark.parametrize("end", ENDS)
def test_a_key_whose_last_attempt_ended_with_the_process_comes_again_where_it_must_wait(end: End) -> None:
    disk = FakeDisk()
    broker = with_policy(disk, ConsumerPolicy(attempts=1, failed_key=WAIT))
    broker.deliver(keyed(1, "k", "", "k"), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker, 1) == {1: 1}
    broker = end(broker, disk)
    assert attempts(broker) == {1: 2, 2: 1, 3: 1}


def test_a_filter_does_not_hide_the_last_attempt_of_an_earlier_process(disk: FakeDisk) -> None:
    broker = with_policy(disk, ConsumerPolicy(attempts=1))
    broker.consuming.use_filter((SUBJECT, GROUP), Filter([1], None))
    for first in range(1, 31, 3):
        broker.deliver(keyed(first, "", tag=2), False, NOW_US)
        broker.deliver(keyed(first + 1, "", "", tag=1), False, NOW_US)
    assert [*attempts(broker, 2), *attempts(broker, 1)] == [2, 3, 5]
    broker = killed(broker, disk)
    broker.consuming.use_filter((SUBJECT, GROUP), Filter([1], None))
    found: list[int] = []
    while more := attempts(broker):
        found += more
    assert found == [number for number in range(6, 31) if number % 3 != 1]
    (batch,) = broker.expired_leases(NOW_US, NOW_US, 100)
    assert batch.given_up is not None and batch.given_up.stored.sequence.tolist() == [2, 3, 5]


def test_redeliveries_in_their_place_keep_their_attempts_over_a_kill(disk: FakeDisk) -> None:
    broker = DirectBroker.open(disk, "/data/broker", SERVER, NOW_US, IN_PLACE)
    broker.deliver(keyed(1, "", "", ""), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 3, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    broker.nack(SUBJECT, GROUP, pulled.delivery[1:2], 0, NOW_US, NOW_US, Failure(NACKED, "no"))
    assert attempts(broker) == {2: 2}
    broker.abandon()
    disk.kill()
    broker = DirectBroker.open(disk, "/data/broker", SERVER, NOW_US, IN_PLACE)
    assert attempts(broker) == {1: 2, 2: 3, 3: 2}


@pytest.mark.parametrize("end", ENDS)
def test_a_snapshot_of_the_log_keeps_what_was_handed_out_before_and_during_it(end: End, disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(keyed(1, "", "k", "k", *[""] * 20), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker, 2) == {1: 1, 2: 1}
    end(broker, disk).abandon()
    broker = DirectBroker.open(disk, "/data/broker", SERVER, NOW_US, replace(LIMITS, progress_bytes_max=1))
    assert attempts(broker, 2) == {1: 2, 2: 2}
    for number in range(4, 22):  # until the log is long
        assert attempts(broker, 1) == {number: 1}
    plan = broker.durability.sync_plan()
    assert plan.progress.snapshot
    assert attempts(broker, 1) == {22: 1}
    plan.run()
    broker.durability.finish_sync()
    broker = end(broker, disk)
    assert attempts(broker) == {1: 3, 2: 3, 3: 1} | dict.fromkeys(range(4, 23), 2) | {23: 1}


def test_a_hand_out_behind_a_seek_counts_although_the_seek_was_not_durable_yet(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(keyed(1, "", ""), False, NOW_US)
    broker.durability.sync()
    assert attempts(broker) == {1: 1, 2: 1}
    broker.positions.seek((SUBJECT, GROUP), 0)
    assert attempts(broker, 1) == {1: 1}
    broker.durability.sync()
    assert attempts(killed(broker, disk)) == {1: 2, 2: 1}


def test_a_full_disk_delays_the_count_of_a_hand_out_and_hands_out(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(keyed(1, "", ""), False, NOW_US)
    broker.durability.sync()
    disk.refuse = lambda operation, path: errno.ENOSPC if operation == "pwrite" and "progress" in path else 0
    assert attempts(broker, 1) == {1: 1}
    with pytest.raises(DiskFullError):
        broker.durability.sync()
    disk.refuse = None
    assert attempts(broker, 1) == {2: 1}
    broker.durability.sync()
    assert attempts(killed(broker, disk)) == {1: 2, 2: 2}


def test_messages_in_the_place_of_lost_ones_were_never_handed_out() -> None:
    lost = 0
    for seed in range(10):
        disk = FakeDisk()
        broker = open_broker(disk)
        broker.deliver(keyed(1, ""), False, NOW_US)
        broker.durability.sync()
        broker.deliver(keyed(2, "", ""), False, NOW_US)
        assert attempts(broker) == {1: 1, 2: 1, 3: 1}
        broker.durability.sync_plan().progress.run()  # the power fails before the store is synced
        broker.abandon()
        disk.crash(Random(seed))
        broker = open_broker(disk)
        broker.deliver(keyed(12, "", ""), False, NOW_US)
        broker.durability.sync()
        for number in (2, 3):
            found = attempts(broker)
            assert found[1] == number and found[12] == found[13] == number - 1
            lost += 2 not in found
            broker = killed(broker, disk)
    assert lost, "no seed took the messages"


@pytest.mark.parametrize("snapshot", [False, True], ids=["rows", "snapshot"])
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_start_settles_a_redelivery_by_whether_it_was_written(written: bool, snapshot: bool, disk: FakeDisk) -> None:
    limits = replace(LIMITS, progress_bytes_max=1 if snapshot else LIMITS.progress_bytes_max)
    broker = DirectBroker.open(disk, "/data/broker", SERVER, NOW_US, limits)
    broker.deliver(keyed(1, *[""] * 20), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 2, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    for _ in range(15):  # until the log is long
        attempts(broker, 1)
    batch = broker.nack(SUBJECT, GROUP, pulled.delivery[:1], 0, NOW_US, NOW_US, Failure(NACKED, "no"))
    assert batch.messages is not None
    broker.in_doubt.begin_retry(batch, 4_000)
    plan = broker.durability.sync_plan()
    assert plan.progress.snapshot == snapshot
    plan.run()
    broker.durability.finish_sync()
    broker.abandon()
    disk.kill()
    broker = open_broker(disk)
    assert [broker.in_doubt.first_offset()] == [4_000]
    earlier = [(3_000, batch.messages)]  # the record of which the message itself came
    broker.in_doubt.settle([*earlier, (5_000, batch.messages)] if written else earlier)
    assert [broker.in_doubt.first_offset()] == [None]
    assert attempts(broker, 2) == ({2: 2, 3: 2} if written else {1: 2, 2: 2})
