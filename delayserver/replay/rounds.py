"""The parts that rounds of replay go through: rows are placed in their files, then they are published."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.replay.outcome_groups import OutcomeGroups
from delayserver.replay.placing import Placing
from delayserver.replay.publisher import Publisher
from delayserver.replay.rows_to_memory import RowsToMemory
from delayserver.state.shard.shared_tables import SharedTables


@dataclass(frozen=True, slots=True)
class Rounds:
    """Placing may run in a worker thread; publishing is one step on the event loop. Rows of a draining day were published
    when the day got them: they go to memory alone."""

    placing: Placing
    publisher: Publisher
    memory: RowsToMemory
    tables: SharedTables
    groups: OutcomeGroups
