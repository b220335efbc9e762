"""Makes a change of a table a record of the shared log. All members write the file when it came back."""

from __future__ import annotations

from functools import partial

import trio

from delayserver.follow.proposing import Proposing
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.shared_tables import TableNumber
from store.records.batches import TableBatch


class ShardTableWriter:
    """Proposes tables of one number."""

    def __init__(self, number: TableNumber, proposing: Proposing, positions: Positions) -> None:
        self._number = number
        self._proposing = proposing
        self._positions = positions

    async def write(self, content: bytes) -> None:
        """Return when the table is in force here. Who asked may go meanwhile: the next change is made of a table that has
        this one. Raises InDoubt."""
        batch = TableBatch.filled(
            1, table=int(self._number), contents_length=len(content), contents=memoryview(content)
        )
        with trio.CancelScope(shield=True):
            end = await self._proposing.propose([batch])
            await self._proposing.unless_ended(partial(self._positions.replayed.reached, end))
