"""Facts of sorted runs and of sorting keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.due_rows import DueRows
from wheel.keys import key_order, lower_bounds, rows_before, rows_through
from wheel.runs import SortedRuns
from wheel.sorted_run import SortedRun

INT64 = st.integers(-(2**63), 2**63 - 1)
COLUMN = st.integers(-5, 5) | st.integers(10**12, 10**12 + 10) | INT64


def new_run(due_ms: list[int], sequence: list[int]) -> SortedRun:
    return SortedRun(np.array(due_ms, np.int64), np.array(sequence, np.int64), np.zeros(len(due_ms), "V8"))


@given(st.lists(st.tuples(COLUMN, COLUMN), max_size=50))
def test_key_order_is_the_order_of_due_time_then_sequence(keys: list[tuple[int, int]]) -> None:
    due_ms = np.array([key[0] for key in keys], np.int64)
    sequence = np.array([key[1] for key in keys], np.int64)
    order = key_order(due_ms, sequence)
    ordered = keys if order is None else [keys[position] for position in order]
    assert ordered == sorted(keys)


def test_key_order_keeps_its_word_where_the_keys_do_not_fit_one_integer() -> None:
    due_ms = np.array([2**62, 5, -(2**62), 5])
    sequence = np.array([2**61, 2**60, 3, 0])
    order = key_order(due_ms, sequence)
    assert order is not None and order.tolist() == [2, 3, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=40), st.integers(-1, 5), st.integers(-1, 10))
def test_searching_for_a_key_counts_the_keys_before_and_through_it(
    keys: list[tuple[int, int]], due: int, number: int
) -> None:
    keys.sort()
    due_ms = np.array([key[0] for key in keys], np.int64)
    sequence = np.array([key[1] for key in keys], np.int64)
    before = sum(key < (due, number) for key in keys)
    assert rows_before(due_ms, sequence, due, number) == before
    assert rows_through(due_ms, sequence, due, number) == sum(key <= (due, number) for key in keys)
    assert lower_bounds(due_ms, sequence, np.array([due]), np.array([number])).tolist() == [before]


@given(st.lists(st.tuples(COLUMN, COLUMN), min_size=1, max_size=30, unique=True), st.data())
def test_a_run_finds_its_own_keys_and_no_others(keys: list[tuple[int, int]], data: st.DataObject) -> None:
    keys.sort()
    run = new_run([key[0] for key in keys], [key[1] for key in keys])
    due_here = st.sampled_from([key[0] for key in keys])
    others = data.draw(st.lists(st.tuples(due_here, COLUMN | st.sampled_from([key[1] for key in keys])), max_size=20))
    asked = sorted([*keys, *(key for key in others if keys[0] <= key <= keys[-1])])
    positions = run.find(np.array([key[0] for key in asked]), np.array([key[1] for key in asked]))
    assert positions.tolist() == [keys.index(key) if key in keys else -1 for key in asked]


def test_a_sequence_out_of_the_runs_range_is_not_taken_for_a_neighbouring_due_time() -> None:
    run = new_run([10, 11, 12], [4, 5, 7])
    asked = np.array([10, 11, 11, 12]), np.array([8, 1, 9, 6])
    assert run.find(*asked).tolist() == [-1, -1, -1, -1]


def test_a_cut_takes_the_rows_before_the_end_and_leaves_the_one_due_exactly_then() -> None:
    runs = SortedRuns()
    runs.add(new_run([1, 10], [1, 2]))
    assert [run.due_ms.tolist() for run in runs.cut(10)] == [[1]]
    assert runs.first_due_ms == 10 and len(runs) == 1
    runs.check_invariants()


def test_a_cut_that_finds_only_cancelled_rows_takes_nothing() -> None:
    runs = SortedRuns()
    runs.add(new_run([1, 2, 3, 20], [1, 2, 3, 4]))
    assert runs.find(np.array([1, 2, 3]), np.array([1, 2, 3]), cancel=True).all()
    assert runs.cut(10) == []
    assert runs.first_due_ms == 20
    runs.check_invariants()


def test_a_take_looks_behind_cancelled_rows_for_as_many_as_it_was_asked_for() -> None:
    runs = SortedRuns()
    for first in range(3):
        numbers = list(range(first, 300, 3))
        runs.add(new_run([5] * len(numbers), numbers))
    gone = np.array([number for number in range(200) if number % 5])
    assert runs.find(np.full(len(gone), 5), gone, cancel=True).all()
    taken = runs.take(5, 50)
    assert taken is not None
    assert taken.sequence.tolist() == [*range(0, 200, 5), *range(200, 210)]
    runs.check_invariants()


def test_due_rows_concatenate_and_slice_column_by_column() -> None:
    payload = np.zeros(2, [("size", "<u4"), ("crc", "<u4")])
    rows = DueRows(np.array([1, 2]), np.array([3, 4]), payload)
    joined = DueRows.concatenate([rows.slice(0, 1), rows.slice(1, 2)])
    joined.check_invariants()
    assert len(joined) == 2 and joined.payload.dtype == payload.dtype
    assert joined.sequence.tolist() == [3, 4]
    with pytest.raises(ValueError, match="at least one part"):
        DueRows.concatenate([])
