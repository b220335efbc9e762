"""Rows that left memory rest until their window is read again."""

from __future__ import annotations

import numpy as np

from delayserver.state.memory import left_rows
from delayserver.state.memory.left_rows import LeftRows

A, B = (1, 0, 60_000), (1, 0, 120_000)


def rows(*sequences: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sequences, np.int64)


def test_rows_rest_until_the_time_of_their_window() -> None:
    left = LeftRows()
    left.leave(A, rows(5, 3), 100)
    left.leave(B, rows(4), 200)
    assert left.resting(rows(3, 4, 5, 6)).tolist() == [True, True, True, False]
    assert left.end_rests(99) == []
    assert left.end_rests(100) == [A]
    assert left.resting(rows(3, 4, 5, 6)).tolist() == [False, True, False, False]
    assert left.end_rests(300) == [B]
    assert not left.resting(rows(3, 4, 5, 6)).any()


def test_later_rows_of_a_window_put_off_no_earlier_ones() -> None:
    left = LeftRows()
    left.leave(A, rows(1), 100)
    left.leave(A, rows(2), 200)
    assert left.end_rests(100) == [A] and not left.resting(rows(1, 2)).any()


def test_a_window_that_cannot_be_read_is_put_off_with_its_rows() -> None:
    left = LeftRows()
    left.put_off(B, 50)
    left.leave(A, rows(1), 100)
    left.put_off(A, 200)
    assert left.end_rests(150) == [B] and left.resting(rows(1)).all()
    assert left.end_rests(200) == [A]


def test_rows_beyond_the_bound_come_back_with_the_next_read() -> None:
    left = LeftRows()
    left.leave(A, np.arange(left_rows.ROWS_KNOWN_MAX - 1), 100)
    left.leave(B, rows(1 << 40, 1 << 41), 100)
    assert not left.resting(rows(1 << 40, 1 << 41)).any()
    assert left.end_rests(100) == [A, B]
    left.leave(A, rows(1 << 40, 1 << 41), 200)
    assert left.resting(rows(1 << 40, 1 << 41)).all()


def test_nothing_rests_after_a_change_of_the_routes() -> None:
    left = LeftRows()
    left.leave(A, rows(1), 100)
    left.clear()
    assert left.end_rests(1_000) == [] and not left.resting(rows(1)).any()
