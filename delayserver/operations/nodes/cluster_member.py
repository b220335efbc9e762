"""The operations `cluster` and `map`: the standing of this member, the hand-over of its leadership, and all shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.protocol.arguments import invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.members import LeadershipEnded, MemberStanding, ShowMember, SwitchPrimary
from delayserver.protocol.schema.shard_map import AskMap, ShardMap
from delayserver.runtime.clock import Clock
from delayserver.runtime.shared_log import LogUnavailable, SharedLog
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.standing import Standing


@dataclass(frozen=True, slots=True)
class Shard:
    """What a member has of its shard. `primary` gives the name of whoever leads; `hand_over` ends the leadership of this
    process in favour of another member, and returns its epoch. `damaged` says whether damage of its directory is known,
    `unreplayed_bytes` how much of its message_log waits for the replay."""

    log: SharedLog
    standing: Standing
    leading: Leading
    primary: Callable[[], str]
    hand_over: Callable[[str], Awaitable[int]]
    map: ClusterMap
    damaged: Callable[[], bool]
    unreplayed_bytes: Callable[[], int]


class ClusterMember:
    """Answers for this member. `shard` is None for a server without a cluster."""

    def __init__(self, shard: Shard | None, servers: Servers, wait_ms_max: int, clock: Clock) -> None:
        """`wait_ms_max`: the longest time for which `map` may wait."""
        self._of = shard
        self._servers = servers
        self._wait_ms_max = wait_ms_max
        self._clock = clock

    async def map(self, asked: AskMap) -> ShardMap:
        """The map, when its version is above `after` or the time is over. Raises InvalidArgument."""
        if asked.wait_ms > self._wait_ms_max:
            raise invalid("wait_ms", f"milliseconds from 0 to {self._wait_ms_max}", asked.wait_ms)
        if self._of is None:
            return ShardMap(0, [], [])
        shards = self._of.map
        with trio.move_on_after(asked.wait_ms / 1000):
            await shards.version.reached(asked.after + 1)
        return shards.shown

    async def show(self, _asked: ShowMember) -> MemberStanding:
        """The standing of this moment. Raises InvalidArgument without a cluster."""
        shard = self._member_of()
        standing = shard.standing
        end: int | None = None
        with suppress(LogUnavailable):
            end = await shard.log.ask()
        lag = standing.lag_records(end)
        return MemberStanding(
            shard=standing.seat.shard,
            member=standing.seat.name,
            role=standing.role,
            epoch=standing.epoch.value,
            primary=shard.primary() if standing.epoch.value else "",
            lag_records=lag,
            lag_ms=standing.lag_ms(lag, self._clock.now_us()),
            log_version=standing.barrier.value,
            damaged=shard.damaged(),
            unreplayed_bytes=shard.unreplayed_bytes(),
            front=shard.map.fronts.problem(leads=standing.leads),
        )

    async def switch(self, asked: SwitchPrimary, peer: Peer) -> LeadershipEnded:
        """Hand over. Raises InvalidArgument, NotPrimary, SharedLogUnavailable, and ServerNotProven if the peer is no
        operator."""
        self._servers.check_operator(peer)
        shard = self._member_of()
        shard.leading.require()
        if asked.member == shard.standing.seat.name:
            raise InvalidArgument(f"{asked.member} leads already")
        if asked.member in shard.map.fronts.unfit:
            raise InvalidArgument(f"{asked.member} never leads: it has diverged, or its directory is damaged")
        return LeadershipEnded(epoch=await shard.hand_over(asked.member))

    def _member_of(self) -> Shard:
        if self._of is None:
            raise InvalidArgument("this server is no member of a cluster")
        return self._of
