"""Sets of positions as ranges, against plain sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.broker.queues.group_cursors import Cursor
from delayserver.broker.queues.ranges import Range, RangeSet, gaps, ranges_of, without

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


@given(numbers, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=10))
def test_many_ranges_are_added_together(values: set[int], more: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in more], np.int64)
    stops = np.array([start + length for start, length in more], np.int64)
    added = {number for start, length in more for number in range(start, start + length)}
    found = made(values)
    assert found.meets(starts, stops) == bool(values & added)
    found.update(starts, stops)
    found.check_invariants()
    assert list(found) == spans(values | added)


@given(st.data())
def test_many_acks_together_equal_acks_one_by_one(data: st.DataObject) -> None:
    """200 positions are handed out, some of them to be redelivered; any may be acked, also twice."""
    cursors = [Cursor(0), Cursor(0)]
    failed = data.draw(st.sets(st.integers(0, 199), max_size=3))
    for cursor in cursors:
        cursor.hand_out(0, 200)
        for position in failed:
            cursor.to_retry(position, position + 1)
    for _ in range(3):
        asked = spans(data.draw(st.sets(st.integers(0, 220), min_size=80)))
        fresh = cursors[0].ack_all(asked, 200)
        assert sorted(fresh) == sorted([part for span in asked for part in cursors[1].ack(*span, 200)])
        for cursor in cursors:
            cursor.check_invariants()
        one, other = cursors
        assert (one.committed, one.next, list(one.acked)) == (other.committed, other.next, list(other.acked))


@given(st.integers(0, 3), st.integers(1, 3))
def test_many_acks_together_are_cut_to_the_positions_that_were_handed_out(first: int, step: int) -> None:
    cursors = [Cursor(0), Cursor(0)]
    for cursor in cursors:
        cursor.hand_out(0, 100)
        cursor.ack(0, 2, 100)
    asked = [(start, start + 1) for start in range(first, 110, step + 1)]
    fresh = cursors[0].ack_all(asked, 100)
    assert sorted(fresh) == sorted([part for span in asked for part in cursors[1].ack(*span, 100)])
    assert (cursors[0].committed, list(cursors[0].acked)) == (cursors[1].committed, list(cursors[1].acked))


@given(numbers, st.data())
def test_positions_are_taken_out_of_ranges(values: set[int], data: st.DataObject) -> None:
    left_out = data.draw(st.sets(st.sampled_from(sorted(values)))) if values else set()
    found = without(spans(values), np.array(sorted(left_out), np.int64))
    assert {number for start, stop in found for number in range(start, stop)} == values - left_out
    assert sum(stop - start for start, stop in found) == len(values - left_out)


@given(numbers, st.integers(0, 100))
def test_the_range_around_a_number_is_the_one_that_holds_it(values: set[int], asked: int) -> None:
    expected = next(((low, high) for low, high in spans(values) if low <= asked < high), None)
    assert made(values).around(asked) == expected


@given(numbers, st.integers(0, 5))
def test_gaps_are_the_positions_between_rows(rows: set[int], start: int) -> None:
    found = gaps(start, np.array(sorted(rows), np.int64), 61)
    assert found == spans(set(range(61)) - rows, start)


@given(st.sets(st.integers(0, 59), min_size=1), st.data())
def test_an_ack_of_joined_ranges_equals_acks_one_by_one(wanted: set[int], data: st.DataObject) -> None:
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
