"""The node of an internal group: the queue from which a task of this server takes due records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from delayserver.dispatch.broker_node import DeliveryError
from delayserver.state.memory.due_records import DueRecords
from store.records.batches import StoredBatch


class InternalNode:
    """Puts batches into the queue, and waits for their answers."""

    problem = ""

    def __init__(self, address: str, due: DueRecords) -> None:
        self.address = address
        self._due = due

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> NDArray[np.uint8]:
        """See `Broker.deliver`. An uncertain record is as good as another one: what the task did with it is on disk."""
        due = self._due.put(batch)
        answer = await due.answered()
        if answer is None:
            raise DeliveryError(due.refusal, known=due.is_certain)
        return answer

    async def probe(self) -> None:
        """It is a part of this server."""

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """There is nothing to forget."""
