"""Builds what keeps the data directory in order: `upkeep/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.follow.shard_ledger_writer import ShardLedgerWriter
from delayserver.runtime.marks import Bell
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.state.windows.ledger_writer import LedgerWriter
from delayserver.upkeep.checkpoint_file import CheckpointFile
from delayserver.upkeep.checkpointing import Checkpointing
from delayserver.upkeep.housekeeping import Housekeeping
from delayserver.upkeep.kept_room import KeptRoom
from delayserver.upkeep.ledger_entries import LedgerEntries
from delayserver.upkeep.local_ledger_writer import LocalLedgerWriter
from delayserver.upkeep.log_retention import LogRetention
from delayserver.upkeep.on_their_way import OnTheirWay
from delayserver.upkeep.progress import Progress
from delayserver.upkeep.retention import Retention
from delayserver.upkeep.segments_ahead import SegmentsAhead
from delayserver.upkeep.subject_counting import SubjectCounting
from delayserver.upkeep.window_removal import WindowRemoval


@dataclass(frozen=True, slots=True)
class UpkeepParts:
    """Upkeep. `clock_stepped` rings when the wall clock has stepped."""

    kept_room: KeptRoom
    entries: LedgerEntries
    removal: WindowRemoval
    retention: Retention
    log_retention: LogRetention
    segments_ahead: SegmentsAhead
    subject_counting: SubjectCounting
    checkpointing: Checkpointing
    clock_stepped: Bell
    housekeeping: Housekeeping


def build_upkeep(ground: Ground, state: StateParts, cluster: ClusterParts | None) -> UpkeepParts:
    """Removes nothing yet."""
    opened, files, runtime, storage = ground.opened, ground.files, ground.runtime, ground.settings.storage
    fs, path, horizon = ground.outside.doors.fs, opened.directory.path, opened.attempts.horizon
    kept_room = KeptRoom(fs, path, state.positions, state.windows.drains, storage.free_bytes_min)
    coming = OnTheirWay(state.gathering, files.log, state.positions, storage.window_ms, runtime)
    found = None if opened.found.lost else opened.found.checkpoint
    checkpoint = CheckpointFile(fs, ground.path("checkpoint"), opened.sequences, horizon, found)
    beside = state.schedules, state.digest
    progress = Progress(state.positions, state.balance, state.decided, state.windows, opened.believable, beside)
    clock_stepped = Bell()
    bells = horizon.earlier, state.residency.loadable, clock_stepped
    writer: LedgerWriter = LocalLedgerWriter(files.ledger)
    if cluster is not None:
        writer = ShardLedgerWriter(cluster.proposing, state.positions)
    entries = LedgerEntries(files, state.windows, state.decided, writer, runtime)
    removal = WindowRemoval(files, state.windows, state.decided, runtime)
    return UpkeepParts(
        kept_room=kept_room,
        entries=entries,
        removal=removal,
        retention=Retention(state.windows, coming, entries, removal, storage, opened.believable, runtime),
        log_retention=LogRetention(files.log, state.positions, storage, runtime),
        segments_ahead=SegmentsAhead(files.log, state.positions, kept_room, storage, runtime),
        subject_counting=SubjectCounting(
            files, state.windows, state.decided, state.positions, state.balance.subjects, runtime
        ),
        checkpointing=Checkpointing(checkpoint, files, progress, horizon, storage, runtime),
        clock_stepped=clock_stepped,
        housekeeping=Housekeeping(fs, path, files.dispatch.reserve, kept_room, bells, storage, runtime),
    )
