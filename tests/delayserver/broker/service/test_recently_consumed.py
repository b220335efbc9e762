"""The record of pulls and acks is bounded, and has each hand-out of a message."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.pulled_batch import PulledBatch
from delayserver.broker.service import recently_consumed
from delayserver.broker.service.recently_consumed import Consumed, RecentlyConsumed
from store.records.batches import StoredBatch


def pulled(first: int, count: int = 1, origin: int = 0, server: int = 7) -> PulledBatch:
    sequence = np.arange(first, first + count)
    batch = StoredBatch.filled(count, sequence=sequence, origin_sequence=origin, server_id=server)
    return PulledBatch(batch, sequence + 1000, np.ones(count, np.uint32))


def test_each_hand_out_has_its_ack() -> None:
    record = RecentlyConsumed()
    record.add_pull(1, 5, pulled(10, 4), 100)
    record.add_pull(1, 6, pulled(12), 110)
    record.add_ack(1, 5, np.array([1011, 1012]), 120)
    assert record.of(7, 1, 12) == [Consumed(5, 100, 120), Consumed(6, 110, 0)]
    assert record.of(7, 1, 13) == [Consumed(5, 100, 0)]
    assert record.of(7, 2, 12) == record.of(8, 1, 12) == record.of(7, 1, 14) == []


def test_a_redelivery_counts_as_a_hand_out_of_its_message() -> None:
    record = RecentlyConsumed()
    record.add_pull(1, 5, pulled(10), 100)
    record.add_pull(1, 5, pulled(90, origin=10), 200)
    record.add_ack(1, 5, np.array([1090]), 210)
    assert record.of(7, 1, 10) == [Consumed(5, 100, 0), Consumed(5, 200, 210)]


def test_the_oldest_consumed_messages_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recently_consumed, "ROWS_MAX", 10)
    monkeypatch.setattr(recently_consumed, "ENTRIES_MAX", 3)
    record = RecentlyConsumed()
    for first in (0, 10, 20, 30):
        record.add_pull(1, 5, pulled(first), first)
    assert [len(record.of(7, 1, first)) for first in (0, 10, 20, 30)] == [0, 1, 1, 1]
    record.add_pull(1, 5, pulled(100, 9), 50)
    assert [len(record.of(7, 1, first)) for first in (20, 30, 100)] == [0, 1, 1]
