"""Builds the stage that writes what was decided to dispatch_log: `outcomes/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.follow.shard_outcome_writer import ShardOutcomeWriter
from delayserver.outcomes.dispatch_log_writer import DispatchLogWriter
from delayserver.outcomes.outcome_recorder import OutcomeRecorder
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from delayserver.state.decisions.outcome_writer import OutcomeWriter


@dataclass(frozen=True, slots=True)
class OutcomeParts:
    """The stage of outcomes."""

    outcome_writer: OutcomeWriter
    recorder: OutcomeRecorder


def build_outcomes(ground: Ground, state: StateParts, cluster: ClusterParts | None) -> OutcomeParts:
    """The recorder, and the writer that it gives outcomes to."""
    writer: OutcomeWriter = DispatchLogWriter(ground.files.dispatch, state.decided, ground.runtime)
    if cluster is not None:
        writer = ShardOutcomeWriter(cluster.proposing, writer)
    late_ms_max = ground.pacing.outcomes_late_ms_max
    return OutcomeParts(
        writer,
        OutcomeRecorder(state.decided, writer, state.book, ground.settings.dispatch, late_ms_max, ground.runtime),
    )
