"""The broker: delivered messages wait here for consumer groups. Synchronous: the caller passes the time and waits.
`now_us` is the wall clock. `lease_us` is a clock that is never set, because leases are durations within this process.

    deliver -> [sync] -> "delivered" is recorded      pull -> ack -> [sync] -> answered
                         nack, expired_leases -> the server's message_log -> settle_retry

Calls come from one thread (the event loop). Only `BrokerSync.run`, `CheckpointWrite.run` and `ReadPlan.run` may run in
another one. No call waits for a read of the disk: it raises ReadNeeded, or it is carried out in steps (`reads.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Self

from delayserver.broker.actions.arrivals import Arrivals, Published, Stored
from delayserver.broker.actions.consuming import Acked, Consuming, Extended
from delayserver.broker.actions.dead_letters import Burial, DeadLetters
from delayserver.broker.actions.dead_queue import Claim, DeadQueue, Letters
from delayserver.broker.actions.delivering import Delivered
from delayserver.broker.actions.finding import FindPlan, FindQuery, FindResult, Indexes
from delayserver.broker.actions.group_rows import GroupBacklog, GroupRow, group_backlogs, group_keys, group_row
from delayserver.broker.actions.in_doubt import InDoubt
from delayserver.broker.actions.indexing import IndexPlan
from delayserver.broker.actions.positions import Positions
from delayserver.broker.actions.retention import BlockCuts, block_cuts, retirable, retire_store
from delayserver.broker.actions.retries import Failure, Retries, RetryBatch
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.status import broker_status
from delayserver.broker.actions.waiting_keys import WaitingKeys, WaitingPage
from delayserver.broker.files.policies import PolicyRow, PolicyWrite
from delayserver.broker.files.store import BrokerStore
from delayserver.broker.filters.filter import Filter, FilterText
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.policy import GroupPolicy
from delayserver.broker.pulled import PulledBatch
from delayserver.broker.queues.groups import ConsumerGroup, GroupKey
from delayserver.broker.queues.queue import QueueKey
from delayserver.broker.reads import Reads, Steps
from delayserver.broker.redelivery import RedeliveryPolicy
from delayserver.broker.room import ALL_ROOM, Room
from delayserver.broker.service.durability import BrokerSync, CheckpointCapture, CheckpointWrite, Durability
from delayserver.broker.service.recovery import recover_broker
from delayserver.runtime.marks import Bell
from store.disk.filesystem import FileSystem
from store.errors import DiskFullError, StoreError
from store.logs.message_log import MessageLog
from store.records.batches import I64, MessageBatch, StoredBatch
from store.records.stored_rows import StoredRows


class Broker:
    """Queues, groups and the store of one broker node. Subjects and groups are codes of the server's names table."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._arrivals = Arrivals(state)
        self._consuming = Consuming(state)
        self._retries = Retries(state)
        self.positions = Positions(state)
        self._dead_letters = DeadLetters(state, self._arrivals)
        self._dead_queue = DeadQueue(state, self._dead_letters)
        self._waiting_keys = WaitingKeys(state, self._retries)
        self._durability = Durability(state)
        self._in_doubt = InDoubt(state)
        self._indexes = Indexes(state)
        # Hand-outs wait for a sync, which may come later. Leases have ended, because their process did.
        self.counted, self.ended = Bell(), Bell()

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
        *,
        patient: bool = False,
    ) -> Self:
        """Open or create the broker's files in `directory` and recover. A torn tail is cut off, queues are scanned from
        the checkpoint on, and leased messages are deliverable again.

        `now_us` dates segments of unknown age. From it follows how much longer messages wait in their place. It is also
        the default of `lease_us`. The store asks `room` before it grows. With `patient` raises UnreadableError where the
        disk cannot read the store; without, its messages are passed over.
        Raises FormatError for files of another server, DiskFullError, StoreError.
        """
        leases_us = now_us if lease_us is None else lease_us
        limits = limits or BrokerLimits()
        broker = cls(recover_broker(fs, directory, server_id, limits, now_us, leases_us, room, patient=patient))
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
    def room(self) -> Room:
        """How many bytes of the disk its files may take."""
        return self._state.room

    @property
    def logs(self) -> tuple[MessageLog, MessageLog]:
        """The rolling logs of the store and of the index, whose next segments are made beside."""
        return self._state.files.store.log, self._state.files.blocks.log

    @property
    def damages(self) -> list[str]:
        """Descriptions of the damages found, with file and offset."""
        return self._state.damages.texts

    # Delivering

    def deliver(self, batch: StoredBatch, now_us: int) -> Delivered:
        """Store a batch of one server. Its `position` column is not used. Every row gets an outcome.

        A full disk refuses rows. Any other failure of the disk raises StoreError.
        """
        return self._arrivals.deliver(batch, now_us)

    def deliver_uncertain(
        self, batch: StoredBatch, now_us: int, admit: Callable[[], object] = lambda: None
    ) -> Steps[Delivered]:
        """`deliver` after an earlier attempt with some of these rows, whose result is not known. Rows that are stored
        already are duplicates. To find them the store may have to be read.

        `admit` is called in the step that stores them. It raises an error if the sender may deliver no more."""
        return self._arrivals.deliver_uncertain(batch, now_us, admit)

    def publish(
        self, batches: Sequence[StoredBatch | StoredRows], now_us: int, stored: Stored | None = None, *, durably: bool
    ) -> Published:
        """Store messages that this node made or took from clients: all of them or none. They have no window and no key,
        so a repetition is not recognised. Their `position` is not used, their `sequence` rises within a batch, and their
        `flags` have `FLAG_PUBLISHED`. With `durably` they are synced in this call, which must be small then.
        `stored` is called as soon as the records are in the store, so that producers need not wait for the rest.

        Raises DiskFullError (nothing stored), StoreError, SyncFailedError (final)."""
        return self._arrivals.publish(batches, now_us, stored, durably=durably)

    @property
    def store(self) -> BrokerStore:
        """The store: its space ahead may be warmed, and its name looked at."""
        return self._state.files.store

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
        owner: int = 0,
    ) -> PulledBatch | None:
        """Hand out the messages that are there now, retries first; None if there are none.

        The first pull makes the group. It starts at the earliest position kept, so a late group gets earlier messages.
        A message that has expired at `now_us` is not handed out. It is done for the group and counted as expired.
        So is one that the group's filter does not want, which is counted as filtered. The leases belong to `owner`, for
        `end_leases_of`; 0: to nobody.
        Raises ReadNeeded if the next message is not in memory, StoreError if the disk could not read it."""
        try:
            return self._consuming.pull(
                (subject, group), max_messages, max_bytes, now_us, lease_us, ack_timeout_ms, owner
            )
        finally:
            if self._durability.write_counts():  # before a consumer has them: it may take this process down
                self.counted.ring()
            if self._consuming.earlier.take_ended():
                self.ended.ring()

    def filter_text(self, subject: int, group: int) -> FilterText:
        """The filter of a group's policy."""
        policy = self._state.policies.of((subject, group))
        return FilterText(policy.tags, policy.where)

    def lacks_filter(self, subject: int, group: int) -> bool:
        """Whether `use_filter` must come before the group's next pull: its policy has a filter, and it was not set yet."""
        key = (subject, group)
        return key in self._state.policies.rows and key not in self._state.filters and bool(self.filter_text(*key))

    def filter_characters(self) -> int:
        """How long the filters of all policies are together. O(policies)."""
        policies = [row.policy for row in self._state.policies.rows.values()]
        return sum([len(policy.tags or "") + len(policy.where or "") for policy in policies])

    def leased(self, subject: int, group: int) -> int:
        """How many messages a group has leased."""
        found: ConsumerGroup | None = self._state.groups.get((subject, group))
        return 0 if found is None else found.main.leased() + found.retry.leased()

    def use_filter(self, subject: int, group: int, wanted: Filter | None) -> None:
        """Set which messages of the subject a group gets from now on; None: all of them.

        Messages that it was handed once come again whatever the filter says."""
        self._consuming.use_filter((subject, group), wanted)

    def passes_over(self, subject: int, group: int) -> bool:
        """Whether the newest messages of a subject are all that the group has not looked at, and its filter keeps all of
        them from it. Then it has passed over them."""
        return self._consuming.passes_over((subject, group))

    def is_unfinished(self, subject: int, group: int) -> bool:
        """Whether the group's last pull found nothing but expired or filtered messages before it reached the bound of a
        step."""
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

    def extend(
        self, subject: int, group: int, deliveries: I64, lease_us: int, timeout_ms: int, owner: int = 0
    ) -> Extended:
        """Let the leases of deliveries (i64[n], any order) end `timeout_ms` after `lease_us`, also those that would have
        ended later. They belong to `owner` then. Leases are memory alone, so nothing of it is durable."""
        return self._consuming.extend((subject, group), deliveries, lease_us, timeout_ms, owner)

    def end_leases_of(self, key: GroupKey, owners: set[int], now_us: int, lease_us: int) -> Steps[RetryBatch] | None:
        """Take back the deliveries of a group whose leases belong to these owners, which are gone; None if there are none.
        The call must be carried out.

        A message comes again at once the first time. Later it waits for the pauses of the redelivery policy, as if it had
        had one attempt less. The attempt counts, because a consumer may have had the message."""
        return self._retries.end_leases_of(key, owners, now_us, lease_us)

    def nack(
        self,
        subject: int,
        group: int,
        deliveries: I64,
        delay_ms: int | None,
        now_us: int,
        lease_us: int,
        failure: Failure | None = None,
    ) -> Steps[RetryBatch]:
        """Take leased deliveries (i64[n]) back. They become internal records for this group, due in `delay_ms`.
        If it is None, they are due after the pauses of the redelivery policy.

        Beyond the group's bound of bytes they wait in their place instead. A message that would come again at or behind
        its expiry is done for the group and counted as expired. With a `failure`, messages that had the last attempt of
        the group's policy are given up."""
        return self._retries.nack((subject, group), deliveries, delay_ms, now_us, lease_us, failure)

    def expired_leases(self, now_us: int, lease_us: int, limit: int) -> list[Steps[RetryBatch]]:
        """Take back about `limit` deliveries whose ack timeout has passed, as one call a group. All must be carried out.

        They are due after the pauses of the redelivery policy. After a batch without messages the group may have
        messages that can be pulled again from their place."""
        return self._retries.expired(now_us, lease_us, limit)

    def next_lease_deadline_us(self) -> int | None:
        """When `expired_leases` has work, by the clock of `lease_us`; None while no message is leased or waits."""
        return self._retries.next_deadline_us()

    def begin_retry(self, batch: RetryBatch, offset: int) -> None:
        """The internal records of the batch are about to be written to the message_log, at or behind this offset. They must
        not be there before the next sync has ended."""
        self._in_doubt.begin_retry(batch, offset)

    @property
    def doubts_from(self) -> int | None:
        """From which offset of message_log on records may stand that replace messages here; None if there are none."""
        return self._in_doubt.first_offset()

    def end_doubts(self, batches: Iterable[tuple[int, MessageBatch]]) -> None:
        """Ack the messages that such records replace, and only these. `batches`: all of message_log from `doubts_from` on,
        with their offsets. Reads the disk at once: to be called at a start, before anything is handed out."""
        self._in_doubt.settle(batches)

    def settle_retry(self, batch: RetryBatch) -> None:
        """The internal records of the batch are durable in the message_log. Counts the deliveries as acked."""
        self._retries.settle(batch)

    def abandon_retry(self, batch: RetryBatch, lease_us: int) -> None:
        """The internal records could not be made durable. Leases the deliveries for another ack timeout."""
        self._retries.abandon(batch, lease_us)

    # Dead letters

    def burial(self, batch: RetryBatch) -> Burial:
        """The messages that a batch gives up, in parts for `bury` or `keep_unburied`, each in a step of its own."""
        return Burial(batch, self._state)

    def bury(self, batch: RetryBatch, subject: str, group: str, first_sequence: int, now_us: int) -> list[QueueKey]:
        """Store the messages that a batch gives up as dead letters, and ack them; returns the queues that got messages.

        `subject` and `group` are their names. The letters get sequences from `first_sequence` on. One sync makes letters
        and acks durable. Raises DiskFullError (nothing changed; `keep_unburied` follows), StoreError."""
        return self._dead_letters.bury(batch, subject, group, first_sequence, now_us)

    def keep_unburied(self, batch: RetryBatch, lease_us: int) -> None:
        """The messages that a batch gives up could not be stored. They stay leased for another ack timeout, and are
        given up then."""
        self._retries.keep_unburied(batch, lease_us)

    def read_dead(self, key: GroupKey, after: int, count_max: int, bytes_max: int) -> Letters:
        """Dead letters behind a position. `key`: the dead-letter subject, and the group whose letters are there. Raises
        ReadNeeded."""
        return self._dead_queue.read(key, after, count_max, bytes_max)

    def claim_dead(self, key: GroupKey, wanted: I64 | None, after: int, count_max: int, bytes_max: int) -> Claim:
        """Claim dead letters to send them again: the first ones behind a position, or those of the positions `wanted`
        (i64[n]).

        `settle_dead` follows when they are durable elsewhere, `give_back_dead` otherwise. Raises ReadNeeded."""
        return self._dead_queue.claim(key, wanted, after, count_max, bytes_max)

    def begin_dead(self, claim: Claim, offset: int) -> None:
        """As `begin_retry`, for claimed letters."""
        self._in_doubt.begin(claim.key, [(part.start, part.stop) for part in claim.parts], (), offset)

    def settle_dead(self, claim: Claim) -> None:
        """The claimed letters are durable elsewhere: they are done here, durably after the next sync."""
        self._dead_queue.settle(claim)

    def give_back_dead(self, claim: Claim) -> None:
        """The claimed letters stay here."""
        self._dead_queue.give_back(claim)

    def drop_dead(self, key: GroupKey, wanted: I64 | None, count_max: int) -> int:
        """Drop dead letters; returns how many. Durable after the next sync."""
        return self._dead_queue.drop(key, wanted, count_max)

    def dead_letters(self, dead_subject: int, group: int) -> int:
        """How many dead letters of a group were neither sent again nor dropped."""
        return self._dead_letters.waiting((dead_subject, group))

    # Waiting keys

    def waiting_keys(self, key: GroupKey, after: int, count_max: int) -> WaitingPage:
        """The failed messages of a group for which their order keys wait, behind a place. Raises ReadNeeded."""
        return self._waiting_keys.page(key, after, count_max)

    def chosen_keys(self, key: GroupKey, wanted: I64 | None, count_max: int) -> I64:
        """The places of the first of these messages, or those of the places `wanted` (i64[n]) for which a key waits."""
        return self._waiting_keys.chosen(key, wanted, count_max)

    def skip_keys(self, key: GroupKey, places: I64, failure: Failure, now_us: int, lease_us: int) -> Steps[RetryBatch]:
        """Give up those of these messages at places (i64[n]). The group must have a dead-letter subject. The call must be
        carried out, and goes on as after a nack. A consumer that has one loses its lease."""
        return self._waiting_keys.skip(key, places, failure, now_us, lease_us)

    def retry_keys(self, key: GroupKey, places: I64, lease_us: int) -> int:
        """End the pauses of those of these messages at places (i64[n]), so that a pull brings them. Returns how many."""
        return self._waiting_keys.end_pauses(key, places, lease_us)

    # Policies

    def policy(self, subject: int, group: int) -> GroupPolicy:
        """The policy of a group; an empty one if none was set."""
        return self._state.policies.of((subject, group))

    def pauses(self, subject: int, group: int) -> RedeliveryPolicy:
        """The pauses before a group's redeliveries."""
        return self._state.policies.pauses((subject, group))

    def takes_policy(self, subject: int, group: int) -> bool:
        """Whether the table has room for a policy of this group: it has one, or there is room for one more."""
        policies = self._state.policies.rows
        return (subject, group) in policies or len(policies) < self._state.limits.groups_max

    def dead_subject(self, subject: int, group: int) -> int:
        """The code of the group's dead-letter subject; 0 if it has none yet."""
        row = self._state.policies.rows.get((subject, group))
        return 0 if row is None else row.dead_subject

    def owner_of_dead(self, dead_subject: int) -> GroupKey | None:
        """The group whose dead letters go to a subject, by their codes; None if the subject is no group's. O(policies)."""
        return self._state.policies.owner_of_dead(dead_subject)

    def policy_plan(self, subject: int, group: int, policy: GroupPolicy, dead_subject: int) -> PolicyWrite:
        """Capture a change of the table of policies. Call its `run`, then `finish_policy`, before the next change."""
        return self._state.policies.write((subject, group), PolicyRow(policy, dead_subject))

    def finish_policy(self, plan: PolicyWrite) -> None:
        """The table is durable: the policy applies from now on, also to messages that are being retried."""
        self._state.policies.written(plan)

    # Finding

    def find_plan(self, query: FindQuery) -> FindPlan:
        """Capture a search by id or key, one at a time. Call its `run`, then `finish_find`."""
        return self._indexes.find_plan(query)

    def finish_find(self, result: FindResult) -> None:
        """The search ended. Notes the damage that it met."""
        self._indexes.finish_find(result)

    def index_plan(self, but: Collection[int] = ()) -> IndexPlan | None:
        """Capture the making of the index of a sealed segment; None if all have one, except those with a base in `but`.
        Call its `run`, then `finish_index`. No search may run meanwhile."""
        return self._indexes.index_plan(but)

    def finish_index(self, base: int) -> None:
        """The index of this segment is made."""
        self._indexes.finish_index(base)

    # Reads; see `reads.py`

    @property
    def reads(self) -> Reads:
        """The reads under way, and their results that calls still need."""
        return self._state.files.reads

    # Durability

    @property
    def synced_offset(self) -> int:
        """Store offset below which every delivery is durable."""
        return self._state.files.store.synced

    @property
    def counts_synced(self) -> bool:
        """Whether a loss of power forgets no hand-out."""
        return self._durability.counts_synced

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

    def checkpoint_capture(self) -> CheckpointCapture:
        """Begin a checkpoint: in its `with` block call `step` until it is False, then `plan`."""
        return self._durability.checkpoint_capture()

    def checkpoint_plan(self) -> CheckpointWrite:
        """Capture a checkpoint in one go. Call its `run`, then `finish_checkpoint`."""
        with self.checkpoint_capture() as capture:
            while capture.step():
                pass
            return capture.plan()

    def finish_checkpoint(self, plan: CheckpointWrite) -> Iterator[None]:
        """The checkpoint is durable. Take all steps, with or without pauses: they put queues to rest."""
        return self._durability.finish_checkpoint(plan)

    def checkpoint(self) -> None:
        """Capture, write and finish in one go. Raises DiskFullError, SyncFailedError."""
        plan = self.checkpoint_plan()
        plan.run()
        for _ in self.finish_checkpoint(plan):
            pass

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

    def block_cuts(self) -> list[BlockCuts]:
        """What `retire` left to do, since it needs reads."""
        return block_cuts(self._state)

    def group_keys(self, after: GroupKey, subject: int, count_max: int) -> list[GroupKey]:
        """The first `count_max` consumer groups behind `after`, in the order of their codes; see `group_rows.py`."""
        return group_keys(self._state, after, subject, count_max)

    def group_row(self, key: GroupKey) -> GroupRow | None:
        """The row of a consumer group; None if there is no such group. Raises ReadNeeded, for `oldest_ms`."""
        return group_row(self._state, key)

    def group_backlogs(self, keys: Sequence[GroupKey]) -> Iterator[GroupBacklog]:
        """The backlogs of those of these consumer groups that are there; see `group_rows.py`."""
        return group_backlogs(self._state, keys)

    @property
    def group_count(self) -> int:
        """Consumer groups of all subjects."""
        return len(self._state.groups)

    @property
    def cache_bytes(self) -> int:
        """Batches in memory for consumers."""
        return self._state.files.store.cache_bytes

    def status(self) -> dict[str, Any]:
        """Counts since the start and the present sizes, in constant time."""
        return {
            "delivered": self._arrivals.delivered,
            "published": self._arrivals.published,
            "duplicates": self._arrivals.duplicates,
            "pulled": self._consuming.pulled,
            "acked": self._consuming.acked,
            "retried": self._retries.retried,
            "dead_letters": self._dead_letters.stored,
            "dead_letters_retired": self._state.letters.retired,
            "expired": self._state.expired_messages,
            "filtered": self._state.filtered_messages,
            **broker_status(self._state),
        }

    def check_invariants(self) -> None:
        """Check every queue and every cursor. For tests."""
        self._state.queues.check_invariants()
        for group in self._state.groups.values():
            group.main.check_invariants()
            group.retry.check_invariants()
        self._state.files.reads.check_invariants()

    def close(self) -> None:
        """Sync, write a checkpoint and close the files: the next start scans nothing."""
        self.sync()
        self.checkpoint()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without making anything durable."""
        files = self._state.files
        for file in (files.store, files.blocks, files.progress):
            file.close()
