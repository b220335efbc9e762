"""Sets of positions as ranges, against plain sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.queues.groups import Cursor
from delayserver.broker.queues.ranges import Range, RangeSet, gaps, ranges_of

numbers = st.sets(st.integers(0, 60), max_size=40)


def spans(values: set[int], shift: int = 0) -> list[Range]:
    return ranges_of(np.array(sorted(values), np.int64) + shift)


def made(values: set[int]) -> RangeSet:
    found = RangeSet()
    for span in spans(values):
        found.add(*span)
    return found


@given(numbers, numbers)
def test_ranges_behind_all_others_are_put_at_the_end(first: set[int], second: set[int]) -> None:
    found = made(first)
    found.extend(spans(second, max(first, default=-1) + 1))
    found.check_invariants()
    shifted = {value + max(first, default=-1) + 1 for value in second}
    assert list(found) == spans(first | shifted)


@given(numbers, numbers)
def test_ranges_among_others_are_merged_as_well(first: set[int], second: set[int]) -> None:
    found = made(first)
    found.extend(spans(second))
    found.check_invariants()
    assert list(found) == spans(first | second)


@given(numbers, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=10))
def test_a_range_is_covered_if_all_of_it_is_in_the_set(values: set[int], asked: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in asked], np.int64)
    stops = np.array([start + length for start, length in asked], np.int64)
    expected = [set(range(start, start + length)) <= values for start, length in asked]
    assert made(values).covers(starts, stops).tolist() == expected


@given(numbers, st.integers(0, 100))
def test_the_range_around_a_number(values: set[int], asked: int) -> None:
    expected = next(((low, high) for low, high in spans(values) if low <= asked < high), None)
    assert made(values).around(asked) == expected


@given(numbers, st.integers(0, 5))
def test_gaps_are_what_is_left_between_rows(rows: set[int], start: int) -> None:
    found = gaps(start, np.array(sorted(rows), np.int64), 61)
    assert found == spans(set(range(61)) - rows, start)


@given(st.sets(st.integers(0, 59), min_size=1), st.data())
def test_an_ack_of_joined_ranges_does_what_acks_one_by_one_do(wanted: set[int], data: st.DataObject) -> None:
    """60 positions are handed out. Those that are wanted are leased, and the others passed over."""
    cursors = [Cursor(0), Cursor(0)]
    leased = np.array(sorted(wanted), np.int64)
    for cursor in cursors:
        cursor.hand_out(0, 60)
        if len(wanted) < 60:
            cursor.pass_over(gaps(0, leased, 60))
    for _ in range(3):
        asked = spans(data.draw(st.sets(st.sampled_from(sorted(wanted)))))
        fresh = [part for span in cursors[0].joined(asked) for part in cursors[0].ack(*span, 60)]
        assert sorted(fresh) == sorted([part for span in asked for part in cursors[1].ack(*span, 60)])
        for cursor in cursors:
            cursor.check_invariants()
        one, other = cursors
        assert (one.committed, list(one.acked)) == (other.committed, list(other.acked))
