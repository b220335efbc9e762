"""The broker of this process as a node of a broker group."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from delayserver.broker.service.local_broker import LocalBroker
from delayserver.protocol.errors import InDoubt, ShuttingDown
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.state.counts.redeliveries import Redeliveries
from delayserver.targets.answer import Answer
from delayserver.targets.embedded_kind import EMBEDDED_ADDRESS
from delayserver.targets.target import DeliveryError, Target
from store.errors import DiskFullError, UnreadableError
from store.records.batches import StoredBatch
from store.records.column_batch import has_any


class EmbeddedNode(Target):
    """Hands over within the process: a batch is stored in this step, and `delivered` is said after the broker's sync."""

    address = EMBEDDED_ADDRESS

    def __init__(self, broker: LocalBroker, server_id: int, redeliveries: Redeliveries) -> None:
        self._broker = broker
        self._server_id = server_id
        self._redeliveries = redeliveries

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        """See `Target.deliver`. Raises DeliveryError."""
        try:
            if uncertain:
                delivered = await self._broker.deliver_uncertain(batch, lambda: None)
            else:
                delivered = self._broker.deliver(batch)
            if has_any(batch.target_group):  # in the step in which the queues have them
                self._redeliveries.count_arrived(
                    batch, np.flatnonzero(delivered.outcome != int(DeliverOutcome.REFUSED))
                )
            if delivered.no_room:
                raise DeliveryError("the broker's disk is full", known=True)
            await self._broker.commit.wait_stored(delivered.end)
        except ShuttingDown as error:
            raise DeliveryError(str(error), known=True) from error
        except UnreadableError as error:  # it does not say which of these it has: nothing is stored
            raise DeliveryError(str(error), known=True) from error
        except (DiskFullError, InDoubt) as error:
            raise DeliveryError(str(error), known=False) from error
        return Answer(delivered.outcome)

    async def probe(self) -> None:
        """The broker is there as long as this process. Whether its disk has room only a message shows."""

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """Forget the keys of these windows. It cannot fail."""
        self._broker.core.arrivals.window_complete(self._server_id, windows_ms())
