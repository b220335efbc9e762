"""The steps of `delayserver cluster drain-shard`: a shard is closed only when its primary has said that nothing is left."""

from __future__ import annotations

import pytest

from delayserver.cli.cluster.drain_shard import drained
from delayserver.protocol.schema.shard_map import CLOSED, DRAINING


@pytest.mark.parametrize(
    ("state", "counts", "noted", "result"),
    [
        (None, [2], [DRAINING], (DRAINING, 2)),
        (None, [0, 0], [DRAINING, CLOSED], (CLOSED, 0)),
        (DRAINING, [2], [], (DRAINING, 2)),
        (DRAINING, [None], [], (DRAINING, None)),
        (DRAINING, [0, 0], [CLOSED], (CLOSED, 0)),
        # Messages came before the primary had read that it is closed.
        (DRAINING, [0, 1], [CLOSED, DRAINING], (DRAINING, 1)),
        (DRAINING, [0, None], [CLOSED, DRAINING], (DRAINING, None)),
        # The command before was interrupted after it had closed the shard.
        (CLOSED, [1], [DRAINING], (DRAINING, 1)),
        (CLOSED, [0], [], (CLOSED, 0)),
        # Its members are stopped already.
        (CLOSED, [None], [], (CLOSED, None)),
    ],
)
def test_a_shard_is_closed_when_its_primary_has_nothing_left(
    state: str | None, counts: list[int | None], noted: list[str], result: tuple[str, int | None]
) -> None:
    left, written = iter(counts), list[str]()

    def note(state: str) -> str:
        written.append(state)
        return state

    assert drained(state, lambda: next(left), note) == result
    assert written == noted and not list(left)
