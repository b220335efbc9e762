"""Builds what makes a server a member of a cluster: `follow/`, `lead/`, and the state of its shard."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from delayserver import __version__
from delayserver.follow.follower import Follower
from delayserver.follow.log_watch import LogWatch
from delayserver.follow.patient_appender import PatientAppender
from delayserver.follow.proposing import Proposing
from delayserver.follow.shard_writer import ShardWriter
from delayserver.lead.barrier_raising import BarrierRaising
from delayserver.lead.beating import Beating
from delayserver.lead.claiming import Claiming, OwnDirectory
from delayserver.members.healing import place_after
from delayserver.runtime.log_appender import LogAppender
from delayserver.runtime.shared_log import SharedLog
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.startup.directory_opening import OpeningMember
from delayserver.state.shard.leader_horizon import LeaderHorizon
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.log_health import LogHealth
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.shard_sequences import ShardSequences
from delayserver.state.shard.standing import Standing
from store.errors import CorruptionError, FormatError
from store.records.file_header import FILE_HEADER_BYTES
from store.shared.followed import FollowedTo, followed_to
from store.shared.payload import require_readable
from store.tables.member_file import write_owner


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
    barrier_raising: BarrierRaising


def build_cluster(ground: Ground, state: StateParts, appender: LogAppender) -> ClusterParts | None:
    """None for a single server. From here on the directory is that of this member. Raises CorruptionError where damage hides
    how far the log was followed, UpgradeNeededError where this program does not read the version of the log, FormatError,
    LogTrimmed, DiskFullError, SyncFailedError."""
    membership = ground.outside.membership
    digest = state.digest
    if membership is None or digest is None:
        return None
    runtime, positions = ground.runtime, state.positions
    start = followed_to(ground.files.log, ground.opened.found.checkpoint.replay_offset)
    require_readable(start.barrier, membership.reads, start.position)
    _require_place(ground, start)
    _take_directory(ground, membership.member, start)
    start = place_after(start, membership.healed)
    log = membership.engine.open(membership.seat.shard)
    standing = Standing(membership.seat, start, __version__, membership.reads)
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
        follower=Follower(
            start,
            PatientAppender(appender, ground.outside.log_room, runtime.clock),
            state.accepted,
            standing,
            proposals,
            digest,
            runtime,
        ),
        claiming=Claiming(
            log, standing, proposals, membership.map, membership.settings, OwnDirectory(runtime.damage, positions)
        ),
        beating=Beating(standing, horizon, proposals, digest, membership.settings, runtime.clock),
        barrier_raising=BarrierRaising(standing, proposals, membership.map),
    )


def _require_place(ground: Ground, start: FollowedTo) -> None:
    """Raises CorruptionError where records of the shared log were replayed, and message_log has lost all that say so. Else
    the log would be taken a second time, from its beginning."""
    directory, replayed = ground.opened.directory, ground.opened.found.checkpoint.replay_offset
    owner = directory.owner
    if owner is None or start.position or start.ahead or replayed <= max(FILE_HEADER_BYTES, owner.log_offset):
        return
    detail = "its records are missing, and with them how far this member has followed the shared log"
    raise CorruptionError(f"{directory.path}/message_log", 0, detail)


def _take_directory(ground: Ground, member: OpeningMember, start: FollowedTo) -> None:
    """The file `cluster` names this member, unless it does so already."""
    directory = ground.opened.directory
    owner = directory.owner
    if owner is None and start.ahead and not start.epoch:
        raise FormatError(
            directory.path,
            "has messages of a server that was no member of a cluster. To make a cluster of it: delayserver cluster init "
            f"--cluster FILE --from {directory.path}",
        )
    if owner is None or not owner.member:
        offset = 0 if owner is None else owner.log_offset
        owner = replace(member.owner, log_offset=offset)
        write_owner(ground.outside.doors.fs, directory.path, directory.server_id, owner)
