"""Leases that a consumer extends, and those that end with it: at their time, and nothing else of the group changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from delayserver.broker.actions.retries import NACKED, Failure
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.pulled_batch import PulledBatch
from tests.delayserver.broker.brokers import (
    GROUP,
    LIMITS,
    NOW_US,
    SUBJECT,
    DirectBroker,
    messages,
    open_broker,
)
from tests.fakes.disk import FakeDisk

LEASE_MS = 2_000
SECOND_US = 1_000_000


def broker_with(count: int, limits: BrokerLimits = LIMITS, keys: int = 0) -> DirectBroker:
    """A broker with messages of the sequences from 1 on, with so many order keys in turn; 0: without keys."""
    broker = open_broker(FakeDisk(), limits)
    hashes = np.arange(count) % keys + 1 if keys else np.zeros(count)
    broker.deliver(messages(1, count).with_columns(order_hash=hashes.astype(np.uint64)), False, NOW_US)
    return broker


def pull(broker: DirectBroker, count: int = 100, now_us: int = NOW_US) -> PulledBatch:
    pulled = broker.pull(SUBJECT, GROUP, count, 1 << 20, now_us, now_us, LEASE_MS)
    assert pulled is not None
    return pulled


def extend(
    broker: DirectBroker, deliveries: np.ndarray, now_us: int = NOW_US, timeout_ms: int = 10_000
) -> tuple[int, int]:
    extended = broker.consuming.extend((SUBJECT, GROUP), deliveries, now_us, timeout_ms)
    broker.check_invariants()
    return extended.extended, extended.unknown


def ended(broker: DirectBroker, now_us: int) -> list[int]:
    """Ends the leases that are over; the sequences of the messages that come again."""
    found: list[int] = []
    for batch in broker.expired_leases(now_us, now_us, 1000):
        found += [] if batch.messages is None else batch.messages.origin_sequence.tolist()
        broker.retries.settle(batch)
    broker.check_invariants()
    return found


@pytest.mark.parametrize("chosen", [[0], [9], [3, 4, 5], [0, 2, 4, 6, 8], list(range(10))])
def test_an_extended_lease_ends_at_its_new_time_and_the_others_at_theirs(chosen: list[int]) -> None:
    broker = broker_with(10)
    delivery = pull(broker).delivery
    assert extend(broker, delivery[chosen], NOW_US + SECOND_US) == (len(chosen), 0)
    rest = [row for row in range(10) if row not in chosen]
    assert ended(broker, NOW_US + LEASE_MS * 1000) == [row + 1 for row in rest]
    assert ended(broker, NOW_US + 11 * SECOND_US - 1) == []
    assert ended(broker, NOW_US + 11 * SECOND_US) == [row + 1 for row in chosen]


def test_a_lease_may_be_extended_again_and_again_and_holds_no_memory_for_it() -> None:
    broker = broker_with(10)
    delivery = pull(broker).delivery
    for second in range(5_000):
        assert extend(broker, delivery[::2], NOW_US + second * SECOND_US) == (5, 0)
    cursor = broker.state.groups[SUBJECT, GROUP].main
    assert cursor.lease_ranges <= 1_000 and cursor.place_ranges == 5
    assert broker.consuming.ack((SUBJECT, GROUP), delivery).acked == 10
    assert broker.retries.next_deadline_us() is None


def test_a_lease_may_be_made_shorter() -> None:
    broker = broker_with(4)
    assert extend(broker, pull(broker).delivery[1:2], NOW_US, 5) == (1, 0)
    assert broker.retries.next_deadline_us() == NOW_US + 5_000
    assert ended(broker, NOW_US + 5_000) == [2]
    assert ended(broker, NOW_US + LEASE_MS * 1000) == [1, 3, 4]


def test_a_message_comes_again_after_an_extended_lease_as_one_attempt_more() -> None:
    broker = broker_with(3, replace(LIMITS, redelivery_bytes_max=0))  # so that they come from their place
    now_us = NOW_US
    for attempt in (1, 2, 3):
        pulled = pull(broker, now_us=now_us)
        assert pulled.attempt.tolist() == [attempt] * 3
        assert extend(broker, pulled.delivery[1:], now_us) == (2, 0)
        ended(broker, now_us + LEASE_MS * 1000)
        ended(broker, now_us + 10 * SECOND_US)
        now_us += 60 * SECOND_US


def test_messages_with_an_order_key_keep_their_key_as_long_as_the_extended_lease() -> None:
    broker = broker_with(3, keys=2)
    pulled = pull(broker, 2)
    assert extend(broker, pulled.delivery[:1]) == (1, 0)
    assert ended(broker, NOW_US + LEASE_MS * 1000) == []  # it waits in its place for its pause
    later_us = NOW_US + 5 * SECOND_US
    assert pull(broker, now_us=later_us).batch.sequence.tolist() == [2]
    assert extend(broker, pulled.delivery, later_us) == (1, 1)


def test_what_is_leased_no_more_is_unknown() -> None:
    broker = broker_with(10)
    delivery = pull(broker).delivery
    broker.consuming.ack((SUBJECT, GROUP), delivery[:2])
    nacked = broker.nack(SUBJECT, GROUP, delivery[2:4], 0, NOW_US, NOW_US, Failure(NACKED))
    assert extend(broker, delivery[:6]) == (2, 4)  # the nack is under way
    broker.retries.settle(nacked)
    assert extend(broker, delivery[:6]) == (2, 4)
    assert ended(broker, NOW_US + LEASE_MS * 1000) == [7, 8, 9, 10]
    assert extend(broker, delivery) == (2, 8)
    assert extend(broker, delivery + (1 << 20)) == (0, 10)
    assert extend(broker, np.array([-1, 1 << 62], np.int64)) == (0, 2)
    assert broker.consuming.extend((SUBJECT, GROUP + 1), delivery, NOW_US, 1000).unknown == 10


def test_a_nack_and_an_ack_end_an_extended_lease() -> None:
    broker = broker_with(4)
    delivery = pull(broker).delivery
    extend(broker, delivery)
    broker.retries.settle(broker.nack(SUBJECT, GROUP, delivery[:1], 0, NOW_US, NOW_US, Failure(NACKED)))
    assert broker.consuming.ack((SUBJECT, GROUP), delivery[1:3]).acked == 2
    assert extend(broker, delivery) == (1, 3)
    assert ended(broker, NOW_US + 10 * SECOND_US) == [4]


def test_a_restart_and_a_seek_end_leases_whatever_their_time(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 5), False, NOW_US)
    delivery = pull(broker).delivery
    assert extend(broker, delivery) == (5, 0)
    broker.close()
    broker = open_broker(disk)
    assert extend(broker, delivery) == (0, 5)
    pulled = pull(broker)
    assert pulled.attempt.tolist() == [2] * 5
    broker.positions.seek((SUBJECT, GROUP), 0)
    assert extend(broker, pulled.delivery) == (0, 5)


def test_a_group_that_extends_too_many_scattered_leases_is_refused_and_keeps_the_others() -> None:
    broker = broker_with(30, replace(LIMITS, lease_ranges_max=8))
    delivery = pull(broker).delivery
    assert extend(broker, delivery[0:12:2]) == (6, 0)
    assert broker.consuming.extend((SUBJECT, GROUP), delivery[13:20:2], NOW_US, 10_000).full
    assert ended(broker, NOW_US + LEASE_MS * 1000) == [row + 1 for row in range(30) if row not in range(0, 12, 2)]


def gone(broker: DirectBroker, owner: int, now_us: int = NOW_US) -> list[tuple[int, int]]:
    """The connection of an owner ends: the sequences of the messages that come again, and after how many milliseconds."""
    batch = broker.end_leases_of((SUBJECT, GROUP), {owner}, now_us, now_us)
    broker.check_invariants()
    if batch is None or batch.messages is None:
        return []
    broker.retries.settle(batch)
    due = batch.messages.due_ms - now_us // 1000
    return list(zip(batch.messages.origin_sequence.tolist(), due.tolist(), strict=True))


def owned(broker: DirectBroker, owner: int, count: int, now_us: int = NOW_US) -> PulledBatch:
    pulled = broker.pull(SUBJECT, GROUP, count, 1 << 20, now_us, now_us, LEASE_MS, owner)
    assert pulled is not None
    return pulled


def test_leases_of_an_owner_that_is_gone_end_at_once_and_those_of_others_in_their_time() -> None:
    broker = broker_with(12)
    first = owned(broker, 1, 4)
    owned(broker, 2, 4)
    pull(broker, 4)
    broker.consuming.ack((SUBJECT, GROUP), first.delivery[:1])
    assert gone(broker, 3) == []
    assert gone(broker, 1) == [(2, 0), (3, 0), (4, 0)]
    assert gone(broker, 1) == []
    assert ended(broker, NOW_US + LEASE_MS * 1000) == list(range(5, 13))


def test_who_extends_a_lease_owns_it() -> None:
    broker = broker_with(6)
    delivery = owned(broker, 1, 6).delivery
    broker.consuming.extend((SUBJECT, GROUP), delivery[:2], NOW_US, LEASE_MS, 2)
    broker.consuming.extend((SUBJECT, GROUP), delivery[2:4], NOW_US, LEASE_MS + 1)
    assert gone(broker, 1) == [(5, 0), (6, 0)]
    assert gone(broker, 2) == [(1, 0), (2, 0)]
    assert ended(broker, NOW_US + LEASE_MS * 1000 + 1000) == [3, 4]


def test_a_message_that_loses_its_consumer_again_and_again_waits_for_pauses_and_its_attempts_count() -> None:
    broker = broker_with(1, replace(LIMITS, redelivery_bytes_max=0))  # so that it comes from its place
    now_us, pauses_ms = NOW_US, []
    for attempt in (1, 2, 3, 4):
        pulled = owned(broker, attempt, 1, now_us)
        assert pulled.attempt.tolist() == [attempt]
        batch = broker.end_leases_of((SUBJECT, GROUP), {attempt}, now_us, now_us)
        assert batch is not None
        (place,) = broker.state.groups[SUBJECT, GROUP].main.places
        pauses_ms.append((place.until_us - now_us) // 1000)
        now_us = place.until_us
    assert pauses_ms == [0, 1000, 2000, 4000]


def test_a_lease_of_another_consumer_of_the_same_delivery_does_not_end_with_the_first_one() -> None:
    broker = broker_with(1, replace(LIMITS, redelivery_bytes_max=0))
    first = owned(broker, 1, 1)
    broker.nack(SUBJECT, GROUP, first.delivery, 0, NOW_US, NOW_US, None)
    second = owned(broker, 2, 1, NOW_US + 1)
    assert second.delivery.tolist() == first.delivery.tolist(), "it comes from its place"
    assert gone(broker, 1, NOW_US + 2) == []
    assert broker.state.groups.leased((SUBJECT, GROUP)) == 1


def test_messages_with_an_order_key_come_again_in_order_when_their_consumer_is_gone() -> None:
    broker = broker_with(6, keys=2)
    owned(broker, 1, 4)
    assert gone(broker, 1) == []  # they wait in their place
    again = owned(broker, 2, 10)
    # Of each key only the first message had an attempt. It comes alone, and then the others.
    assert (again.batch.sequence.tolist(), again.attempt.tolist()) == ([1, 2], [2, 2])
