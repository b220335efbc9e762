"""Builds the stage that brings message_log, and days that come near, to schedule_log and into memory: `replay/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.replay.broker_records import BrokerRecords
from delayserver.replay.day_drain import DayDrain
from delayserver.replay.day_end import DayEnd
from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.replay.day_sealing import DaySealing
from delayserver.replay.day_tier import DayTier
from delayserver.replay.deduplication import Deduplication
from delayserver.replay.digested_rounds import DigestedRounds
from delayserver.replay.drained_rows import DrainedRows
from delayserver.replay.kept_names import KeptNames
from delayserver.replay.kept_tables import KeptTables
from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.replay.opened_messages import OpenedMessages
from delayserver.replay.outcome_groups import OutcomeGroups
from delayserver.replay.placed_schedules import PlacedSchedules
from delayserver.replay.placing import Placing
from delayserver.replay.placing_waits import PlacingWaits
from delayserver.replay.publisher import Publisher
from delayserver.replay.replayer import Replayer
from delayserver.replay.retired_rounds import RetiredRounds
from delayserver.replay.round_counts import RoundCounts
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.replay.rounds import Rounds
from delayserver.replay.rows_to_memory import RowsToMemory
from delayserver.server.ground import Ground
from delayserver.server.key_parts import KeyParts
from delayserver.server.state_parts import StateParts


@dataclass(frozen=True, slots=True)
class ReplayParts:
    """The stage of replay."""

    placing: Placing
    publisher: Publisher
    rows_to_memory: RowsToMemory
    round_outcomes: RoundOutcomes
    groups: OutcomeGroups
    day_outcomes: DayOutcomes
    day_end: DayEnd
    tier: DayTier
    reader: MessageLogReader
    replayer: Replayer
    of_broker: BrokerRecords


def build_replay(ground: Ground, state: StateParts, keys: KeyParts) -> ReplayParts:
    """The outcomes of its days are not open yet."""
    files, runtime = ground.files, ground.runtime
    storage, wheel = ground.settings.storage, ground.settings.wheel
    schedule_of_member = None if ground.outside.membership is None else files.schedule
    groups = OutcomeGroups(files.schedule, storage.window_ms)
    round_outcomes = RoundOutcomes(state.decided, state.windows, groups, runtime, schedule_of_member, state.digest)
    to_memory = RowsToMemory(
        state.windows, state.residency, state.overflow, state.decided, round_outcomes, wheel, runtime
    )
    owner = ground.opened.directory.owner
    of_broker = BrokerRecords(owner.log_offset if owner is not None and owner.left else 0)
    reader = MessageLogReader(files.log, runtime)
    deduplication = Deduplication(files, state.windows.retired, runtime)
    digested = () if state.digest is None else (DigestedRounds(state.digest, reader, deduplication),)
    steps = (
        # Counts come first: a message is counted before an outcome of it can be. Outcomes come last: those of copies
        # and cancels close messages that this round may have opened, and the holds of cancels end behind them.
        # The index of ids stands between: who sees a message in memory finds it.
        KeptNames(files.names),
        RetiredRounds(state.windows),
        KeptTables(state.tables),
        of_broker,
        RoundCounts(state.balance, state.windows, round_outcomes),
        keys.index,
        OpenedMessages(state.decided, round_outcomes, runtime),
        PlacedSchedules(state.schedules, files.names),
        to_memory,
        round_outcomes,
        *digested,
    )
    placing = Placing(
        files,
        state.windows,
        deduplication,
        state.positions,
        PlacingWaits(ground.outside.replay_room, state.positions, storage.window_ms, runtime.clock),
        runtime,
        count_skipped=not ground.opened.found.lost,
    )
    publisher = Publisher(steps, state.positions)
    rounds = Rounds(placing, publisher, to_memory, state.tables, groups)
    day_outcomes = DayOutcomes(files, state.decided.overlays, state.windows.drains, storage.window_ms, runtime)
    day_end = DayEnd(files, state.windows, state.decided, day_outcomes, runtime)
    drained = DrainedRows(files.schedule, state.windows, state.decided, rounds, state.positions, runtime)
    tier = DayTier(
        state.windows.drains,
        day_outcomes,
        DaySealing(files, state.windows, state.decided, day_outcomes, state.positions, storage, runtime),
        DayDrain(files.schedule, state.windows.drains, drained, day_end, storage.window_ms, runtime),
        state.log_queue.arrived,
        runtime.clock,
    )
    replayer = Replayer(reader, files.schedule, rounds, tier, state.log_queue, storage.window_ms, runtime)
    return ReplayParts(
        placing, publisher, to_memory, round_outcomes, groups, day_outcomes, day_end, tier, reader, replayer, of_broker
    )
