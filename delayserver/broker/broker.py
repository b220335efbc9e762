"""The broker: delivered messages wait here for consumer groups. Synchronous; time and every wait are the caller's.
`now_us` is the wall clock, `lease_us` a clock that is never set: leases are durations of this process.

    deliver -> [sync] -> "delivered" is recorded      pull -> ack -> [sync] -> answered
                         nack, expired_leases -> the server's message_log -> settle_retry

Calls come from one thread (the event loop). Only `BrokerSync.run` and `CheckpointWrite.run` may run in another one.
"""

from __future__ import annotations

from typing import Any

from delayserver.broker.arrivals import Arrivals
from delayserver.broker.consuming import Acked, Consuming
from delayserver.broker.delivering import Delivered
from delayserver.broker.durability import BrokerSync, CheckpointWrite, Durability
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.recovery import recover_broker
from delayserver.broker.retention import retirable, retire_store
from delayserver.broker.retries import Retries, RetryBatch
from delayserver.broker.state import BrokerState
from delayserver.broker.status import broker_status
from store.batches import I64, StoredBatch
from store.errors import DiskFullError
from store.filesystem import FileSystem


class Broker:
    """Queues, groups and the store of one broker node. Subjects and groups are codes of the server's names table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._arrivals = Arrivals(state)
        self._consuming = Consuming(state)
        self._retries = Retries(state)
        self._durability = Durability(state)

    @classmethod
    def open(
        cls, fs: FileSystem, directory: str, server_id: int, now_us: int, limits: BrokerLimits | None = None
    ) -> Broker:
        """Open or create the broker's files in `directory` and recover: a torn tail is cut off, queues are scanned from
        the checkpoint on, what was leased is deliverable again. `now_us` dates segments whose age is not known.

        Raises FormatError for files of another server, DiskFullError, StoreError.
        """
        broker = cls(recover_broker(fs, directory, server_id, limits or BrokerLimits(), now_us))
        if broker._durability.compaction_urgent:
            broker.sync()
        broker.checkpoint()  # makes the new epoch durable before any delivery id carries it
        return broker

    @property
    def limits(self) -> BrokerLimits:
        """The bounds this broker runs with."""
        return self._state.limits

    @property
    def damages(self) -> list[str]:
        """What the disk did not give back, in words, with file and offset."""
        return self._state.damages

    # Delivering

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:
        """Store a batch of one (server, window); its `position` column is not used. Every row gets an outcome.

        `uncertain`: an attempt with some of these rows was made before and its result is unknown; rows that are here
        already are not stored again. Raises StoreError where the disk fails otherwise than by being full.
        """
        return self._arrivals.deliver(batch, uncertain, now_us)

    def window_complete(self, server_id: int, windows_ms: list[int]) -> None:
        """A server declares that it will not hand off anything of these windows again: their keys are forgotten."""
        self._arrivals.window_complete(server_id, windows_ms)

    # Consuming

    def admits(self, subject: int, group: int) -> bool:
        """Whether this group may pull: it is known, or there is room for one more."""
        groups = self._state.groups
        return (subject, group) in groups or len(groups) < self._state.limits.groups_max

    def pull(
        self,
        subject: int,
        group: int,
        max_messages: int,
        max_bytes: int,
        lease_us: int,
        ack_timeout_ms: int | None = None,
    ) -> PulledBatch | None:
        """Hand out what is there now, retries first; None if nothing is. A group is made by its first pull and starts
        at the earliest position kept, so a group that comes late gets what was delivered before."""
        return self._consuming.pull((subject, group), max_messages, max_bytes, lease_us, ack_timeout_ms)

    def waiting_rows(self, subject: int, group: int) -> int:
        """How many rows wait for a group, acks of before a restart included."""
        return self._consuming.waiting_rows((subject, group))

    def ack(self, subject: int, group: int, deliveries: I64, now_us: int) -> Acked:
        """Ack deliveries (i64[n], any order). Answer the client after the sync that follows."""
        return self._consuming.ack((subject, group), deliveries)

    def nack(self, subject: int, group: int, deliveries: I64, delay_ms: int, now_us: int, lease_us: int) -> RetryBatch:
        """Take leased deliveries (i64[n]) back: they become internal records due in `delay_ms`, for this group only."""
        return self._retries.nack((subject, group), deliveries, delay_ms, now_us, lease_us)

    def expired_leases(self, now_us: int, lease_us: int, limit: int) -> list[RetryBatch]:
        """Deliveries whose ack timeout has passed, about `limit` of them, one batch a group; due at once."""
        return self._retries.expired(now_us, lease_us, limit)

    def next_lease_deadline_us(self) -> int | None:
        """When (of `lease_us`) `expired_leases` has something to give, None while nothing is leased."""
        return self._retries.next_deadline_us()

    def settle_retry(self, batch: RetryBatch) -> None:
        """The internal records of the batch are durable in the message_log: the deliveries they stand for are done."""
        self._retries.settle(batch)

    def abandon_retry(self, batch: RetryBatch, lease_us: int) -> None:
        """The internal records could not be made durable: the deliveries stay leased for another ack timeout."""
        self._retries.abandon(batch, lease_us)

    # Durability

    @property
    def synced_offset(self) -> int:
        """Store offset below which every delivery is durable."""
        return self._state.store.synced

    @property
    def syncing(self) -> bool:
        """Whether a sync plan is under way."""
        return self._durability.syncing

    def needs_sync(self) -> bool:
        """Whether a delivery or an ack waits for a sync."""
        return self._durability.needs_sync()

    def sync_plan(self) -> BrokerSync:
        """Capture what to make durable. One at a time: `finish_sync` or `abort_sync` comes before the next plan."""
        return self._durability.sync_plan()

    def finish_sync(self, plan: BrokerSync) -> None:
        """The plan ran: what it captured is durable."""
        self._durability.finish_sync()

    def abort_sync(self, plan: BrokerSync) -> None:
        """The plan failed for want of space: its rows wait for the next one."""
        self._durability.abort_sync(plan)

    def sync(self) -> None:
        """Plan, run and finish in one go. Raises DiskFullError, SyncFailedError (final)."""
        plan = self.sync_plan()
        try:
            plan.run()
        except DiskFullError:
            self.abort_sync(plan)
            raise
        self.finish_sync(plan)

    # Upkeep

    def checkpoint_due(self) -> bool:
        """Whether enough was stored since the last checkpoint that a restart should not have to scan it."""
        return self._durability.checkpoint_due()

    def checkpoint_plan(self) -> CheckpointWrite:
        """Capture a checkpoint; then `run`, then `finish_checkpoint`."""
        return self._durability.checkpoint_plan()

    def finish_checkpoint(self, plan: CheckpointWrite) -> None:
        """The checkpoint is durable."""
        self._durability.finish_checkpoint(plan)

    def checkpoint(self) -> None:
        """Capture, write and finish in one go. Raises DiskFullError, SyncFailedError."""
        plan = self.checkpoint_plan()
        plan.run()
        self.finish_checkpoint(plan)

    def retires_past_checkpoint(self, now_us: int) -> bool:
        """Whether `retire` would write a checkpoint first; who wants that in a thread makes it before."""
        return retirable(self._state, now_us) > self._durability.checkpointed

    def retire(self, now_us: int) -> list[str]:
        """Give back store segments that nobody needs (see `retention.py`); returns their paths."""
        below = retirable(self._state, now_us)
        if below > self._durability.checkpointed:
            try:
                self.checkpoint()
            except DiskFullError:  # what the last one allows makes room
                below = self._durability.checkpointed
        removed = retire_store(self._state, below)
        if removed:
            self._arrivals.count_runs()
        return removed

    def status(self) -> dict[str, Any]:
        """Counts since the start, and backlog, leases and age per (subject code, group code)."""
        return {
            "delivered": self._arrivals.delivered,
            "duplicates": self._arrivals.duplicates,
            "pulled": self._consuming.pulled,
            "acked": self._consuming.acked,
            "retried": self._retries.retried,
            **broker_status(self._state),
        }

    def check_invariants(self) -> None:
        """Of every queue and every cursor. O(everything); for tests."""
        for queue in self._state.queues.values():
            queue.check_invariants()
        for group in self._state.groups.values():
            group.main.check_invariants()
            group.retry.check_invariants()

    def close(self) -> None:
        """Sync, write a checkpoint and close the files: the next start scans nothing."""
        self.sync()
        self.checkpoint()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without making anything durable."""
        self._state.close()
