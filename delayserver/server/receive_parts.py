"""Builds the stage that makes checked messages durable: `receive/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.names.name_desk import NameDesk
from delayserver.receive.group_commit import GroupCommit
from delayserver.receive.intake import Intake
from delayserver.receive.message_log_writer import MessageLogWriter
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts


@dataclass(frozen=True, slots=True)
class ReceiveParts:
    """The stage of receiving."""

    log_writer: MessageLogWriter
    commit: GroupCommit
    names: NameDesk
    intake: Intake


def build_receive(ground: Ground, state: StateParts, upkeep: UpkeepParts) -> ReceiveParts:
    """`upkeep` says which due times are closed already."""
    opened, runtime, storage, message = ground.opened, ground.runtime, ground.settings.storage, ground.settings.message
    gathering, accepted, positions = state.gathering, state.accepted, state.positions
    writer = MessageLogWriter(opened.files.log, opened.sequences, gathering, accepted, positions, storage, runtime)
    commit = GroupCommit(gathering, opened.sequences, writer, accepted, positions, storage, runtime)
    names = NameDesk(ground.names, message, commit.refuse_from_now)
    closed = upkeep.retention.oldest_due_ms, upkeep.retention.closed
    return ReceiveParts(writer, commit, names, Intake(message, ground.server_id, names, *closed, runtime))
