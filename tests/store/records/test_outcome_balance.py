"""Messages and duplicates count in the balance, internal records do not."""

from __future__ import annotations

import numpy as np

from store.records.outcome_balance import OUTCOME_DEDUPLICATED, in_balance, is_internal


def test_a_duplicate_counts_though_it_has_an_origin() -> None:
    origin = np.array([0, 0, 5, 5])
    outcome = np.array([4, OUTCOME_DEDUPLICATED, 4, OUTCOME_DEDUPLICATED], np.uint8)
    assert in_balance(origin, outcome).tolist() == [True, True, False, True]
    assert is_internal(np.zeros(4, np.uint32), origin, outcome).tolist() == [False, False, True, False]


def test_a_record_with_a_redelivery_number_alone_is_internal() -> None:
    assert is_internal(np.array([1, 1]), np.array([0, 5]), np.array([4, OUTCOME_DEDUPLICATED])).tolist() == [
        True,
        False,
    ]
