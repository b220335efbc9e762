"""The broker: delivered messages wait here for consumer groups. Synchronous; time and every wait are the caller's.

    deliver -> [sync] -> "delivered" is recorded      pull -> ack -> [sync] -> answered
                         nack, expired_leases -> the server's message_log -> settle_retry

Calls come from one thread (the event loop). Only `BrokerSync.run` and `CheckpointWrite.run` may run in another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.checkpoint import BrokerCheckpoint, encode_checkpoint
from delayserver.broker.deliveries import EPOCHS, DeliveryRanges, delivery_ids, split_deliveries
from delayserver.broker.delivering import (
    DUPLICATE,
    REFUSED,
    STORED,
    Delivered,
    KnownKeys,
    delivery_keys,
    grouped,
    positions_of,
    window_keys,
)
from delayserver.broker.groups import ConsumerGroup, Cursor
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.progress import ACKED, SEEN, ProgressLog, ProgressRows, ProgressSync
from delayserver.broker.pulled import PullBudget, PulledBatch
from delayserver.broker.queue import ConsumeQueue, QueueKey, Run
from delayserver.broker.ranges import Range
from delayserver.broker.recovery import BrokerState, recover_broker
from delayserver.broker.retention import retire_store
from delayserver.broker.retries import RetryBatch, retry_messages
from delayserver.broker.store import StoreSync
from delayserver.broker.windows import Extent, Window
from store.batches import I64, StoredBatch
from store.errors import CorruptionError, DiskFullError
from store.filesystem import FileSystem, write_atomically
from store.segment import Segment

GroupKey = tuple[int, int]
"""(subject code, consumer group code)"""


@dataclass(frozen=True, slots=True)
class Acked:
    """Answer of `ack`: how many deliveries it acked, and how many were not (or no longer) leased. Durable, and to be
    answered, after the next sync."""

    acked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class BrokerSync:
    """One group commit. `run` blocks and may happen in a thread; then `finish_sync` or `abort_sync` on the loop."""

    store: StoreSync
    progress: ProgressSync

    def run(self) -> None:
        """The store first, so that progress never passes it. Raises DiskFullError, SyncFailedError (final)."""
        self.store.run()
        self.progress.run()


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """One checkpoint, captured on the event loop. `run` blocks and may happen in a thread."""

    fs: FileSystem
    path: str
    content: bytes
    store_offset: int
    store: StoreSync
    blocks: Segment

    def run(self) -> None:
        """What the checkpoint points to is synced before it. Raises DiskFullError, SyncFailedError."""
        self.store.run()
        self.blocks.sync()
        write_atomically(self.fs, self.path, self.content)


class Broker:
    """Queues, groups and the store of one broker node."""

    def __init__(self, fs: FileSystem, directory: str, state: BrokerState, limits: BrokerLimits) -> None:
        self._fs = fs
        self._directory = directory
        self._limits = limits
        self._store = state.store
        self._blocks = state.blocks
        self._progress: ProgressLog = state.progress
        self._queues = state.queues
        self._groups = state.groups
        self._windows = state.windows
        self._segment_newest_us = state.segment_newest_us
        self._server_id = state.server_id
        self.epoch = state.epoch
        self._recovered_ends = {key: queue.end for key, queue in state.queues.items()}
        self._known = KnownKeys(limits.known_rows_max)
        self._pending = ProgressRows()
        self._seen_changed: set[GroupKey] = set()
        self._compact_always = state.progress_ahead
        self._syncing = False
        self._checkpointed = self._store.end
        self._runs = sum([queue.runs_in_memory for queue in self._queues.values()])
        self.damages: list[str] = state.damages
        self.damaged_messages = 0
        self.delivered = 0
        self.duplicates = 0
        self.acked = 0

    @classmethod
    def open(
        cls, fs: FileSystem, directory: str, server_id: int, now_us: int, limits: BrokerLimits | None = None
    ) -> Broker:
        """Open or create the broker's files in `directory` and recover: a torn tail is cut off, queues are scanned from
        the checkpoint on, what was leased is deliverable again. `now_us` dates segments whose age is not known."""
        limits = limits or BrokerLimits()
        broker = cls(fs, directory, recover_broker(fs, directory, server_id, limits, now_us), limits)
        if broker._compact_always:
            broker.sync()
        broker.checkpoint()  # makes the new epoch durable before any delivery id carries it
        return broker

    # Delivering

    def deliver(self, batch: StoredBatch, uncertain: bool, now_us: int) -> Delivered:
        """Store a batch of one (server, window); its `position` column is not used. Every row gets an outcome.

        `uncertain`: an attempt with some of these rows was made before and its result is unknown; rows that are here
        already are not stored again. Raises StoreError where the disk fails otherwise than by being full.
        """
        window: Window = (int(batch.server_id[0]), int(batch.window_ms[0]))
        outcome = np.full(len(batch), STORED, np.uint8)
        if uncertain:
            keys = delivery_keys(batch.sequence, batch.redelivery)
            present = self._known.present(window, keys, window_keys(self._window_records(window), window))
            duplicates = int(np.count_nonzero(present))
            self.duplicates += duplicates
            outcome[present] = DUPLICATE
            if duplicates == len(batch):
                return Delivered(outcome, [], self._store.end)
            if duplicates:
                batch = batch.take(np.flatnonzero(~present))
        batch, runs = grouped(batch)
        queues = [self._queue(run.key) for run in runs]
        batch = batch.with_columns(position=positions_of(runs, [queue.end for queue in queues]))
        try:
            start, end = self._store.append(batch)
        except DiskFullError:
            outcome[outcome == STORED] = REFUSED
            return Delivered(outcome, [], self._store.end)
        for run, queue in zip(runs, queues, strict=True):
            queue.append(start, run.row_start, run.row_count)
        self._stored(window, batch, Extent(start, end, int(batch.sequence.min()), int(batch.sequence.max())), now_us)
        self._spill(queues)
        return Delivered(outcome, [run.key for run in runs], end)

    def _stored(self, window: Window, batch: StoredBatch, extent: Extent, now_us: int) -> None:
        self.delivered += len(batch)
        self._windows.add(window, extent)
        self._known.add(window, delivery_keys(batch.sequence, batch.redelivery))
        self._segment_newest_us[self._store.base_of(extent.start)] = now_us

    def _spill(self, queues: list[ConsumeQueue]) -> None:
        """Bound the index rows in memory. A full disk leaves them there: the messages are stored, and refusing is the
        business of the next deliver."""
        self._runs += len(queues)
        try:
            for queue in queues:
                if queue.runs_in_memory > self._limits.queue_runs_max:
                    self._runs -= queue.spill(self._limits.queue_runs_max // 2, self._blocks)
            if self._runs > self._limits.runs_max:
                for queue in sorted(self._queues.values(), key=lambda one: -one.runs_in_memory):
                    self._runs -= queue.spill(self._limits.queue_runs_max, self._blocks)
                    if self._runs <= self._limits.runs_max // 2:
                        break
        except DiskFullError:
            return

    def _window_records(self, window: Window) -> Iterator[dict[str, NDArray[Any]]]:
        for extent in self._windows.of(window):
            for record in self._store.columns(extent.start, extent.stop):
                yield record.columns

    def window_complete(self, server_id: int, windows_ms: list[int]) -> None:
        """A server declares that it will not hand off anything of these windows again: their keys are forgotten."""
        for window_ms in windows_ms:
            self._windows.complete((server_id, window_ms))
            self._known.forget((server_id, window_ms))

    # Pulling

    def pull(
        self,
        subject: int,
        group: int,
        max_messages: int,
        max_bytes: int,
        now_us: int,
        ack_timeout_ms: int | None = None,
    ) -> PulledBatch | None:
        """Hand out what is there now, retries first; None if nothing is. A group is made by its first pull and starts
        at the earliest position kept, so a group that comes late gets what was delivered before."""
        limits = self._limits
        timeout_ms = min(ack_timeout_ms or limits.ack_timeout_ms_default, limits.ack_timeout_ms_max)
        deadline_us = now_us + timeout_ms * 1000
        state = self._group((subject, group))
        budget = PullBudget(min(max_messages, limits.pull_messages_max), min(max_bytes, limits.pull_bytes_max))
        for retry in (True, False):
            queue = self._queues.get((subject, group if retry else 0))
            if queue is not None:
                self._hand_out((subject, group), retry, queue, state.cursor(retry), budget, deadline_us)
        return budget.pulled()

    def _hand_out(
        self, key: GroupKey, retry: bool, queue: ConsumeQueue, cursor: Cursor, budget: PullBudget, deadline_us: int
    ) -> None:
        held_start = held_stop = cursor.next
        while budget.messages > 0:
            room = min(budget.messages, self._limits.outstanding_max - cursor.outstanding())
            span = cursor.available(queue.end, room) if cursor.lease_ranges < self._limits.lease_ranges_max else None
            if room <= 0 or span is None:
                break
            taken = self._take(key, retry, queue, cursor, budget, span)
            if taken is None:
                break
            if taken[0] != held_stop:
                if held_stop > held_start:
                    cursor.hold(held_start, held_stop, deadline_us)
                held_start = taken[0]
            held_stop = taken[1]
        if held_stop > held_start:
            cursor.hold(held_start, held_stop, deadline_us)
            self._seen_changed.add(key)

    def _take(
        self, key: GroupKey, retry: bool, queue: ConsumeQueue, cursor: Cursor, budget: PullBudget, span: Range
    ) -> Range | None:
        """Take the first rows of `span` that stand together; None if they do not fit into the budget."""
        start, stop = span
        run = queue.run_at(start, self._blocks)
        count = min(stop, run.position + run.row_count) - start
        batch = self._read(run)
        if batch is None:
            self._pass_over(key, retry, cursor, start, start + count)
            return start + count, start + count
        row = run.row_start + start - run.position
        count, size = budget.fitting(batch, row, count)
        if count == 0:
            return None
        before = cursor.attempts_before(start, count)
        budget.take(batch.slice(row, row + count), delivery_ids(start, count, self.epoch, retry), before, size)
        cursor.hand_out(start, start + count)
        return start, start + count

    def _read(self, run: Run) -> StoredBatch | None:
        """The stored batch of a run; None, reported, if the disk gives something else back."""
        try:
            batch = self._store.batch(run.store_offset)
            if int(batch.position[run.row_start]) == run.position:
                return batch
            detail = f"store offset {run.store_offset}: position {run.position} is not there"
        except CorruptionError as error:
            detail = str(error)
        if len(self.damages) < 1000:
            self.damages.append(detail)
        return None

    def _pass_over(self, key: GroupKey, retry: bool, cursor: Cursor, start: int, stop: int) -> None:
        """Unreadable messages must not hold up what is behind them; they are counted and reported, not forgotten."""
        self.damaged_messages += stop - start
        cursor.hand_out(start, stop)
        for low, high in cursor.ack(start, stop, stop):
            self._pending.add(ACKED, *key, retry, low, high)

    # Acks

    def ack(self, subject: int, group: int, deliveries: I64, now_us: int) -> Acked:
        """Ack deliveries (i64[n], any order). Answer the client after the sync that follows."""
        state = self._groups.get((subject, group))
        if state is None:
            return Acked(0, len(deliveries))
        acked = 0
        for part in split_deliveries(deliveries):
            cursor = state.cursor(part.retry)
            limit = self._ack_limit(subject, group, part, cursor)
            for start, stop in part.ranges:
                for low, high in cursor.ack(start, stop, limit):
                    acked += high - low
                    self._pending.add(ACKED, subject, group, part.retry, low, high)
        self.acked += acked
        return Acked(acked, len(deliveries) - acked)

    def _ack_limit(self, subject: int, group: int, part: DeliveryRanges, cursor: Cursor) -> int:
        """Up to which position an ack counts. What the process before this one handed out counts as far as the store
        survived the restart; positions above may stand for other messages now."""
        if part.epoch == self.epoch % EPOCHS:
            return cursor.next
        if part.epoch == (self.epoch - 1) % EPOCHS:
            return self._recovered_ends.get((subject, group if part.retry else 0), 0)
        return 0

    # Retries

    def nack(self, subject: int, group: int, deliveries: I64, delay_ms: int, now_us: int) -> RetryBatch:
        """Take leased deliveries (i64[n]) back: they become internal records due in `delay_ms`, for this group only."""
        state = self._groups.get((subject, group))
        if state is None:
            return RetryBatch(subject, group, None, (), (), len(deliveries))
        found: tuple[list[Range], list[Range]] = ([], [])
        for part in split_deliveries(deliveries):
            if part.epoch == self.epoch % EPOCHS:
                for start, stop in part.ranges:
                    found[part.retry].extend(state.cursor(part.retry).to_retry(start, stop))
        taken = sum([stop - start for ranges in found for start, stop in ranges])
        due_ms = -(-(now_us + delay_ms * 1000) // 1000)
        return self._retry_batch((subject, group), found, due_ms, now_us, len(deliveries) - taken)

    def expired_leases(self, now_us: int, limit: int) -> list[RetryBatch]:
        """Deliveries whose ack timeout has passed, about `limit` of them, one batch a group; due at once."""
        batches = []
        for key, state in self._groups.items():
            if limit <= 0:
                break
            found = (state.main.expired(now_us, limit), state.retry.expired(now_us, limit))
            if found[0] or found[1]:
                batch = self._retry_batch(key, found, now_us // 1000, now_us, 0)
                batches.append(batch)
                limit -= len(batch)
        return batches

    def next_lease_deadline_us(self) -> int | None:
        """When `expired_leases` has something to give, None while nothing is leased."""
        deadlines = [
            deadline
            for state in self._groups.values()
            for cursor in (state.main, state.retry)
            if (deadline := cursor.next_deadline_us()) is not None
        ]
        return min(deadlines, default=None)

    def _retry_batch(
        self, key: GroupKey, found: tuple[list[Range], list[Range]], due_ms: int, now_us: int, unknown: int
    ) -> RetryBatch:
        """Gather the messages of the ranges; beyond the bound of bytes the rest stays leased until it is due."""
        subject, group = key
        parts: list[StoredBatch] = []
        before: list[I64] = []
        kept: tuple[list[Range], list[Range]] = ([], [])
        room = self._limits.retry_bytes_max
        for retry, ranges in enumerate(found):
            cursor = self._groups[key].cursor(bool(retry))
            queue = self._queues[subject, group if retry else 0] if ranges else None
            for start, stop in ranges:
                assert queue is not None
                while start < stop:
                    run = queue.run_at(start, self._blocks)
                    count = min(stop, run.position + run.row_count) - start
                    if room <= 0:
                        cursor.abandon(start, stop, due_ms * 1000)
                        break
                    batch = self._read(run)
                    if batch is None:
                        self.damaged_messages += count
                    else:
                        row = run.row_start + start - run.position
                        parts.append(batch.slice(row, row + count))
                        before.append(cursor.attempts_before(start, count))
                        room -= len(parts[-1].bodies) + len(parts[-1].properties) + len(parts[-1].ids)
                    kept[retry].append((start, start + count))
                    start += count
        messages = retry_messages(parts, before, group, due_ms, now_us) if parts else None
        return RetryBatch(subject, group, messages, tuple(kept[0]), tuple(kept[1]), unknown)

    def settle_retry(self, batch: RetryBatch) -> None:
        """The internal records of the batch are durable in the message_log: the deliveries they stand for are done."""
        state = self._groups[batch.subject, batch.group]
        for retry, ranges in enumerate((batch.main, batch.retry)):
            for start, stop in ranges:
                state.cursor(bool(retry)).settle(start, stop)
                self._pending.add(ACKED, batch.subject, batch.group, bool(retry), start, stop)

    def abandon_retry(self, batch: RetryBatch, now_us: int) -> None:
        """The internal records could not be made durable: the deliveries stay leased for another ack timeout."""
        state = self._groups[batch.subject, batch.group]
        deadline_us = now_us + self._limits.ack_timeout_ms_default * 1000
        for retry, ranges in enumerate((batch.main, batch.retry)):
            for start, stop in ranges:
                state.cursor(bool(retry)).abandon(start, stop, deadline_us)

    # Durability

    @property
    def synced_offset(self) -> int:
        """Store offset below which every delivery is durable."""
        return self._store.synced

    def needs_sync(self) -> bool:
        """Whether a delivery or an ack waits for a sync."""
        return self._store.end > self._store.synced or len(self._pending) > 0

    def sync_plan(self) -> BrokerSync:
        """Capture what to make durable. One at a time: `finish_sync` or `abort_sync` comes before the next plan."""
        assert not self._syncing, "a sync is under way"
        self._syncing = True
        bound = max(self._limits.progress_bytes_max, 2 * self._progress.snapshot_bytes)
        snapshot = self._compact_always or self._progress.length_bytes > bound
        rows = self._snapshot() if snapshot else self._pending
        if not snapshot:
            self._add_seen(rows)
        self._pending = ProgressRows()
        return BrokerSync(self._store.sync_plan(), ProgressSync(self._progress, rows, snapshot))

    def finish_sync(self, plan: BrokerSync) -> None:
        """The plan ran: what it captured is durable."""
        self._syncing = False
        self._compact_always = False

    def abort_sync(self, plan: BrokerSync) -> None:
        """The plan failed for want of space: its rows wait for the next one."""
        self._syncing = False
        if plan.progress.snapshot:
            self._compact_always = True
        else:
            self._pending.put_before(plan.progress.rows)

    def sync(self) -> None:
        """Plan, run and finish in one go. Raises DiskFullError, SyncFailedError (final)."""
        plan = self.sync_plan()
        try:
            plan.run()
        except DiskFullError:
            self.abort_sync(plan)
            raise
        self.finish_sync(plan)

    def _add_seen(self, rows: ProgressRows) -> None:
        """How far groups were handed out, so that attempts count on after a crash; never a reason to sync by itself."""
        for key in self._seen_changed:
            state = self._groups[key]
            for retry, cursor in enumerate((state.main, state.retry)):
                times = cursor.seen_times if cursor.seen_stop > cursor.committed else 0
                rows.add(SEEN, *key, bool(retry), 0, max(cursor.next, cursor.seen_stop), times)
        self._seen_changed.clear()

    def _snapshot(self) -> ProgressRows:
        rows = ProgressRows()
        self._seen_changed.update(self._groups)
        self._add_seen(rows)
        for key, state in self._groups.items():
            for retry, cursor in enumerate((state.main, state.retry)):
                rows.add(ACKED, *key, bool(retry), 0, cursor.committed)
                for start, stop in cursor.acked:
                    rows.add(ACKED, *key, bool(retry), start, stop)
        return rows

    # Upkeep

    def checkpoint_due(self) -> bool:
        """Whether enough was stored since the last checkpoint that a restart should not have to scan it."""
        return self._store.end - self._checkpointed >= self._limits.checkpoint_bytes

    def checkpoint_plan(self) -> CheckpointWrite:
        """Capture a checkpoint."""
        checkpoint = BrokerCheckpoint(
            self._server_id,
            self.epoch,
            self._store.end,
            self._blocks.end,
            self._queues,
            self._windows.extents,
            self._segment_newest_us,
        )
        content = encode_checkpoint(checkpoint)
        path = f"{self._directory}/checkpoint"
        return CheckpointWrite(self._fs, path, content, self._store.end, self._store.sync_plan(), self._blocks.tail())

    def finish_checkpoint(self, plan: CheckpointWrite) -> None:
        """The checkpoint is durable."""
        self._checkpointed = plan.store_offset

    def checkpoint(self) -> None:
        """Capture, write and finish in one go. Raises DiskFullError, SyncFailedError."""
        plan = self.checkpoint_plan()
        plan.run()
        self.finish_checkpoint(plan)

    def retire(self, now_us: int) -> list[str]:
        """Give back store segments that nobody needs (see `retention.py`); returns their paths."""
        removed = retire_store(
            self._store, self._queues, self._groups, self._windows, self._segment_newest_us, self._limits, now_us
        )
        if removed:
            self._runs = sum([queue.runs_in_memory for queue in self._queues.values()])
            in_use = [queue.blocks[0].block_offset for queue in self._queues.values() if queue.blocks]
            self._blocks.retire(min(in_use, default=self._blocks.end))
        return removed

    def close(self) -> None:
        """Sync, write a checkpoint and close the files: the next start scans nothing."""
        if self.needs_sync() or self._seen_changed:
            self.sync()
        self.checkpoint()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without making anything durable."""
        self._store.close()
        self._blocks.close()
        self._progress.close()

    def _queue(self, key: QueueKey) -> ConsumeQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue()
        return queue

    def _group(self, key: GroupKey) -> ConsumerGroup:
        state = self._groups.get(key)
        if state is None:
            main, retry = self._queues.get((key[0], 0)), self._queues.get(key)
            state = ConsumerGroup(Cursor(main.first if main else 0), Cursor(retry.first if retry else 0))
            self._groups[key] = state
            self._seen_changed.add(key)
        return state
