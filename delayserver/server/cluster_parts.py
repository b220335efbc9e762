"""Builds what makes a server a member of a cluster: `follow/`, `lead/`, and the state of its shard."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver import __version__
from delayserver.follow.follower import Follower
from delayserver.follow.log_watch import LogWatch
from delayserver.follow.proposing import Proposing
from delayserver.follow.shard_writer import ShardWriter
from delayserver.lead.beating import Beating
from delayserver.lead.claiming import Claiming
from delayserver.members.healing import place_after
from delayserver.runtime.log_appender import LogAppender
from delayserver.runtime.shared_log import SharedLog
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.state.shard.leader_horizon import LeaderHorizon
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.log_health import LogHealth
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.shard_sequences import ShardSequences
from delayserver.state.shard.standing import Standing
from store.shared.followed import followed_to


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The parts of a member. `log` is used once: a member that steps down begins a new life."""

    log: SharedLog
    health: LogHealth
    watch: LogWatch
    standing: Standing
    leading: Leading
    horizon: LeaderHorizon
    proposals: Proposals
    proposing: Proposing
    sequences: ShardSequences
    writer: ShardWriter
    follower: Follower
    claiming: Claiming
    beating: Beating


def build_cluster(ground: Ground, state: StateParts, appender: LogAppender) -> ClusterParts | None:
    """None for a single server. Raises CorruptionError where damage hides how far the log was followed, LogTrimmed."""
    membership = ground.outside.membership
    if membership is None:
        return None
    runtime, positions = ground.runtime, state.positions
    start = followed_to(ground.files.log, ground.opened.found.checkpoint.replay_offset)
    start = place_after(start, membership.healed)
    log = membership.engine.open(membership.seat.shard)
    standing = Standing(membership.seat, start, __version__)
    proposals = Proposals(log, membership.seat, ground.names, runtime.clock)
    leading = Leading(standing, runtime.clock, membership.settings.lease_ms, membership.settings.log_wait_ms)
    horizon = LeaderHorizon(leading, ground.opened.attempts.horizon.earlier)
    health = LogHealth()
    return ClusterParts(
        log=log,
        health=health,
        watch=LogWatch(log, health, runtime.clock),
        standing=standing,
        leading=leading,
        horizon=horizon,
        proposals=proposals,
        proposing=Proposing(standing, proposals, state.accepted),
        sequences=ShardSequences(positions.accepted_sequence),
        writer=ShardWriter(proposals, state.accepted, positions),
        follower=Follower(start, appender, state.accepted, standing, proposals, runtime.damage),
        claiming=Claiming(log, standing, proposals, membership.settings),
        beating=Beating(standing, horizon, proposals, membership.settings, runtime.clock),
    )
