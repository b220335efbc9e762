"""Two numbers in one column: each comes back, up to its bound, and old columns say what they said."""

from __future__ import annotations

import numpy as np

from store.records.batches import KIND_MESSAGES, KIND_OUTCOMES, KIND_STORED
from store.records.column_batch import constant_column
from store.records.shared_column import ATTEMPTS, REDELIVERY, attempts_before, plain_columns

NUMBERS = np.array([0, 1, 2, 65_534, 65_535, 65_536, (1 << 32) - 1], np.uint32)
OTHERS = np.array([0, 0, 3, 1, 65_535, 70_000, (1 << 32) - 1], np.uint32)


def test_a_redelivery_number_and_hand_overs_elsewhere_share_a_column_up_to_their_bounds() -> None:
    packed = REDELIVERY.pack(NUMBERS, OTHERS)
    assert packed.dtype == np.uint32
    assert REDELIVERY.number(packed).tolist() == [0, 1, 2, 65_534, 65_535, 65_535, 65_535]
    assert REDELIVERY.unanswered(packed).tolist() == [0, 0, 3, 1, 65_535, 65_535, 65_535]
    assert attempts_before(packed).tolist() == [0, 1, 5, 65_535, 131_070, 131_070, 131_070]


def test_attempts_and_hand_overs_elsewhere_share_a_column_up_to_their_bounds() -> None:
    packed = ATTEMPTS.pack(NUMBERS, OTHERS)
    assert ATTEMPTS.number(packed).tolist() == [0, 1, 2, 65_534, 65_535, 65_536, (1 << 24) - 1]
    assert ATTEMPTS.unanswered(packed).tolist() == [0, 0, 3, 1, 255, 255, 255]


def test_columns_of_before_hold_their_number_alone() -> None:
    old = np.array([0, 1, 7], np.uint32)
    assert (
        REDELIVERY.number(old).tolist() == attempts_before(old).tolist() == ATTEMPTS.number(old).tolist() == [0, 1, 7]
    )
    assert not REDELIVERY.unanswered(old).any() and not ATTEMPTS.unanswered(old).any()
    constant = constant_column(7, 3, "<u4")
    assert (attempts_before(constant) + np.zeros(3, np.int64)).tolist() == [7, 7, 7]


def test_columns_come_with_one_number_each_by_their_kind_of_record() -> None:
    attempts, redelivery = ATTEMPTS.pack(np.array([4]), np.array([2])), REDELIVERY.pack(np.array([5]), np.array([3]))
    columns = {"sequence": np.array([1]), "attempts": attempts, "redelivery": redelivery}

    def plain(kind: int) -> dict[str, list[int]]:
        return {name: column.tolist() for name, column in plain_columns(kind, columns).items()}

    assert plain(KIND_OUTCOMES) == {
        "sequence": [1],
        "attempts": [4],
        "unanswered_elsewhere": [2],
        "redelivery": redelivery.tolist(),
    }
    assert plain(KIND_STORED) == {
        "sequence": [1],
        "attempts": attempts.tolist(),
        "redelivery": [5],
        "unanswered_elsewhere": [3],
    }
    assert list(plain(KIND_MESSAGES)) == ["sequence", "attempts", "redelivery"], "a message has the plain number"
    assert plain_columns(KIND_OUTCOMES, {"sequence": np.array([1])}).keys() == {"sequence"}
