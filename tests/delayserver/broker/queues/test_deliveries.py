"""Delivery ids name queue, epoch, lease and position, and no id is taken for one of another lease or start."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.queues.deliveries import (
    EPOCHS,
    LEASES,
    POSITION_BITS,
    delivery_ids,
    split_deliveries,
    with_leases,
)


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


def test_ids_that_no_broker_gave_have_no_lease() -> None:
    (part,) = split_deliveries(np.array([-5], np.int64))
    assert part.lease_in(0) is None
