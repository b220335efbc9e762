"""The broker: delivered messages wait here for consumer groups. Synchronous; time and every wait are the caller's.
`now_us` is the wall clock, `lease_us` a clock that is never set: leases are durations of this process.

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
        """Open or create the broker's files in `directory` and recover: a torn tail is cut off, queues are scanned from
        the checkpoint on, what was leased is deliverable again. `now_us` dates segments whose age is not known, and
        says how long what waits in its place has still to wait; without a clock of leases of its own it stands for that.
        `room` is asked before the store grows.

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
        now_us: int,
        lease_us: int,
        ack_timeout_ms: int | None = None,
    ) -> PulledBatch | None:
        """Hand out what is there now, retries first; None if nothing is. A group is made by its first pull and starts
        at the earliest position kept, so a group that comes late gets what was delivered before. A message that has
        expired at `now_us` is done for the group and counted, not handed out."""
        return self._consuming.pull((subject, group), max_messages, max_bytes, now_us, lease_us, ack_timeout_ms)

    def is_unfinished(self, subject: int, group: int) -> bool:
        """Whether the group's last pull found nothing but expired messages before it reached the bound of a step."""
        return self._consuming.is_unfinished((subject, group))

    @property
    def expired_messages(self) -> int:
        """How many messages have expired for consumer groups since the start."""
        return self._state.expired_messages

    def waiting_rows(self, subject: int, group: int) -> int:
        """How many rows wait for a group, acks of before a restart included."""
        return self._consuming.waiting_rows((subject, group))

    def ack(self, subject: int, group: int, deliveries: I64, now_us: int) -> Acked:
        """Ack deliveries (i64[n], any order). Answer the client after the sync that follows."""
        return self._consuming.ack((subject, group), deliveries)

    def nack(
        self, subject: int, group: int, deliveries: I64, delay_ms: int | None, now_us: int, lease_us: int
    ) -> RetryBatch:
        """Take leased deliveries (i64[n]) back: they become internal records due in `delay_ms`, for this group only; None
        for the group's own pauses. Beyond the group's bound of bytes they wait in their place instead. One that would
        come again at or behind its expiry is done for the group and counted as expired."""
        return self._retries.nack((subject, group), deliveries, delay_ms, now_us, lease_us)

    def expired_leases(self, now_us: int, lease_us: int, limit: int) -> list[RetryBatch]:
        """Deliveries whose ack timeout has passed, about `limit` of them, one batch a group; due behind the group's pauses.
        A batch without messages says that something can be pulled again from its place."""
        return self._retries.expired(now_us, lease_us, limit)

    def next_lease_deadline_us(self) -> int | None:
        """When (of `lease_us`) `expired_leases` has something to give; None while nothing is leased or waits."""
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

    def retires_past_checkpoint(self, now_us: int, latest_us: int | None = None) -> bool:
        """Whether `retire` would write a checkpoint first; who wants that in a thread makes it before."""
        return (
            retirable(self._state, now_us, now_us if latest_us is None else latest_us) > self._durability.checkpointed
        )

    def retire(self, now_us: int, latest_us: int | None = None) -> list[str]:
        """Give back store segments that nobody needs (see `retention.py`); returns their paths. The time lies between
        `now_us` and `latest_us`; without the latter it is `now_us`."""
        below = retirable(self._state, now_us, now_us if latest_us is None else latest_us)
        if below > self._durability.checkpointed:
            try:
                self.checkpoint()
            except DiskFullError:  # what the last one allows makes room
                below = self._durability.checkpointed
        removed = retire_store(self._state, below)
        if removed:
            self._arrivals.count_runs()
        return removed

    def group_keys(self, after: GroupKey, subject: int, count_max: int) -> list[GroupKey]:
        """The first consumer groups behind `after`, in the order of their codes; see `group_rows.py`."""
        return group_keys(self._state, after, subject, count_max)

    def group_row(self, key: GroupKey) -> GroupRow | None:
        """What a consumer group has before it; None where there is no such group."""
        return group_row(self._state, key)

    def status(self) -> dict[str, Any]:
        """Counts since the start, and what the broker holds, in constant time."""
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
