"""Makes outcomes durable in the shared log: the `OutcomeWriter` of a member.

Each member derives some outcomes by itself: what the log says of cancels, copies and ends of transactions. The others are
decided by the primary, and go through the log. A standby writes what it read there.
"""

from __future__ import annotations

import numpy as np

from delayserver.follow.proposing import Proposing
from delayserver.protocol.outcomes import Outcome
from delayserver.state.decisions.outcome_writer import OutcomeWriter
from store.logs.dispatch_log import DispatchKey
from store.records.batches import OutcomeBatch

ROWS_MAX = 100_000
"""Rows of one proposal: a row has about 100 bytes, and a record of the log at most 32 MiB."""
DECIDED = [int(outcome) for outcome in (Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DEAD_LETTERED)]


class ShardOutcomeWriter:
    """Proposes what this process decided as the primary. When it came back, all of it is written to dispatch_log."""

    def __init__(self, proposing: Proposing, local: OutcomeWriter) -> None:
        self._proposing = proposing
        self._local = local

    async def write(self, batches: list[OutcomeBatch], new: list[OutcomeBatch]) -> set[DispatchKey]:
        """As `OutcomeWriter.write`. The log has those already that only move. If the clock of a former primary was hours
        ahead, they are of messages that lie in the file of a day here."""
        if self._proposing.decides and new:
            batch = OutcomeBatch.concatenate(new)
            decided = np.flatnonzero(np.isin(batch.outcome, DECIDED))
            for first in range(0, len(decided), ROWS_MAX):
                await self._proposing.decide([batch.take(decided[first : first + ROWS_MAX])])
        return await self._local.write(batches, new)
