"""Delivery ids name queue, epoch, lease and position, and no id is taken for one of another lease or start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.queues.delivery_id import (
    EPOCHS,
    LEASES,
    PIECE_ROWS_MAX,
    POSITION_BITS,
    delivery_ids,
    pieces_of,
    split_deliveries,
    with_leases,
)
from delayserver.broker.queues.ranges import ranges_of


@pytest.mark.parametrize("epoch", [0, 7, EPOCHS - 1, 123_456_789])
def test_each_lease_of_a_message_has_its_number_in_its_epoch_and_in_none_of_the_fifteen_next(epoch: int) -> None:
    leases = np.arange(LEASES)
    ids = with_leases(np.repeat(delivery_ids(77, 1, epoch, 3, True), LEASES), leases)
    assert len(np.unique(ids)) == LEASES and ids.min() > 0
    parts = split_deliveries(ids)
    assert sorted(part.lease_in(epoch) or 0 for part in parts) == leases.tolist()
    assert all(part.ranges == [(77, 78)] and part.retry and part.moves == 3 for part in parts)
    for others in range(1, 16):
        # Only the few numbers before the last one of an epoch can be those of another.
        wrong = [part.lease_in(epoch + others) for part in parts]
        assert all(lease is None or lease >= LEASES - 16 for lease in wrong)


def test_epochs_differ_without_a_lease() -> None:
    fields = {int(delivery_ids(0, 1, epoch, 0, False)[0]) >> POSITION_BITS for epoch in range(EPOCHS)}
    assert len(fields) == EPOCHS


@given(
    st.lists(st.tuples(st.integers(-50, 400), st.integers(1, 40)), max_size=12),
    st.integers(1, 9),
)
def test_pieces_are_all_deliveries_in_their_order_with_few_ranges_each(
    spans: list[tuple[int, int]], ranges_max: int
) -> None:
    ids = np.concatenate([np.empty(0, np.int64), *[np.arange(start, start + count) for start, count in spans]])
    pieces = list(pieces_of(ids, ranges_max))
    assert np.concatenate([np.empty(0, np.int64), *[piece for piece, _ in pieces]]).tolist() == ids.tolist()
    for piece, ranges in pieces:
        assert len(ranges_of(piece)) <= ranges <= ranges_max and 0 < len(piece) <= PIECE_ROWS_MAX


def test_deliveries_that_follow_one_another_are_few_pieces() -> None:
    assert [(len(piece), ranges) for piece, ranges in pieces_of(np.arange(20_000))] == [(PIECE_ROWS_MAX, 1), (3_616, 1)]


@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=50), st.integers(0, 1 << 46))
def test_any_ids_are_split_by_all_but_their_positions(ids: list[int], first: int) -> None:
    ids += [first, first + 1, first + 2]
    parts = split_deliveries(np.array(ids, np.int64))
    assert len(parts) == len({each >> POSITION_BITS for each in ids})
    assert sum([stop - start for part in parts for start, stop in part.ranges]) == len(set(ids))


def test_ids_that_no_broker_gave_have_no_lease() -> None:
    (part,) = split_deliveries(np.array([-5], np.int64))
    assert part.lease_in(0) is None
