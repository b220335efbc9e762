"""When a member may act as the primary."""

from __future__ import annotations

import pytest

from delayserver.protocol.errors import NotPrimary
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.seat import Seat
from delayserver.state.shard.standing import Standing
from store.shared.envelope import LogWriter, ShardIdentity
from store.shared.followed import FollowedTo
from store.shared.payload import ClaimNote, EndNote
from tests.fakes.clock import SimulatedClock

ME = LogWriter(1, 11)


@pytest.mark.parametrize("heir", ["b", ""])
async def test_behind_its_end_a_primary_has_no_lease(heir: str) -> None:
    clock = SimulatedClock()
    standing = Standing(Seat(0, ShardIdentity(77, 5), ME, "a", "a:1"), FollowedTo(), "1.2.3")
    leading = Leading(standing, clock, 1_200, 5_000)
    standing.take(1, ME, ClaimNote("a", "a:1", "1.2.3", 0, "nothing came"))
    standing.took_over.set()
    standing.lease.advance(clock.boot_us() + 1_200_000)
    assert leading.is_held() and leading.why_not() == ""
    standing.take(1, ME, EndNote(heir, 0))
    assert not leading.is_held()
    with pytest.raises(NotPrimary, match="a has handed over"):
        leading.require()
    leading.require_log()  # what is on its way in the log is answered when it comes back
