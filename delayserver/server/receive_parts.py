"""Builds the stage that makes checked messages durable: `receive/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.names.name_desk import NameDesk
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Intake
from delayserver.receive.log_warming import LogWarming
from delayserver.receive.message_log_writer import MessageLogWriter
from delayserver.runtime.log_appender import LogAppender
from delayserver.runtime.sequence_source import SequenceSource
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts
from delayserver.state.positions.record_writer import RecordWriter


@dataclass(frozen=True, slots=True)
class ReceiveParts:
    """The stage of receiving."""

    sequences: SequenceSource
    appender: LogAppender
    warming: LogWarming
    commit: GroupCommit
    names: NameDesk
    intake: Intake


def build_receive(
    ground: Ground, state: StateParts, upkeep: UpkeepParts, appender: LogAppender, cluster: ClusterParts | None
) -> ReceiveParts:
    """`upkeep` says which due times are closed already. A member of a cluster writes to its log."""
    opened, runtime, storage, message = ground.opened, ground.runtime, ground.settings.storage, ground.settings.message
    gathering, accepted, positions = state.gathering, state.accepted, state.positions
    writer: RecordWriter
    sequences: SequenceSource
    if cluster is None:
        sequences = opened.sequences
        writer = MessageLogWriter(appender, sequences, accepted, runtime)
    else:
        sequences, writer = cluster.sequences, cluster.writer
    commit = GroupCommit(gathering, sequences, writer, accepted, positions, storage, runtime)
    names = NameDesk(ground.names, message, commit.refuse_from_now)
    closed = upkeep.retention.oldest_due_ms, upkeep.retention.closed
    warming = LogWarming(opened.files.log, gathering, positions, storage, runtime)
    return ReceiveParts(
        sequences, appender, warming, commit, names, Intake(message, ground.server_id, names, *closed, runtime)
    )
