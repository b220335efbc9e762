"""Makes the retirement of windows a record of the shared log: the `LedgerWriter` of a member.

All members enter the same windows at the same place of the log, so whether a message is a copy is the same on all of them.
"""

from __future__ import annotations

from delayserver.follow.proposing import Proposing
from delayserver.state.positions.positions import Positions
from store.records.batches import LedgerBatch


class ShardLedgerWriter:
    """Proposes what this process counted as the primary. The replay enters it in the ledger."""

    def __init__(self, proposing: Proposing, positions: Positions) -> None:
        self._proposing = proposing
        self._positions = positions
        self._counted: list[LedgerBatch] = []

    @property
    def decides(self) -> bool:
        """Only the primary."""
        return self._proposing.decides

    def append(self, counted: LedgerBatch) -> None:
        """As `LedgerWriter.append`; never raises."""
        self._counted.append(counted)

    async def finish(self) -> None:
        """As `LedgerWriter.finish`. A full disk is waited for, as for all that is replayed."""
        counted, self._counted = self._counted, []
        for rows in counted:  # one by one: a whole day has megabytes
            end = await self._proposing.decide([rows])
            await self._positions.replayed.reached(end)
