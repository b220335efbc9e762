"""Redeliveries that cannot be made at once: beyond the bound of a step, and of messages that the disk cannot read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from delayserver.broker.actions.retries import NACKED, Failure
from delayserver.broker.queues.delivery_id import of_ranges
from store.failed_reads import READ_TRIES
from store.shared.payload import encode_records
from tests.delayserver.broker.brokers import (
    GROUP,
    HOUR_US,
    LIMITS,
    NOW_US,
    SUBJECT,
    DirectBroker,
    messages,
    open_broker,
)
from tests.fakes.disk import FakeDisk

LEASE_MS = 2_000


def pull(broker: DirectBroker, count: int = 100) -> np.ndarray:
    pulled = broker.pull(SUBJECT, GROUP, count, 1 << 20, NOW_US, NOW_US, LEASE_MS)
    assert pulled is not None
    return pulled.delivery


def ended(broker: DirectBroker, now_us: int) -> list[int]:
    """End the leases that are over; the sequences of the redeliveries."""
    found: list[int] = []
    for batch in broker.expired_leases(now_us, now_us, 100):
        found += [] if batch.messages is None else batch.messages.origin_sequence.tolist()
        broker.retries.settle(batch)
    broker.check_invariants()
    return found


@pytest.mark.parametrize("keyed", [False, True])
def test_what_a_nack_has_no_room_for_keeps_its_delay_though_it_was_leased_for_less(keyed: bool) -> None:
    broker = open_broker(FakeDisk(), replace(LIMITS, retry_bytes_max=100))
    for first in (1, 3, 5):
        broker.deliver(messages(first, 2).with_columns(order_hash=np.full(2, 7 * keyed, np.uint64)), False, NOW_US)
    held = pull(broker)
    batch = broker.nack(SUBJECT, GROUP, held, HOUR_US // 1000, NOW_US, NOW_US, Failure(NACKED))
    assert batch.unknown == 0
    broker.retries.settle(batch)
    broker.check_invariants()
    assert ended(broker, NOW_US + LEASE_MS * 1000) == []
    assert ended(broker, NOW_US + HOUR_US - 1) == []
    assert ended(broker, NOW_US + HOUR_US) == ([] if keyed else [3, 4])


def test_a_nack_of_many_messages_makes_records_within_the_bound() -> None:
    bound = 10_000
    broker = open_broker(FakeDisk(), replace(LIMITS, retry_bytes_max=bound))
    for first in (1, 41, 81):
        broker.deliver(messages(first, 40), False, NOW_US)
    left, came = pull(broker, 120), list[int]()
    while len(left):
        batch = broker.nack(SUBJECT, GROUP, left, 0, NOW_US, NOW_US, Failure(NACKED))
        assert batch.messages is not None
        assert sum(map(len, encode_records([batch.messages]))) <= bound
        came += batch.messages.origin_sequence.tolist()
        broker.retries.settle(batch)
        left = of_ranges(left, *batch.rest)
    assert came == list(range(1, 121))
    broker.check_invariants()


def test_an_ack_of_what_a_nack_had_no_room_for_still_counts() -> None:
    broker = open_broker(FakeDisk(), replace(LIMITS, retry_bytes_max=100))
    broker.deliver(messages(1, 2), False, NOW_US)
    broker.deliver(messages(3, 2), False, NOW_US)
    held = pull(broker)
    broker.retries.settle(broker.nack(SUBJECT, GROUP, held, HOUR_US // 1000, NOW_US, NOW_US))
    assert broker.consuming.ack((SUBJECT, GROUP), held).acked == 2
    assert broker.retries.next_deadline_us() is None
    broker.check_invariants()


@pytest.mark.parametrize("how", ["nack", "end of the lease"])
@pytest.mark.parametrize("readable_again", [True, False])
def test_a_message_that_the_disk_cannot_read_is_asked_for_again_before_it_is_given_up(
    how: str, readable_again: bool, disk: FakeDisk
) -> None:
    broker = open_broker(disk)
    for first in (1, 11):
        broker.deliver(messages(first, 10), False, NOW_US)
    held = pull(broker)
    for first in range(100, 1000, 10):  # so that the cache forgets them
        broker.deliver(messages(first, 10, subject=SUBJECT + 1), False, NOW_US)
    disk.unreadable[disk.files("/data/broker/store")[0]] = [(512, 520)]
    now_us = NOW_US + LEASE_MS * 1000
    if how == "nack":
        batch = broker.nack(SUBJECT, GROUP, held, 0, NOW_US, NOW_US)
        assert batch.messages is not None and batch.messages.origin_sequence.tolist() == list(range(11, 21))
        broker.retries.settle(batch)
    else:
        assert ended(broker, now_us) == list(range(11, 21))
    assert broker.status()["damaged_messages"] == 0
    if readable_again:
        disk.unreadable.clear()
    came: list[int] = []
    for _ in range(READ_TRIES - 1):
        now_us += HOUR_US
        came += ended(broker, now_us)
    assert came == (list(range(1, 11)) if readable_again else [])
    assert broker.status()["damaged_messages"] == (0 if readable_again else 10)
    assert broker.retries.next_deadline_us() is None


def test_a_pause_in_its_place_does_not_end_early_because_the_clock_was_ahead_before_a_restart(disk: FakeDisk) -> None:
    limits = replace(LIMITS, redelivery_bytes_max=0)
    broker = open_broker(disk, limits)
    broker.deliver(messages(1, 2), False, NOW_US)
    broker.nack(SUBJECT, GROUP, pull(broker), HOUR_US // 1000, NOW_US, NOW_US)
    broker.deliver(messages(3, 2), False, NOW_US + 10 * HOUR_US)
    broker.close()
    now_us = NOW_US + 1000
    broker = open_broker(disk, limits, now_us)
    pulled = broker.pull(SUBJECT, GROUP, 100, 1 << 20, now_us, now_us, LEASE_MS)
    assert pulled is not None and pulled.batch.sequence.tolist() == [3, 4]
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
    deadline_us = broker.retries.next_deadline_us()
    assert deadline_us == NOW_US + HOUR_US


def test_restarts_count_as_attempts_of_the_messages_alone_that_were_handed_out_before_them(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for restart in range(12):  # the first message is held over all of them
        broker.deliver(messages(10 * restart + 1, 2), False, NOW_US)
        pulled = broker.pull(SUBJECT, GROUP, 100, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        attempts = dict(zip(pulled.batch.sequence.tolist(), pulled.attempt.tolist(), strict=True))
        newest = 10 * restart + 1
        assert attempts[1] == restart + 1
        assert attempts[newest] == attempts[newest + 1] == 1
        if restart:
            assert attempts[newest - 10] == 2, "it was handed out before one restart"
        keep = (pulled.batch.sequence != 1) & (pulled.batch.sequence < newest)
        broker.consuming.ack((SUBJECT, GROUP), pulled.delivery[keep])
        broker.durability.sync()
        broker.check_invariants()
        disk.kill()
        broker = open_broker(disk)
