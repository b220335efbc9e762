"""Outcomes that wait to be written answer questions as a plain list of rows does, and a question touches no others."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.state.decisions.unwritten import Unwritten
from store.records.batches import OutcomeBatch

DUES = st.lists(st.integers(0, 9), min_size=1, max_size=5)
QUESTION = st.tuples(st.integers(-1, 10), st.integers(-1, 10))
STEPS = st.lists(st.one_of(DUES, QUESTION, st.sampled_from(["begin", "wrote"])), max_size=40)


def batch_of(first: int, dues: list[int]) -> OutcomeBatch:
    """Outcomes of messages with the sequences from `first` on, the last one first."""
    sequence = np.arange(first, first + len(dues))[::-1]
    return OutcomeBatch.filled(len(dues), sequence=sequence, due_ms=np.array(dues, np.int64), outcome=1)


@given(STEPS)
def test_questions_are_answered_as_by_a_list_of_rows(steps: list[list[int] | tuple[int, int] | str]) -> None:
    unwritten, added = Unwritten(), 0
    writing: list[tuple[int, int]] | None = None
    waiting: list[tuple[int, int]] = []  # sequence and due time of each row
    for step in steps:
        if isinstance(step, list):
            batch = batch_of(added + 1, step)
            unwritten.add(batch)
            added += len(step)
            waiting += zip(batch.sequence.tolist(), step, strict=True)
        elif isinstance(step, tuple):
            from_ms, to_ms = step
            known = [*(writing or []), *waiting]
            found = [row for part in unwritten.due_between(from_ms, to_ms) for row in part.sequence.tolist()]
            assert sorted(found) == sorted(sequence for sequence, due in known if from_ms <= due < to_ms)
        elif step == "begin" and writing is None:
            assert sum(map(len, unwritten.begin_write())) == len(waiting)
            writing, waiting = waiting, []
        elif step == "wrote" and writing is not None:
            assert unwritten.end_write() == len(writing)
            writing = None
        unwritten.check_invariants()
        assert unwritten.waits == bool(waiting)
        assert sum(map(len, unwritten.batches())) == len(writing or []) + len(waiting)


def test_a_question_takes_no_memory_for_the_outcomes_that_it_does_not_ask_for() -> None:
    """A mask over all of them would be a quarter of a megabyte, and shows that the question went through them."""
    unwritten = Unwritten()
    for minute in range(64):
        sequence = np.arange(4096) * 64 + minute
        unwritten.add(
            OutcomeBatch.filled(4096, sequence=sequence, due_ms=minute * 60_000 + sequence % 60_000, outcome=1)
        )
    assert not unwritten.due_between(64 * 60_000, 65 * 60_000)  # the first question notes the times
    tracemalloc.start()
    try:
        assert not unwritten.due_between(64 * 60_000, 65 * 60_000)
        assert sum(map(len, unwritten.due_between(7 * 60_000, 8 * 60_000))) == 4096
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
