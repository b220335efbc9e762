"""Builds the stage that brings message_log, and days that come near, to schedule_log and into memory: `replay/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.replay.day_tier import DayTier
from delayserver.replay.deduplication import Deduplication
from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.replay.opened_messages import OpenedMessages
from delayserver.replay.placing import Placing
from delayserver.replay.placing_waits import PlacingWaits
from delayserver.replay.publisher import Publisher
from delayserver.replay.replayer import Replayer
from delayserver.replay.round_counts import RoundCounts
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.replay.rounds import Rounds
from delayserver.replay.rows_to_memory import RowsToMemory
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts


@dataclass(frozen=True, slots=True)
class ReplayParts:
    """The stage of replay."""

    placing: Placing
    publisher: Publisher
    rows_to_memory: RowsToMemory
    round_outcomes: RoundOutcomes
    tier: DayTier
    reader: MessageLogReader
    replayer: Replayer


def build_replay(ground: Ground, state: StateParts) -> ReplayParts:
    """Its day tier is not open yet."""
    files, runtime = ground.files, ground.runtime
    storage, wheel = ground.settings.storage, ground.settings.wheel
    round_outcomes = RoundOutcomes(state.decided, state.windows, runtime)
    to_memory = RowsToMemory(
        state.windows, state.residency, state.overflow, state.decided, round_outcomes, wheel, runtime
    )
    steps = (
        # Counts come first: a message is counted before an outcome of it can be. Outcomes come last: those of copies
        # and cancels close messages that this round may have opened, and the holds of cancels end behind them.
        # An index over all messages stands between.
        RoundCounts(state.balance, state.windows, round_outcomes),
        OpenedMessages(state.decided, round_outcomes, runtime),
        to_memory,
        round_outcomes,
    )
    placing = Placing(
        files,
        state.windows,
        Deduplication(files, state.windows.retired, runtime),
        state.positions,
        PlacingWaits(ground.outside.replay_room, state.positions, storage.window_ms, runtime.clock),
        runtime,
        count_skipped=not ground.opened.found.lost,
    )
    publisher = Publisher(steps, state.positions)
    rounds = Rounds(placing, publisher, to_memory)
    tier = DayTier(files, state.windows, state.decided, rounds, state.log_queue, storage, runtime)
    reader = MessageLogReader(files.log, runtime)
    replayer = Replayer(reader, files.schedule, rounds, tier, state.log_queue, storage.window_ms, runtime)
    return ReplayParts(placing, publisher, to_memory, round_outcomes, tier, reader, replayer)
