"""Promised outcomes by position: a question about a message is answered by when it will be durable, and asked once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayserver.protocol.outcomes import Outcome
from delayserver.state.decisions.promises import PART_ROWS, Promises
from store.records.batches import OutcomeBatch

OUTCOMES = [int(Outcome.DELIVERED), int(Outcome.EXPIRED), int(Outcome.DEAD_LETTERED)]
STEPS = st.lists(
    st.one_of(
        st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=5),
        st.sampled_from(["begin", "wrote"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_a_promise_is_awaited_until_it_is_written_and_not_beyond_the_write_that_has_it(
    steps: list[list[int] | str],
) -> None:
    promises, added, begun, written = Promises(), 0, 0, 0
    promised: dict[int, int] = {}  # sequence → its position
    for step in steps:
        if step == "begin":
            promises.seal()
            begun = added
        elif step == "wrote":
            written = begun
            promises.forget(written)
        elif isinstance(step, list):
            sequence = np.arange(added + 1, added + 1 + len(step))
            added += len(step)
            outcome = np.array(step, np.uint8)
            promises.add(OutcomeBatch.filled(len(step), sequence=sequence, outcome=outcome), added)
            promised.update(
                {int(one): int(one) for one, code in zip(sequence, step, strict=True) if code != OUTCOMES[0]}
            )
        promises.check_invariants(written, added)
        for sequence_of, position in promised.items():
            found = promises.position_of(np.array([sequence_of]))
            assert found == 0 if position <= written else position <= found <= added
            if written < position <= begun:
                assert found <= begun, "a write in progress has it"
        assert promises.position_of(np.array([added + 1])) == 0


def test_many_small_promises_lie_in_few_parts() -> None:
    promises = Promises()
    for number in range(3 * PART_ROWS):
        promises.add(OutcomeBatch.filled(1, sequence=number, outcome=OUTCOMES[1]), number + 1)
    assert len(promises) <= 4
