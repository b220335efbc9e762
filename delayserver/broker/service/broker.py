"""The broker: delivered messages wait here for consumer groups. Synchronous: the caller passes the time and waits.
`now_us` is the wall clock. `lease_us` is a clock that is never set, because leases are durations within this process.

    Arrivals.deliver -> [sync] -> "delivered" is recorded      Leasing.pull -> Leasing.ack -> [sync] -> answered
                        Retries.nack, Retries.take_expired -> the server's message_log -> Retries.settle

Calls come from one thread (the event loop). Only `BrokerSync.run`, `CheckpointWrite.run` and `ReadPlan.run` may run in
another one. No call waits for a read of the disk: it raises ReadNeeded, or it is carried out in steps (`reads.py`).
"""

from __future__ import annotations

from typing import Any, Self

from delayserver.broker.actions.arrivals import Arrivals
from delayserver.broker.actions.dead_letter_burial import DeadLetters, has_letters
from delayserver.broker.actions.dead_queue import DeadQueue
from delayserver.broker.actions.find_plan import Indexes
from delayserver.broker.actions.group_backlog import ConsumerGroupRows
from delayserver.broker.actions.group_moves import GroupMoves
from delayserver.broker.actions.in_doubt import MessagesInDoubt
from delayserver.broker.actions.leasing import Leasing
from delayserver.broker.actions.retries import Retries
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.waiting_messages import WaitingKeys
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.disk_room import ALL_ROOM, DiskRoom
from delayserver.broker.files.broker_files import close_files
from delayserver.broker.service.durability import Durability
from delayserver.broker.service.recovery import ProgressReplay, recover_broker
from delayserver.broker.service.store_retention import StoreRetention
from delayserver.runtime.marks import Bell
from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.records.batches import StoredBatch


class Broker:
    """The parts of one broker, each of which does its own work. Subjects and groups are codes of the server's names table,
    and a `GroupKey` is a subject with a group."""

    def __init__(self, state: BrokerState, replay: ProgressReplay) -> None:
        """`replay`: of the progress that the files have; for a member of a cluster it is not finished."""
        self.state = state
        self.replay = replay
        # Hand-outs wait for a sync, which may come later. Leases have ended, because their process did.
        self.counted, self.ended = Bell(), Bell()
        self.arrivals = Arrivals(state)
        self.consuming = Leasing(state, self.counted.ring, self.ended.ring)
        self.retries = Retries(state)
        self.positions = GroupMoves(state)
        self.dead_letters = DeadLetters(state, self.arrivals)
        self.dead_queue = DeadQueue(state, self.dead_letters)
        self.waiting_keys = WaitingKeys(state)
        self.in_doubt = MessagesInDoubt(state)
        self.indexes = Indexes(state)
        self.group_rows = ConsumerGroupRows(state)
        self.durability = Durability(state)
        self.retention = StoreRetention(state, self.durability, self.arrivals)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        server_id: int,
        now_us: int,
        limits: BrokerLimits | None = None,
        room: DiskRoom = ALL_ROOM,
        lease_us: int | None = None,
        *,
        patient: bool = False,
        shared: bool = False,
        begun: bool = False,
    ) -> Self:
        """Open or create the broker's files in `directory` and recover. A torn tail is cut off, queues are scanned from
        the checkpoint on, and leased messages are deliverable again.

        `now_us` dates segments of unknown age. From it follows how much longer messages wait in their place. It is also
        the default of `lease_us`. The store asks `room` before it grows. With `patient` raises UnreadableError where the
        disk cannot read the store; without, its messages are passed over. `shared`: of a member of a cluster, which has
        followed its log up to the last mark of its files; `begun`: it has records of that log. It serves after `take_over`
        only. Raises FormatError for files of another server, CorruptionError for missing ones, DiskFullError, StoreError.
        """
        leases_us = now_us if lease_us is None else lease_us
        limits = limits or BrokerLimits()
        state, replay = recover_broker(
            fs, directory, server_id, limits, now_us, leases_us, room, patient=patient, shared=shared, begun=begun
        )
        if not shared:
            replay.finish(now_us)
        broker = cls(state, replay)
        try:
            if not shared and broker.durability.compaction_urgent:
                broker.durability.sync()
            broker.durability.checkpoint()  # makes the new epoch durable before any delivery id carries it
        except StoreError:
            broker.abandon()
            raise
        return broker

    def follow(self, batch: StoredBatch, now_us: int) -> None:
        """Store a record of another member; its progress goes to `replay`. Raises DiskFullError (nothing stored)."""
        record = self.arrivals.follow(batch, now_us)
        if has_letters(record):  # until the rows that ack their messages come
            self.replay.letters.append(record)

    def take_over(self, epoch: int, now_us: int) -> None:
        """All that the log of the shard has was followed: this member serves from now on, in an epoch of the shard."""
        self.replay.finish(now_us)
        self.state.files.epoch.begin(epoch)
        self.state.files.store.keep_made()

    def status(self) -> dict[str, Any]:
        """Counts since the start and the present sizes, in a time that does not grow with subjects and groups. `group_rows`
        has the numbers of each group."""
        state, store = self.state, self.state.files.store
        return {
            "delivered": self.arrivals.delivered,
            "published": self.arrivals.published,
            "duplicates": self.arrivals.duplicates,
            "pulled": self.consuming.pulled,
            "acked": self.consuming.acked,
            "retried": self.retries.retried,
            "dead_letters": self.dead_letters.stored,
            "dead_letters_retired": state.letters.retired,
            "expired": state.groups.expired_messages,
            "filtered": state.groups.filtered_messages,
            "store_bytes": store.end - store.first,
            "cache_bytes": store.cache_bytes,
            "open_windows": len(state.windows.extents),
            "damaged_messages": state.damages.messages,
            "damages": len(state.damages.texts),
            "queues": len(state.queues),
            "groups": len(state.groups),
            "groups_max": state.limits.groups_max,
        }

    def check_invariants(self) -> None:
        """Check every queue and every cursor. For tests."""
        self.state.queues.check_invariants()
        for group in self.state.groups.values():
            group.main.check_invariants()
            group.retry.check_invariants()
        self.state.files.reads.check_invariants()

    def close(self) -> None:
        """Sync, write a checkpoint and close the files: the next start scans nothing."""
        self.durability.sync()
        self.durability.checkpoint()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without making anything durable."""
        close_files(self.state.files)
