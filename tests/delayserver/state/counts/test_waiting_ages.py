"""The ages of redeliveries: counts are exact, ages to some hundredth, and a table has a bounded size whatever it counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.state.counts.redeliveries import Redeliveries, RedeliveryRows
from delayserver.state.counts.waiting_ages import STEPS_MAX, WaitingAges
from store.records.batches import MessageBatch, StoredBatch

KEY = (3, 5)
SPAN_MS = st.sampled_from([10, 10_000, 86_400_000])


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), SPAN_MS)
def test_what_came_and_went_leaves_nothing(times: list[int], span_ms: int) -> None:
    ages = WaitingAges()
    since_us = np.array([1_700_000_000_000_000 + time * span_ms * 1000 // 400 for time in times])
    codes = np.full(len(times), 3, np.uint32), np.full(len(times), 5, np.uint32)
    ages.add(*codes, since_us, 1)
    ages.check_invariants()
    assert (ages.count(KEY), ages.count((3, 6)), ages.total()) == (len(times), 0, len(times))
    oldest_ms = ages.oldest_ms(KEY)
    assert oldest_ms is not None
    exact_ms = int(since_us.min()) // 1000
    assert exact_ms - 2 * span_ms / STEPS_MAX - 1 <= oldest_ms <= exact_ms
    copied = ages.copy()
    ages.add(*codes, since_us, -1)
    assert (ages.count(KEY), ages.oldest_ms(KEY)) == (0, None)
    copied.merge(copied.copy(), -1)
    assert copied.total() == 0, "a table that was copied and taken away"


def redelivery(sequence: int) -> StoredBatch:
    return StoredBatch.filled(1, sequence=sequence, subject=3, target_group=5, accepted_us=7_000_000)


def test_a_redelivery_that_a_queue_has_twice_counts_once() -> None:
    """A hand-over whose sync failed is repeated, and the node then says that it has it."""
    counts = Redeliveries()
    counts.count_sent(MessageBatch.filled(1, subject=3, target_group=5, accepted_us=7_000_000))
    assert (counts.waiting(KEY), counts.oldest_ms(KEY)) == (1, 7_000)
    for _ in range(2):
        counts.count_arrived(redelivery(9), np.arange(1))
        assert counts.waiting(KEY) == 0
    rows = RedeliveryRows.of_messages(redelivery(9))
    assert rows is not None
    counts.count_decided(rows)
    assert counts.waiting(KEY) == 0
    counts.check_invariants()


def test_a_redelivery_that_another_node_has_waits_no_more() -> None:
    counts = Redeliveries()
    counts.count_sent(MessageBatch.filled(2, subject=3, target_group=5, accepted_us=7_000_000))
    rows = RedeliveryRows.of_messages(redelivery(9))
    assert rows is not None
    counts.count_decided(rows)
    assert counts.waiting(KEY) == 1
