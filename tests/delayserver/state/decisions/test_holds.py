"""Which messages are held while they are cancelled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.state.decisions.holds import Holds

SEQUENCES = st.lists(st.integers(1, 40), max_size=12, unique=True)


def some(sequences: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(sequences), dtype=np.int64)


@given(held=SEQUENCES, at_start=SEQUENCES, released=SEQUENCES, asked=SEQUENCES)
def test_a_message_is_held_by_a_cancel_or_by_a_start_until_its_release(
    held: list[int], at_start: list[int], released: list[int], asked: list[int]
) -> None:
    holds = Holds()
    holds.hold(some(held))
    holds.hold_at_start(some(at_start))
    holds.release(some(released))
    kept = (set(held) - set(released)) | set(at_start)
    assert holds.not_held(some(asked)).tolist() == [sequence not in kept for sequence in sorted(asked)]
    assert holds.any_held(some(asked)) == bool(kept & set(asked))
    holds.release_start()
    assert holds.any_held(some(asked)) == bool((set(held) - set(released)) & set(asked))


@pytest.mark.parametrize("count", [0, 3])
def test_nothing_is_held_at_first(count: int) -> None:
    holds = Holds()
    assert not holds.any_held(some([*range(1, count + 1)]))
    assert holds.not_held(some([*range(1, count + 1)])).all()
