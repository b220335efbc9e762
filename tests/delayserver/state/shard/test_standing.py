"""What members know of a leadership by the notes of the log."""

from __future__ import annotations

import pytest

from delayserver.state.shard.seat import Seat
from delayserver.state.shard.standing import Standing
from store.shared.envelope import LogWriter, ShardIdentity
from store.shared.followed import FollowedTo
from store.shared.payload import BeatNote, ClaimNote, EndNote

LEADER = LogWriter(1, 11)


def led(horizon_ms: int) -> Standing:
    """A standby, whose primary has beaten once."""
    standing = Standing(Seat(0, ShardIdentity(77, 5), LogWriter(2, 12), "b", "b:1"), FollowedTo(), "1.2.3")
    standing.take(1, LEADER, ClaimNote("a", "a:1", "1.2.3", 0, "nothing came"))
    standing.take(1, LEADER, BeatNote(horizon_ms, 1_200, b"", 0))
    return standing


@pytest.mark.parametrize(("of_end_ms", "left_ms"), [(4_000, 5_000), (5_000, 5_000), (6_000, 6_000), (0, 0)])
def test_an_end_with_attempts_in_doubt_lowers_no_horizon(of_end_ms: int, left_ms: int) -> None:
    """A beat that was on its way when the end was made stands before it in the log."""
    standing = led(5_000)
    standing.take(1, LEADER, EndNote("b", of_end_ms))
    assert (standing.heir, standing.horizon_ms) == ("b", left_ms)
