"""A pull takes as many messages as fit into its bytes, whichever way that is found out."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.pulled_batch import ROW_BYTES, PullBudget
from store.records.batches import StoredBatch

LENGTHS = [3, 0, 70, 5, 5]
# What the first 1, 2, … messages take.
SIZES = np.cumsum([ROW_BYTES + length for length in LENGTHS]).tolist()


def stored(lengths: list[int]) -> StoredBatch:
    return StoredBatch.filled(
        len(lengths),
        sequence=np.arange(1, len(lengths) + 1, dtype=np.int64),
        bodies_length=np.array(lengths, np.uint32),
        bodies=bytes(sum(lengths)),
    )


@pytest.mark.parametrize("rows", range(1, 6))
def test_the_bytes_of_a_pull_are_kept_to_the_byte(rows: int) -> None:
    batch = stored(LENGTHS)
    assert PullBudget(100, SIZES[rows - 1]).fitting(batch, 0, 5) == (rows, SIZES[rows - 1])
    if rows > 1:
        assert PullBudget(100, SIZES[rows - 1] - 1).fitting(batch, 0, 5) == (rows - 1, SIZES[rows - 2])
    assert PullBudget(rows, 1 << 30).fitting(batch, 0, 5) == (rows, SIZES[rows - 1])
    assert PullBudget(100, 1 << 30).fitting(batch, 5 - rows, rows) == (rows, SIZES[4] - ([0, *SIZES])[5 - rows])


def test_the_first_message_fits_always_and_a_second_part_does_not_have_to() -> None:
    batch = stored([500])
    budget = PullBudget(100, 10)
    assert budget.fitting(batch, 0, 1) == (1, ROW_BYTES + 500)
    budget.take(batch, np.array([1]), np.array([0]), ROW_BYTES + 500)
    assert budget.fitting(batch, 0, 1) == (0, 0)
