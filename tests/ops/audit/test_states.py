"""States of messages: what a loop over the rows of each message would say, wherever the rows are split."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from ops.audit.selection import Selection
from ops.audit.states import (
    _BITS,
    _ENDED,
    _LOGGED,
    _SCHEDULED,
    PROBLEMS,
    ROWS,
    Gone,
    Horizon,
    StateQuestion,
    _places,
    join_rows,
    merged,
)

PLACES = 5
QUESTION = StateQuestion(Selection(), Horizon({}), {}, 0, PLACES)
ROW = st.tuples(
    st.integers(1, 3),
    st.integers(1, 40),
    st.sampled_from([_SCHEDULED, _LOGGED, _ENDED]),
    st.sampled_from([Outcome.DELIVERED, Outcome.CANCELLED, Outcome.EXPIRED]),
)


def rows_of(drawn: list[tuple[int, int, int, Outcome]]) -> NDArray[Any]:
    rows = np.zeros(len(drawn), ROWS)
    for row, (server, sequence, counter, outcome) in zip(rows, drawn, strict=True):
        row["server"], row["sequence"], row["due_ms"] = server, sequence << 12, sequence * 3_600_000
        row["counters"] = 1 << (_BITS * counter)
        row["outcome"] = int(outcome) if counter == _ENDED else 0
    return rows


def by_hand(rows: NDArray[Any]) -> dict[str, int]:
    """Counts of messages, a step for each row."""
    messages: dict[tuple[int, int], dict[str, Any]] = defaultdict(lambda: {"there": False, "ends": []})
    for row in rows:
        message = messages[int(row["server"]), int(row["sequence"])]
        if row["outcome"]:
            message["ends"].append(int(row["outcome"]))
        else:
            message["there"] = True
    found = dict.fromkeys(("accepted", "pending", "delivered", "duplicated", "orphaned"), 0)
    for message in messages.values():
        found["accepted"] += message["there"]
        found["pending"] += message["there"] and not message["ends"]
        found["delivered"] += message["there"] and max(message["ends"], default=0) == int(Outcome.DELIVERED)
        found["duplicated"] += len(message["ends"]) > 1
        found["orphaned"] += not message["there"]
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=60))
def test_counts_are_those_of_a_loop_however_the_rows_are_split(drawn: list[tuple[int, int, int, Outcome]]) -> None:
    rows = rows_of(drawn)
    places = _places(rows, PLACES)
    joined = [join_rows(QUESTION, [rows[places == place].tobytes()]) for place in np.unique(places)]
    states = merged(joined)
    expected = by_hand(rows)
    counted = {} if states.cells is None else {name: int(column.sum()) for name, column in states.cells.sums.items()}
    assert {name: counted.get(name, 0) for name in expected} == expected
    whole = merged([join_rows(QUESTION, [row.tobytes() for row in np.array_split(rows, 3)])])
    for problem in PROBLEMS:
        assert states.evidence[problem].tolist() == whole.evidence[problem].tolist()


def test_all_rows_of_a_message_meet_at_one_place() -> None:
    rows = np.zeros(1000, ROWS)
    rows["server"], rows["sequence"] = 2**47, np.repeat(np.arange(100) * 5000, 10)
    places = _places(rows, PLACES).reshape(100, 10)
    assert (places == places[:, :1]).all()
    assert len(np.unique(places)) == PLACES


@pytest.mark.parametrize(("due_ms", "sequence", "gone"), [(60_000, 5, True), (119_999, 5, True), (60_000, 6, False),
                                                          (120_000, 1, False), (59_999, 1, False)])  # fmt: skip
def test_the_ledger_counts_rows_of_its_windows_up_to_their_last_sequence(
    due_ms: int, sequence: int, gone: bool
) -> None:
    rows = np.zeros(1, ROWS)
    rows["due_ms"], rows["sequence"] = due_ms, sequence
    assert Gone(np.array([60_000]), np.array([5]), 60_000).holds(rows).tolist() == [gone]
