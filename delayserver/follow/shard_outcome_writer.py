"""Makes outcomes durable in the shared log: the `OutcomeWriter` of a member.

Each member derives some outcomes by itself: what the log says of cancels, copies and ends of transactions. The others are
decided by the primary, and go through the log. A standby writes what it read there.
"""

from __future__ import annotations

import numpy as np
import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome
from delayserver.state.decisions.outcome_writer import OutcomeWriter
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.logs.dispatch_log import DispatchKey
from store.records.batches import OutcomeBatch

DECIDED = [int(outcome) for outcome in (Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DEAD_LETTERED)]


class ShardOutcomeWriter:
    """Proposes what this process decided as the primary. When it came back, all of it is written to dispatch_log."""

    def __init__(self, standing: Standing, proposals: Proposals, accepted: AcceptedLog, local: OutcomeWriter) -> None:
        self._standing = standing
        self._proposals = proposals
        self._accepted = accepted
        self._local = local

    async def write(self, batches: list[OutcomeBatch]) -> set[DispatchKey]:
        """As `OutcomeWriter.write`."""
        if self._standing.took_over.is_set():
            batch = OutcomeBatch.concatenate(batches)
            decided = np.flatnonzero(np.isin(batch.outcome, DECIDED))
            if len(decided):
                await self._propose(batch.take(decided))
        return await self._local.write(batches)

    async def _propose(self, batch: OutcomeBatch) -> None:
        ended = trio.Event()
        refused: list[DelayServerError] = []

        def accept(entries: object) -> None:
            self._accepted.accept(entries)  # type: ignore[arg-type]
            ended.set()

        def refuse(error: DelayServerError) -> None:
            refused.append(error)
            ended.set()

        self._proposals.propose([batch], accept, refuse)
        await ended.wait()
        if refused:  # this process leads no longer, and ends: what it decided last nobody knows
            await trio.sleep_forever()
