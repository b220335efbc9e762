"""The broker of this process as one part: the core, its group commit and its waiting pulls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from delayserver.broker.actions.arrivals import PublishedPositions, Stored
from delayserver.broker.actions.delivered_batch import Delivered
from delayserver.broker.actions.leasing import Acked
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.broker_reads import BrokerReads
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.find_service import FindService
from delayserver.broker.service.group_positions import GroupPositions
from delayserver.broker.service.lookers import Lookers
from delayserver.broker.service.pulls import PullService
from delayserver.broker.service.recently_consumed import RecentlyConsumed
from delayserver.runtime.runtime import Runtime
from store.records.batches import I64, StoredBatch
from store.records.stored_rows import StoredRows


class LocalBroker:
    """A `Broker` with the tasks that serve it. The embedded node and the operations of consumers share it."""

    def __init__(
        self, core: Broker, commit: BrokerCommit, reads: BrokerReads, pulls: PullService, runtime: Runtime
    ) -> None:
        self.core = core
        self.commit = commit
        self.reads = reads
        self.pulls = pulls
        self.lookers = Lookers()
        self.recently = RecentlyConsumed()
        self.positions = GroupPositions(core.positions, core.state.groups, commit, pulls, reads)
        self.finding = FindService(core.indexes, runtime)
        self._arrivals = core.arrivals
        self._consuming = core.consuming
        self._clock = runtime.clock

    async def run(self) -> None:
        """Commit, read and serve waiting pulls, until cancelled. `commit.run_upkeep` is a task of its own."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reads.run)
            nursery.start_soon(self.commit.run)
            nursery.start_soon(self.commit.run_ahead)
            nursery.start_soon(self.commit.run_counts)
            nursery.start_soon(self.pulls.run)
            nursery.start_soon(self.finding.run)

    async def close(self) -> None:
        """Hand out nothing more, wait for the reads under way, and close the broker's files cleanly."""
        self.pulls.close()
        await self.reads.close()
        await self.commit.close()

    def deliver(self, batch: StoredBatch) -> Delivered:
        """Store a batch and serve the pulls that wait for it, in this step; see `Arrivals.deliver`.

        Consumers may get a message before it is durable. `commit.wait_stored` waits until it is."""
        delivered = self._arrivals.deliver(batch, self._clock.now_us())
        self.pulls.wake(delivered.arrived, len(batch))
        self.lookers.wake(delivered.arrived)
        return delivered

    async def deliver_uncertain(self, batch: StoredBatch, admit: Callable[[], object]) -> Delivered:
        """`deliver` for rows some of which may be stored already; see `Arrivals.deliver_uncertain`. It may have to wait for
        the disk. Raises ShuttingDown."""
        call = self._arrivals.deliver_uncertain(batch, self._clock.now_us(), admit)
        delivered = await self.reads.finish(call)
        self.pulls.wake(delivered.arrived, len(batch))
        self.lookers.wake(delivered.arrived)
        return delivered

    def publish(
        self, batches: Sequence[StoredBatch | StoredRows], stored: Stored | None = None, *, durably: bool
    ) -> PublishedPositions:
        """Store messages of this node and serve the pulls that wait for them; see `Arrivals.publish`.

        Without `durably`, wait for `commit.wait_stored` or `commit.when_stored` until they are durable."""
        published = self._arrivals.publish(batches, self._clock.now_us(), stored, durably=durably)
        self.pulls.wake(published.arrived, sum([len(batch) for batch in batches]))
        self.lookers.wake(published.arrived)
        return published

    def ack(self, subject: int, group: int, deliveries: I64) -> Acked:
        """Ack deliveries (i64[n], any order), and wake pulls of the group. Answer the client after `commit.durable`."""
        acked = self._consuming.ack((subject, group), deliveries)
        self.recently.add_ack(subject, group, deliveries, self._clock.now_us())
        self.pulls.wake_group(subject, group)
        return acked
