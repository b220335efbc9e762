"""The operation `cluster`: the standing of this member, and the hand-over of its leadership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.members import LeadershipEnded, MemberStanding, ShowMember, SwitchPrimary
from delayserver.runtime.clock import Clock
from delayserver.runtime.shared_log import LogUnavailable, SharedLog
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.standing import Standing


@dataclass(frozen=True, slots=True)
class Shard:
    """What a member has of its shard. `primary` gives the name of whoever leads; `hand_over` ends the leadership of this
    process in favour of another member, and returns its epoch."""

    log: SharedLog
    standing: Standing
    leading: Leading
    primary: Callable[[], str]
    hand_over: Callable[[str], Awaitable[int]]


class ClusterMember:
    """Answers for this member. `shard` is None for a server without a cluster."""

    def __init__(self, shard: Shard | None, servers: Servers, clock: Clock) -> None:
        self._of = shard
        self._servers = servers
        self._clock = clock

    async def show(self, _asked: ShowMember) -> MemberStanding:
        """The standing of this moment. Raises InvalidArgument without a cluster."""
        shard = self._member_of()
        standing = shard.standing
        try:
            end = await shard.log.ask()
        except LogUnavailable:
            lag = None
        else:
            lag = max(end - standing.applied.value, 0)
        role = ("primary" if standing.took_over.is_set() else "taking_over") if standing.leads else "standby"
        behind_ms = max(self._clock.now_us() - standing.written_us.value, 0) // 1000
        return MemberStanding(
            shard=standing.seat.shard,
            member=standing.seat.name,
            role=role,
            epoch=standing.epoch.value,
            primary=shard.primary() if standing.epoch.value else "",
            lag_records=lag,
            lag_ms=0 if lag == 0 else behind_ms,
        )

    async def switch(self, asked: SwitchPrimary, peer: Peer) -> LeadershipEnded:
        """Hand over. Raises InvalidArgument, NotPrimary, SharedLogUnavailable, and ServerNotProven if the peer is no
        operator."""
        self._servers.check_operator(peer)
        shard = self._member_of()
        shard.leading.require()
        if asked.member == shard.standing.seat.name:
            raise InvalidArgument(f"{asked.member} leads already")
        return LeadershipEnded(epoch=await shard.hand_over(asked.member))

    def _member_of(self) -> Shard:
        if self._of is None:
            raise InvalidArgument("this server is no member of a cluster")
        return self._of
