"""Counting subjects: readers change nothing, and tallies of the same subjects have the same length for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.state.counts.subject_counts import SubjectCounts, Tally, total_of
from delayserver.state.counts.waiting_ages import WaitingAges
from store.records.batches import MessageBatch, OutcomeBatch

CODES = st.integers(0, 20_000)
STEPS = st.lists(st.tuples(st.sampled_from(["accept", "rows", "place", "end", "counted"]), CODES), max_size=30)


def sizes(counts: SubjectCounts) -> list[int]:
    """Lengths of the answers of all readers: those of the tallies."""
    answers = [counts.pending(), counts.placed_pending(), *counts.placed_and_ended(), counts.ended_counts()]
    return [len(answer) for answer in answers if answer is not None]


@given(STEPS)
def test_reading_grows_nothing_and_counting_grows_by_the_codes(steps: list[tuple[str, int]]) -> None:
    counts, highest = SubjectCounts(), 1023
    counts.start_from(np.zeros(0, np.int64), WaitingAges())
    counts.end_replay()
    for step, code in steps:
        highest = max(highest, code)
        subject = np.array([code], np.uint32)
        if step == "accept":
            counts.accept(MessageBatch.filled(1, subject=subject))
        elif step == "rows":
            counts.accept_rows([(0, code)])  # type: ignore[list-item]  # a row begins with its due time and its subject
        elif step == "place":
            counts.place(MessageBatch.filled(1, subject=subject))
        elif step == "end":
            counts.end([OutcomeBatch.filled(1, subject=subject)], [])
        else:
            placed, ended = counts.placed_and_ended()
            pending = counts.placed_pending()
            assert pending is not None
            counts.rebase(pending, placed, ended, WaitingAges(), WaitingAges())
        before = sizes(counts)
        for _ in range(3):
            assert sizes(counts) == before
        assert max(before) <= 1 << highest.bit_length()


@given(st.lists(st.tuples(CODES, CODES, CODES), max_size=10))
def test_sums_are_exact_whatever_the_lengths(rows: list[tuple[int, int, int]]) -> None:
    one, other, less = Tally(), Tally(), Tally()
    expected: dict[int, int] = {}
    for codes in rows:
        for tally, code, change in zip((one, other, less), codes, (1, 1, -1), strict=True):
            tally.add(np.array([code], np.uint32))
            expected[code] = expected.get(code, 0) + change
    total = total_of(one, other, less=less)
    assert {code: int(total[code]) for code in np.flatnonzero(total)} == {k: v for k, v in expected.items() if v}


def test_counts_that_are_copied_from_life_to_life_keep_their_length() -> None:
    tally = Tally()
    tally.add(np.array([4_999], np.uint32))
    for _ in range(50):
        after = Tally()
        after.add_counts(tally.copy())
        tally = after
    assert len(tally) == 8192
