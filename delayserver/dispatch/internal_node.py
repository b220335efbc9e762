"""The node of an internal group: the queue from which a task of this server takes due records."""

from __future__ import annotations

import numpy as np

from delayserver.state.memory.due_records import RECORDED, DueRecords
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.target import DeliveryError, Target
from store.records.batches import StoredBatch


class InternalNode(Target):
    """Puts batches into the queue, and waits for their answers."""

    def __init__(self, address: str, due: DueRecords) -> None:
        self.address = address
        self._due = due

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        """See `Target.deliver`. An uncertain record is as good as another one: what the task did with it is on disk."""
        due = self._due.put(batch)
        codes = await due.wait_answer()
        if codes is None:
            raise DeliveryError(due.refusal, known=due.is_certain)
        return Answer(np.where(codes == RECORDED, np.uint8(RowAnswer.RECORDED), codes))
