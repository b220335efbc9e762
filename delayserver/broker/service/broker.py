"""The broker: delivered messages wait here for consumer groups. Synchronous: the caller passes the time and waits.
`now_us` is the wall clock. `lease_us` is a clock that is never set, because leases are durations within this process.

    deliver -> [sync] -> "delivered" is recorded      pull -> ack -> [sync] -> answered
                         nack, expired_leases -> the server's message_log -> settle_retry

Calls come from one thread (the event loop). Only `BrokerSync.run` and `CheckpointWrite.run` may run in another one.
"""

from __future__ import annotations

from typing import Any

from delayserver.broker.actions.arrivals import Arrivals
from delayserver.broker.actions.consuming import Acked, Consuming
from delayserver.broker.actions.delivering import Delivered
from delayserver.broker.actions.group_rows import GroupRow, group_keys, group_row
from delayserver.broker.actions.retention import retirable, retire_store
from delayserver.broker.actions.retries import Retries, RetryBatch
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.status import broker_status
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.room import ALL_ROOM, Room
from delayserver.broker.service.durability import BrokerSync, CheckpointWrite, Durability
from delayserver.broker.service.recovery import recover_broker
from store.disk.filesystem import FileSystem
from store.errors import DiskFullError, StoreError
from store.records.batches import I64, StoredBatch


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
        cls,
        fs: FileSystem,
        directory: str,
        server_id: int,
        now_us: int,
        limits: BrokerLimits | None = None,
        room: Room = ALL_ROOM,
        lease_us: int | None = None,
    ) -> Broker:
        """Open or create the broker's files in `directory` and recover. A torn tail is cut off, queues are scanned from
        the checkpoint on, and leased messages are deliverable again.

        `now_us` dates segments of unknown age. From it follows how much longer messages wait in their place. It is also
        the default of `lease_us`. The store asks `room` before it grows.
        Raises FormatError for files of another server, DiskFullError, StoreError.
        """
        leases_us = now_us if lease_us is None else lease_us
        broker = cls(recover_broker(fs, directory, server_id, limits or BrokerLimits(), now_us, leases_us, room))
        try:
            if broker._durability.compaction_urgent:
                broker.sync()
            broker.checkpoint()  # makes the new epoch durable before any delivery id carries it
        except StoreError:
            broker.abandon()
            raise
        return broker

    @property
    def limits(self) -> BrokerLimits:
        """The bounds of this broker."""
        return self._state.limits

    @property
    def damages(self) -> list[str]:
        """Descriptions of the damages found, with file and offset."""
        return self._state.damages

    # Delivering

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:
        """Store a batch of one server. Its `position` column is not used. Every row gets an outcome.

        `uncertain`: an earlier attempt with some of these rows had no known result, so rows that are stored already are
        duplicates. A full disk refuses rows. Any other failure of the disk raises StoreError.
        """
        return self._arrivals.deliver(batch, uncertain, now_us)

    def window_complete(self, server_id: int, windows_ms: list[int]) -> None:
        """A server declares that it will not hand off messages of these windows again. Drops their keys."""
        self._arrivals.window_complete(server_id, windows_ms)

    # Consuming

    def admits(self, subject: int, group: int) -> bool:
        """Whether this group may pull: it exists, or there is room for one more."""
        groups = self._state.groups
        return (subject, group) in groups or len(groups) < self._state.limits.groups_max

    def pull(
        self,
        subject: int,
        group: int,
        max_messages: int,
        max_bytes: int,
        now_us: int,
        lease_us: int,
        ack_timeout_ms: int | None = None,
    ) -> PulledBatch | None:
        """Hand out the messages that are there now, retries first; None if there are none.

        The first pull makes the group. It starts at the earliest position kept, so a late group gets earlier messages.
        A message that has expired at `now_us` is not handed out. It is done for the group and counted as expired."""
        return self._consuming.pull((subject, group), max_messages, max_bytes, now_us, lease_us, ack_timeout_ms)

    def is_unfinished(self, subject: int, group: int) -> bool:
        """Whether the group's last pull found nothing but expired messages before it reached the bound of a step."""
        return self._consuming.is_unfinished((subject, group))

    @property
    def expired_messages(self) -> int:
        """How many messages have expired for consumer groups since the start."""
        return self._state.expired_messages

    def waiting_rows(self, subject: int, group: int) -> int:
        """How many messages wait for a group. Messages acked before a restart may be counted too."""
        return self._consuming.waiting_rows((subject, group))

    def ack(self, subject: int, group: int, deliveries: I64, now_us: int) -> Acked:
        """Ack deliveries (i64[n], any order). Answer the client after the next sync."""
        return self._consuming.ack((subject, group), deliveries)

    def nack(
        self, subject: int, group: int, deliveries: I64, delay_ms: int | None, now_us: int, lease_us: int
    ) -> RetryBatch:
        """Take leased deliveries (i64[n]) back. They become internal records for this group, due in `delay_ms`.
        If it is None, they are due after the pauses of the redelivery policy.

        Beyond the group's bound of bytes they wait in their place instead. A message that would come again at or behind
        its expiry is done for the group and counted as expired."""
        return self._retries.nack((subject, group), deliveries, delay_ms, now_us, lease_us)

    def expired_leases(self, now_us: int, lease_us: int, limit: int) -> list[RetryBatch]:
        """Take back about `limit` deliveries whose ack timeout has passed, as one batch a group.

        They are due after the pauses of the redelivery policy. After a batch without messages the group may have
        messages that can be pulled again from their place."""
        return self._retries.expired(now_us, lease_us, limit)

    def next_lease_deadline_us(self) -> int | None:
        """When `expired_leases` has work, by the clock of `lease_us`; None while no message is leased or waits."""
        return self._retries.next_deadline_us()

    def settle_retry(self, batch: RetryBatch) -> None:
        """The internal records of the batch are durable in the message_log. Counts the deliveries as acked."""
        self._retries.settle(batch)

    def abandon_retry(self, batch: RetryBatch, lease_us: int) -> None:
        """The internal records could not be made durable. Leases the deliveries for another ack timeout."""
        self._retries.abandon(batch, lease_us)

    # Durability

    @property
    def synced_offset(self) -> int:
        """Store offset below which every delivery is durable."""
        return self._state.store.synced

    @property
    def syncing(self) -> bool:
        """Whether a sync plan was captured and is not finished."""
        return self._durability.syncing

    def needs_sync(self) -> bool:
        """Whether a delivery or an ack waits for a sync."""
        return self._durability.needs_sync()

    def sync_plan(self) -> BrokerSync:
        """Capture a sync of all deliveries and acks so far. Call `finish_sync` or `abort_sync` before the next one."""
        return self._durability.sync_plan()

    def finish_sync(self, plan: BrokerSync) -> None:
        """The plan ran: its deliveries and acks are durable."""
        self._durability.finish_sync()

    def abort_sync(self, plan: BrokerSync) -> None:
        """The plan failed for want of space: its rows wait for the next plan."""
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
        """Whether the store has grown by `checkpoint_bytes` since the last checkpoint."""
        return self._durability.checkpoint_due()

    def checkpoint_plan(self) -> CheckpointWrite:
        """Capture a checkpoint. Call its `run`, then `finish_checkpoint`."""
        return self._durability.checkpoint_plan()

    def finish_checkpoint(self, plan: CheckpointWrite) -> None:
        """The checkpoint is durable."""
        self._durability.finish_checkpoint(plan)

    def checkpoint(self) -> None:
        """Capture, write and finish in one go. Raises DiskFullError, SyncFailedError."""
        plan = self.checkpoint_plan()
        plan.run()
        self.finish_checkpoint(plan)

    def retires_past_checkpoint(self, now_us: int, latest_us: int | None = None) -> bool:
        """Whether `retire` would first write a checkpoint. A caller that wants that in a thread writes one before."""
        return (
            retirable(self._state, now_us, now_us if latest_us is None else latest_us) > self._durability.checkpointed
        )

    def retire(self, now_us: int, latest_us: int | None = None) -> list[str]:
        """Remove store segments that are not needed (see `retention.py`); returns their paths.

        The time lies between `now_us` and `latest_us`. Without `latest_us` it is `now_us`."""
        below = retirable(self._state, now_us, now_us if latest_us is None else latest_us)
        if below > self._durability.checkpointed:
            try:
                self.checkpoint()
            except DiskFullError:  # segments that the last checkpoint allows to remove make room
                below = self._durability.checkpointed
        removed = retire_store(self._state, below)
        if removed:
            self._arrivals.count_runs()
        return removed

    def group_keys(self, after: GroupKey, subject: int, count_max: int) -> list[GroupKey]:
        """The first `count_max` consumer groups behind `after`, in the order of their codes; see `group_rows.py`."""
        return group_keys(self._state, after, subject, count_max)

    def group_row(self, key: GroupKey) -> GroupRow | None:
        """The row of a consumer group; None if there is no such group."""
        return group_row(self._state, key)

    def status(self) -> dict[str, Any]:
        """Counts since the start and the present sizes, in constant time."""
        return {
            "delivered": self._arrivals.delivered,
            "duplicates": self._arrivals.duplicates,
            "pulled": self._consuming.pulled,
            "acked": self._consuming.acked,
            "retried": self._retries.retried,
            "expired": self._state.expired_messages,
            **broker_status(self._state),
        }

    def check_invariants(self) -> None:
        """Check every queue and every cursor. For tests."""
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
