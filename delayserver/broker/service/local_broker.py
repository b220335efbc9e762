"""The broker of this process as one part: the core, its group commit and its waiting pulls."""

from __future__ import annotations

import trio

from delayserver.broker.actions.consuming import Acked
from delayserver.broker.actions.delivering import Delivered
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.pulls import PullService
from delayserver.runtime.clock import Clock
from store.records.batches import I64, StoredBatch


class LocalBroker:
    """A `Broker` with the tasks that serve it. The embedded node and the operations of consumers share it."""

    def __init__(self, core: Broker, commit: BrokerCommit, pulls: PullService, clock: Clock) -> None:
        self.core = core
        self.commit = commit
        self.pulls = pulls
        self._clock = clock

    async def run(self) -> None:
        """Commit and serve waiting pulls, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.commit.run)
            nursery.start_soon(self.commit.run_upkeep)
            nursery.start_soon(self.pulls.run)

    def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Delivered:
        """Store a batch and serve the pulls that wait for it; see `Broker.deliver`.

        Consumers may get a message before it is durable. `commit.stored` waits until it is."""
        delivered = self.core.deliver(batch, uncertain, self._clock.now_us())
        self.pulls.arrived(delivered.arrived, len(batch))
        return delivered

    def ack(self, subject: int, group: int, deliveries: I64) -> Acked:
        """Ack deliveries (i64[n], any order), and wake pulls of the group. Answer the client after `commit.durable`."""
        acked = self.core.ack(subject, group, deliveries, self._clock.now_us())
        self.pulls.acked(subject, group)
        return acked
