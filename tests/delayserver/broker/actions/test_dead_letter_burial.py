"""Dead letters of a broker on its bad days: a message is acked with its letter, or neither happened."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from delayserver.broker.actions.retries import ACK_TIMEOUT, NACKED, Failure, RetryBatch
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.policies_file import POLICIES_FILE
from delayserver.broker.filters.filter import Filter
from delayserver.broker.policy import ConsumerPolicy
from delayserver.broker.reads import ReadPlan, read_at_once
from delayserver.broker.service.broker import Broker
from store.errors import DiskFullError
from tests.delayserver.broker.brokers import (
    GROUP,
    HOUR_US,
    LIMITS,
    NOW_US,
    SUBJECT,
    DirectBroker,
    drain,
    messages,
    open_broker,
)
from tests.fakes.disk import FakeDisk

DEAD_SUBJECT = 5
LETTERS = (DEAD_SUBJECT, GROUP)
SEQUENCE = 1_000


def with_policy(disk: FakeDisk, attempts: int = 1, limits: BrokerLimits = LIMITS) -> DirectBroker:
    broker = open_broker(disk, limits)
    plan = broker.state.policies.write((SUBJECT, GROUP), ConsumerPolicy(attempts=attempts), DEAD_SUBJECT)
    plan.run()
    broker.state.policies.apply(plan)
    return broker


def give_up(broker: DirectBroker, count: int) -> RetryBatch:
    """Hand out `count` messages and nack them, after their last attempt."""
    pulled = broker.pull(SUBJECT, GROUP, count, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None and len(pulled) == count
    batch = broker.nack(SUBJECT, GROUP, pulled.delivery, 0, NOW_US, NOW_US, Failure(NACKED, "no"))
    assert batch.given_up is not None and len(batch.given_up) == count and batch.messages is None
    return batch


def bury(broker: DirectBroker, batch: RetryBatch, first_sequence: int = SEQUENCE) -> None:
    assert broker.dead_letters.bury(batch, "orders", "shop", first_sequence, NOW_US) == [(DEAD_SUBJECT, 0)]
    broker.retries.settle(batch)
    broker.check_invariants()


def end_earlier(broker: DirectBroker) -> None:
    """Bury the messages that had their last attempt when the process before ended. Pulls have found them."""
    for batch in broker.expired_leases(NOW_US, NOW_US, 100):
        if batch.given_up is not None:
            bury(broker, batch, SEQUENCE + 100)


def letters(broker: DirectBroker) -> list[int]:
    """The sequences of the messages that are dead letters."""
    found: list[int] = broker.read_dead(LETTERS, -1, 100, 1 << 20).batch.origin_sequence.tolist()
    return found


def test_a_letter_and_its_ack_are_durable_with_one_sync(disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    bury(broker, give_up(broker, 2))
    broker.durability.sync()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert letters(broker) == [1, 2] and broker.dead_letters.waiting(LETTERS) == 2
    assert drain(broker) == [3]
    assert broker.state.damages.texts == []


@pytest.mark.parametrize("checkpoint", ["none", "before the sync", "during the sync", "behind a sync without room"])
def test_a_crash_between_the_letter_and_its_ack_acks_at_the_start(checkpoint: str, disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    broker.durability.sync()
    bury(broker, give_up(broker, 2))
    if checkpoint == "before the sync":
        broker.durability.checkpoint()
    plan = broker.durability.sync_plan()
    plan.store.run()
    if checkpoint == "during the sync":
        broker.durability.checkpoint()
    if checkpoint == "behind a sync without room":
        broker.durability.abort_sync(plan)
        broker.durability.checkpoint()
    for seed in range(2):  # the second crash comes before the acks of the first start are durable
        disk.crash(Random(seed))
        broker = open_broker(disk)
        assert letters(broker) == [1, 2]
        assert drain(broker) == [3] if seed else True
        broker.check_invariants()


@pytest.mark.parametrize("row", ["durable", "lost"])
def test_a_crash_that_lost_the_group_too_still_acks_the_messages_of_its_letters(row: str, disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    drain(broker, GROUP + 1)
    broker.positions.seek((SUBJECT, GROUP + 1), 3)  # a younger group has a count of moves
    broker.durability.sync()
    batch = give_up(broker, 2)
    if row == "durable":
        broker.durability.sync()
    bury(broker, batch)
    broker.durability.sync_plan().store.run()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert letters(broker) == [1, 2]
    assert drain(broker) == [3]


@pytest.mark.parametrize("how", ["seek", "removal", "made anew"])
def test_after_a_crash_letters_ack_nothing_of_a_group_that_was_moved_or_removed_since(how: str, disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    bury(broker, give_up(broker, 2))
    broker.durability.sync()
    if how == "seek":
        broker.positions.seek((SUBJECT, GROUP), 0)
    else:
        broker.state.groups.remove((SUBJECT, GROUP))
        if how == "made anew":
            broker.pull(SUBJECT, GROUP, 1, 1 << 20, NOW_US, NOW_US)
    broker.durability.sync()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert ((SUBJECT, GROUP) in broker.state.groups) == (how != "removal")
    # Where a consumer of the new group had the first one, the crash ended its last attempt.
    failed = 1 if how == "made anew" else 0
    assert drain(broker) == [1, 2, 3][failed:] and letters(broker) == [1, 2]
    end_earlier(broker)
    assert letters(broker) == [1, 2, 1][: 2 + failed]


@pytest.mark.parametrize("seed", range(20))
def test_after_any_crash_a_message_is_a_letter_or_comes_again(seed: int, disk: FakeDisk) -> None:
    broker = with_policy(disk)
    random = Random(seed)
    broker.deliver(messages(1, 8), False, NOW_US)
    broker.durability.sync()
    for step in range(4):
        bury(broker, give_up(broker, 2), SEQUENCE + 10 * step)
        if random.random() < 0.3:
            broker.durability.checkpoint()
        if random.random() < 0.3:
            broker.durability.sync()
    disk.crash(random)
    broker = open_broker(disk)
    drained = drain(broker)
    end_earlier(broker)
    assert sorted([*letters(broker), *drained]) == list(range(1, 9))


def test_a_full_disk_at_the_last_attempt_leaves_the_message_and_keeps_its_reason(disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 60), False, NOW_US)
    batch = give_up(broker, 60)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFullError):
        broker.dead_letters.bury(batch, "orders", "shop", SEQUENCE, NOW_US)
    broker.retries.keep_unburied(batch, NOW_US)
    broker.check_invariants()
    assert drain(broker) == [], "no consumer gets them once more"
    disk.capacity_bytes = None
    (batch,) = broker.expired_leases(NOW_US + HOUR_US, NOW_US + HOUR_US, 1000)
    assert batch.given_up is not None
    assert set(batch.given_up.failures) == {Failure(NACKED, "no")}
    bury(broker, batch)
    assert letters(broker) == list(range(1, 61))
    assert broker.expired_leases(NOW_US + 2 * HOUR_US, NOW_US + 2 * HOUR_US, 1000) == []


def test_a_full_disk_keeps_the_reason_of_each_message_until_its_letter_and_for_no_other_delivery() -> None:
    disk = FakeDisk()
    broker = with_policy(disk)
    broker.deliver(messages(1, 60), False, NOW_US)
    disk.capacity_bytes = disk.used_bytes
    nacked = give_up(broker, 30)
    with pytest.raises(DiskFullError):
        broker.dead_letters.bury(nacked, "orders", "shop", SEQUENCE, NOW_US)
    broker.retries.keep_unburied(nacked, NOW_US)
    assert broker.pull(SUBJECT, GROUP, 30, 1 << 20, NOW_US, NOW_US) is not None
    expected = [Failure(NACKED, "no")] * 30 + [Failure(ACK_TIMEOUT)] * 30
    now_us = NOW_US
    for _ in range(2):  # the disk stays full: one batch has messages of both reasons
        now_us += HOUR_US
        (batch,) = broker.expired_leases(now_us, now_us, 1000)
        assert batch.given_up is not None and batch.given_up.failures == expected
        with pytest.raises(DiskFullError):
            broker.dead_letters.bury(batch, "orders", "shop", SEQUENCE, now_us)
        broker.retries.keep_unburied(batch, now_us)
    disk.capacity_bytes = None
    now_us += HOUR_US
    (batch,) = broker.expired_leases(now_us, now_us, 1000)
    bury(broker, batch)
    broker.positions.seek((SUBJECT, GROUP), 0)
    assert broker.pull(SUBJECT, GROUP, 60, 1 << 20, now_us, now_us) is not None
    (batch,) = broker.expired_leases(now_us + HOUR_US, now_us + HOUR_US, 1000)
    assert batch.given_up is not None
    assert set(batch.given_up.failures) == {Failure(ACK_TIMEOUT)}, "an old reason"


def test_an_ended_lease_gives_up_only_messages_that_had_their_last_attempt() -> None:
    broker = with_policy(FakeDisk(), attempts=2)
    broker.deliver(messages(1, 2), False, NOW_US)
    assert broker.pull(SUBJECT, GROUP, 2, 1 << 20, NOW_US, NOW_US) is not None
    (batch,) = broker.expired_leases(NOW_US + HOUR_US, NOW_US + HOUR_US, 1000)
    assert batch.given_up is None and len(batch) == 2
    broker.retries.abandon(batch, NOW_US + HOUR_US)
    retried = messages(1, 2).with_columns(
        target_group=np.full(2, GROUP, np.uint32), redelivery=np.array([1, 0], np.uint32)
    )
    broker.deliver(retried, False, NOW_US)
    assert broker.pull(SUBJECT, GROUP, 2, 1 << 20, NOW_US, NOW_US + HOUR_US) is not None
    given_up, again = [], 0
    for batch in broker.expired_leases(NOW_US + 3 * HOUR_US, NOW_US + 3 * HOUR_US, 1000):
        again += len(batch)
        if batch.given_up is not None:
            given_up += batch.given_up.attempts.tolist()
            assert set(batch.given_up.failures) == {Failure(ACK_TIMEOUT)}
            bury(broker, batch)
    assert (given_up, again) == ([2], 3)


def test_a_damaged_table_of_policies_loses_no_letter_and_no_message(disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    broker.durability.sync()
    bury(broker, give_up(broker, 2))
    broker.durability.sync_plan().store.run()
    disk.kill()
    disk.flip_bit(f"/data/broker/{POLICIES_FILE}", 20)
    broker = open_broker(disk)
    assert any(POLICIES_FILE in text for text in broker.state.damages.texts)
    assert any("dead letters of an unknown group" in text for text in broker.state.damages.texts)
    assert letters(broker) == [1, 2]
    assert drain(broker) == [1, 2, 3], "after two failures at once a message may come again: it is not lost"


def test_letters_stay_while_all_else_is_consumed_and_go_after_a_week(disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    bury(broker, give_up(broker, 2))
    for step in range(30):
        broker.deliver(messages(10 + 40 * step, 40), False, NOW_US)
        drain(broker)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()
    broker.retention.retire(NOW_US + 24 * HOUR_US)
    assert letters(broker) == [1, 2], "their group has not taken them"
    assert broker.retention.retire(NOW_US + 8 * 24 * HOUR_US), (
        "one forgotten letter does not hold back the store for ever"
    )
    assert letters(broker) == [] and broker.dead_letters.waiting(LETTERS) == 0
    assert broker.status()["dead_letters_retired"] == 2


def test_another_group_of_the_dead_letter_subject_holds_letters_as_any_group_does() -> None:
    broker = with_policy(FakeDisk())
    broker.deliver(messages(1, 3), False, NOW_US)
    assert broker.pull(DEAD_SUBJECT, GROUP, 1, 1000, NOW_US, NOW_US) is None
    broker.retention.retire(NOW_US)
    bury(broker, give_up(broker, 2))
    assert broker.pull(DEAD_SUBJECT, GROUP + 1, 1, 1000, NOW_US, NOW_US) is not None
    for step in range(30):
        broker.deliver(messages(10 + 40 * step, 40), False, NOW_US)
        drain(broker)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()
    broker.retention.retire(NOW_US + 30 * 24 * HOUR_US)
    assert letters(broker) == [1, 2]


def test_dropped_letters_hold_nothing_back(disk: FakeDisk) -> None:
    broker = with_policy(disk)
    broker.deliver(messages(1, 3), False, NOW_US)
    bury(broker, give_up(broker, 2))
    assert broker.dead_queue.drop(LETTERS, None, 10) == 2
    for step in range(30):
        broker.deliver(messages(10 + 40 * step, 40), False, NOW_US)
        drain(broker)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()
    assert broker.retention.retire(NOW_US + 2 * HOUR_US)
    assert broker.status()["dead_letters_retired"] == 0


def test_claimed_letters_go_to_no_other_call_until_they_are_given_back() -> None:
    broker = with_policy(FakeDisk())
    broker.deliver(messages(1, 6), False, NOW_US)
    bury(broker, give_up(broker, 6))
    claim = broker.claim_dead(LETTERS, np.array([1, 2, 4]), -1, 100, 1 << 20)
    broker.check_invariants()
    assert claim.letters.positions.tolist() == [1, 2, 4]
    assert len(broker.claim_dead(LETTERS, np.array([1, 2, 4]), -1, 100, 1 << 20).letters) == 0
    pulled = broker.pull(DEAD_SUBJECT, GROUP, 100, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None and pulled.batch.origin_sequence.tolist() == [1, 4, 6]
    assert broker.dead_queue.drop(LETTERS, None, 100) == 0
    broker.dead_queue.give_back(claim)
    broker.check_invariants()
    assert broker.dead_queue.drop(LETTERS, None, 2) == 2
    assert letters(broker) == [1, 4, 5, 6]
    broker.check_invariants()


def finished(broker: Broker, plan: ReadPlan | None) -> None:
    assert plan is not None
    broker.state.files.reads.begin(plan)
    plan.run()
    broker.state.files.reads.finish(plan)


@pytest.mark.parametrize("resent", [True, False])
def test_a_claim_brings_no_letter_to_a_group_that_its_filter_keeps_away(resent: bool) -> None:
    broker = open_broker(FakeDisk())
    broker.consuming.use_filter((DEAD_SUBJECT, GROUP), Filter([3], None))
    tags = np.array([1, 3, 1, 3], np.uint32)
    broker.deliver(messages(1, 4, subject=DEAD_SUBJECT).with_columns(tag=tags), False, NOW_US)
    claim = broker.claim_dead(LETTERS, np.array([2, 3]), -1, 10, 1 << 20)
    if resent:
        broker.dead_queue.settle(claim)
    else:
        broker.dead_queue.give_back(claim)
    assert drain(broker, GROUP, NOW_US, DEAD_SUBJECT) == [2] + [4] * (not resent)
    broker.check_invariants()


def test_a_seek_or_a_removal_during_a_read_gives_up_nothing_that_it_moved() -> None:
    for moved in ("seek", "remove"):
        disk = FakeDisk()
        broker = with_policy(disk, limits=replace(LIMITS, read_ahead_bytes=1))
        for first in range(1, 200, 40):
            broker.deliver(messages(first, 40), False, NOW_US)
        parts = []
        while (pulled := broker.pull(SUBJECT, GROUP, 200, 1 << 20, NOW_US, NOW_US)) is not None:
            parts.append(pulled.delivery)
        deliveries = np.concatenate(parts)
        assert len(deliveries) == 200
        call = broker.retries.nack((SUBJECT, GROUP), deliveries, 0, NOW_US, NOW_US, Failure(NACKED))
        for _ in range(2):
            finished(broker, next(call))
        plan = next(call)  # the messages of earlier records were gathered
        if moved == "seek":
            broker.positions.seek((SUBJECT, GROUP), 0)
        else:
            broker.state.groups.remove((SUBJECT, GROUP))
        finished(broker, plan)
        batch = read_at_once(broker.state.files.reads, call)
        assert batch.given_up is None, "what was gathered before the read was moved"
        broker.check_invariants()
        assert letters(broker) == [] and len(drain(broker)) == 200


def test_letters_without_room_of_scattered_messages_are_noted_at_the_cost_of_each() -> None:
    broker = with_policy(FakeDisk(), limits=BrokerLimits())
    for first in range(1, 8001, 1000):
        broker.deliver(messages(first, 1000), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 8000, 1 << 30, NOW_US, NOW_US)
    assert pulled is not None and len(pulled) == 8000
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery[::2])
    batch = broker.nack(SUBJECT, GROUP, pulled.delivery[1::2], 0, NOW_US, NOW_US, Failure(NACKED, "no"))
    began = time.process_time()
    broker.retries.keep_unburied(batch, NOW_US)
    assert time.process_time() - began < 1.5
    assert broker.state.groups.leased((SUBJECT, GROUP)) == 4000
    broker.check_invariants()
