"""Making the broker durable: group commits and checkpoints, as plans that may run in a worker thread.

A plan is captured on the event loop. Its `run` blocks, in any thread. The plan is finished on the event loop again.
The order is the rule: the store is synced before progress rows about it, and both before the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.broker_checkpoint import BrokerCheckpoint, encode_checkpoint
from delayserver.broker.files.progress_log import (
    ACKED,
    GIVEN_UP,
    PROGRESS_ROW_BYTES,
    TIMES_MAX,
    ProgressRows,
    ProgressSync,
)
from delayserver.broker.files.store import StoreSync
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.queues.places import LEASED
from delayserver.broker.queues.queue_table import CapturedQueues, QueueCapture
from store.disk.filesystem import FileSystem, keep_room, write_atomically
from store.errors import DiskFullError
from store.records.batches import StoredBatch
from store.records.stored_rows import StoredRows


@dataclass(frozen=True, slots=True)
class BrokerSync:
    """One group commit. `run` blocks, in any thread; then call `finish_sync` or `abort_sync` on the event loop."""

    store: StoreSync
    progress: ProgressSync

    def run(self) -> None:
        """Sync the store, then progress, which never passes it. Raises DiskFullError, SyncFailedError (final)."""
        self.store.run()
        self.progress.run()


@dataclass(frozen=True, slots=True)
class SharedSync:
    """One group commit of a member of a cluster, for its log: records of the store, then rows. With `snapshot`, these rows
    say the same as all rows so far. `store_end`: the end of the store behind the records."""

    records: list[StoredBatch | StoredRows]
    rows: ProgressRows
    snapshot: ProgressRows | None
    store_end: int


@dataclass(slots=True)
class CheckpointWrite:
    """One checkpoint, captured on the event loop. `run` blocks, in any thread. `checkpoint` has all but the queues.
    `syncs` sync the files that it points to."""

    fs: FileSystem
    path: str
    checkpoint: BrokerCheckpoint
    queues: QueueCapture
    removed: dict[GroupKey, int]
    syncs: tuple[Callable[[], object], ...]
    captured: CapturedQueues | None = None

    def run(self) -> None:
        """Sync the files that it points to, then write it. Raises DiskFullError, SyncFailedError."""
        self.captured = self.queues.captured()
        content = encode_checkpoint(replace(self.checkpoint, queues=self.captured.columns))
        for sync in self.syncs:
            sync()
        write_atomically(self.fs, self.path, content)
        # A start first writes a checkpoint, for its epoch. Space is reserved, because the disk may be full then.
        keep_room(self.fs, self.path, 2 * len(content))


class CheckpointCapture:
    """A checkpoint as of the moment of its making, whose queues are copied in steps. More may be stored between the
    steps, but nothing removed. Use it in a `with` block, which `plan` ends."""

    def __init__(self, state: BrokerState, letters_offset: int | None) -> None:
        """`letters_offset`: the first dead letter whose message may lack a durable ack."""
        self._state = state
        self._checkpoint = BrokerCheckpoint(
            state.files.server_id,
            state.files.epoch.value,
            state.files.store.end,
            windows={window: list(map(copy, extents)) for window, extents in state.windows.extents.items()},
            segment_newest_us=dict(state.files.segment_newest_us),
            letters_offset=letters_offset,
            moves=state.groups.moves,
        )
        self._removed = state.groups.removals.for_checkpoint()
        self._queues = state.queues.capture()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._state.queues.end_capture()

    def step(self) -> bool:
        """Copy some queues. True while there are more."""
        return self._queues.step(self._checkpoint.store_offset)

    def plan(self) -> CheckpointWrite:
        """The write of the checkpoint, after the last step."""
        state = self._state
        return CheckpointWrite(
            state.files.fs,
            f"{state.files.directory}/checkpoint",
            replace(self._checkpoint, blocks_offset=state.files.blocks.end),
            self._queues,
            self._removed,
            (state.files.store.sync_plan().run, state.files.blocks.tail().sync),
        )


class Durability:
    """Plans syncs and checkpoints."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._compact = state.notes.ahead
        self.checkpointed = state.files.store.end
        # Where the dead letters begin whose acks the sync under way writes.
        self._letters_syncing: int | None = None
        # Groups whose removal the sync under way writes.
        self._removing: dict[GroupKey, int] = {}
        # Whether a plan was captured and is not finished.
        self.syncing = False
        # The last snapshot, if it found no room, and the number of rows from which on a new one takes its place.
        self._unwritten: ProgressRows | None = None
        self._unwritten_max = 0

    @property
    def compaction_urgent(self) -> bool:
        """Whether the progress log must be replaced before anything else happens."""
        return self._compact

    def needs_sync(self) -> bool:
        """Whether a delivery or an ack waits for a sync."""
        state = self._state
        waits = len(state.notes.pending) > 0 or state.notes.awaited or self._compact
        return waits or state.files.store.waits

    def sync(self) -> None:
        """Plan, run and finish in one go. Raises DiskFullError, SyncFailedError (final)."""
        plan = self.sync_plan()
        try:
            plan.run()
        except DiskFullError:
            self.abort_sync(plan)
            raise
        self.finish_sync()

    def sync_plan(self) -> BrokerSync:
        """Capture a sync of all deliveries and acks so far. Call `finish_sync` or `abort_sync` before the next one.

        The progress rows are a snapshot if the log is long or must be replaced."""
        assert not self.syncing, "a sync is under way"
        self.syncing = True
        state = self._state
        snapshot = self._compact or self.progress_is_long
        state.notes.write_counts()
        rows = self._rows(snapshot=snapshot)
        state.notes.take()
        self._letters_syncing = state.letters.take_behind()
        self._removing = dict(state.groups.removals.undropped)
        return BrokerSync(state.files.store.sync_plan(), ProgressSync(state.files.progress, rows, snapshot))

    def shared_plan(self, *, compact: bool) -> SharedSync:
        """As `sync_plan`, in a member of a cluster. `finish_sync` follows, when it came back from the log."""
        assert not self.syncing, "a sync is under way"
        self.syncing = True
        state = self._state
        rows, store = state.notes.take(), state.files.store
        self._add_passed(rows)
        self._letters_syncing = state.letters.take_behind()
        self._removing = dict(state.groups.removals.undropped)
        snapshot = self.snapshot() if compact and self.progress_is_long else None
        return SharedSync(store.take_made(), rows, snapshot, store.end)

    @property
    def progress_is_long(self) -> bool:
        """Whether the progress log has so many rows that a snapshot is to take their place."""
        progress = self._state.files.progress
        return progress.length_bytes > max(self._state.limits.progress_bytes_max, 2 * progress.snapshot_bytes)

    def _rows(self, *, snapshot: bool) -> ProgressRows:
        """The rows of a sync. A snapshot that found no room counts on, with the rows since then, until they are many."""
        rows, unwritten, self._unwritten = self._state.notes.pending, self._unwritten, None
        if snapshot:
            since = self._state.files.progress.begin_snapshot()
            if unwritten is None or len(unwritten) + len(since) + len(rows) > self._unwritten_max:
                made = self.snapshot()
                self._unwritten_max = 2 * len(made) + self._rows_max
                return made
            rows.put_before(since)
            rows.put_before(unwritten)
        self._add_passed(rows)
        return rows

    @property
    def _rows_max(self) -> int:
        return self._state.limits.progress_bytes_max // PROGRESS_ROW_BYTES

    def finish_sync(self) -> None:
        """Ends a plan that has run: its deliveries and acks are durable."""
        self.syncing = False
        self._letters_syncing = None
        self._compact = False
        self._state.notes.end_sync(written=True)
        self._state.groups.removals.durable(self._removing)

    def abort_sync(self, plan: BrokerSync) -> None:
        """Gives up a plan that found no space: its rows wait for the next plan. Many rows make way for a snapshot."""
        self.syncing = False
        self._state.letters.ack_is_behind(self._letters_syncing)
        self._letters_syncing = None
        self._state.notes.end_sync(written=False)
        if plan.progress.snapshot:
            self._compact = True  # the snapshot replaced the pending rows, so the next plan must have one too
            self._unwritten = plan.progress.rows
        elif len(plan.progress.rows) > self._rows_max:
            self._compact = True
        else:
            self._state.notes.pending.put_before(plan.progress.rows)

    def _add_passed(self, rows: ProgressRows) -> None:
        """Add how far the filters of groups passed over messages. It never causes a sync."""
        for key, span in self._state.groups.take_passed_over():
            rows.add(ACKED, *key, False, *span)

    def snapshot(self) -> ProgressRows:
        """Rows that say where all groups are."""
        rows = ProgressRows()
        kept = self._state.given_up.first
        if kept is not None:
            rows.add(GIVEN_UP, kept.subject, kept.target_group, False, 0, kept.position)
        for key, end in self._state.groups.removals.known.items():
            self._state.notes.add_removed(key, end, self._state.groups.moves, rows)
        for key, group in self._state.groups.items():
            for retry, cursor in ((False, group.main), (True, group.retry)):
                below, *ranges = cursor.acked_to_log()
                if cursor.moves:  # of the group, so that acks from before its last seek stay unknown after a crash
                    self._state.notes.add_moved(key, retry, cursor, rows)
                else:
                    rows.add(ACKED, *key, retry, *below)
                for start, stop in ranges:
                    rows.add(ACKED, *key, retry, start, stop)
                for place in cursor.places if cursor.place_ranges else ():
                    if place.state != LEASED:
                        self._state.notes.in_place(key, retry, place, rows)
                for count in cursor.counts():
                    self._state.notes.count(key, retry, count, rows)
                for place in cursor.returning:
                    self._state.notes.returning(key, retry, place, rows)
            if group.redelivery_bytes:
                for start_ms, size in self._state.groups.kept(key).steps():
                    self._state.notes.add_redelivery_bytes(key, start_ms, size, rows)
            for first in range(0, group.expired, TIMES_MAX):
                rows.add(ACKED, *key, False, 0, 0, min(group.expired - first, TIMES_MAX))
        self._add_passed(rows)
        return rows

    def checkpoint_due(self) -> bool:
        """Whether the store has grown by `checkpoint_bytes` since the last checkpoint."""
        return self._state.files.store.end - self.checkpointed >= self._state.limits.checkpoint_bytes

    def checkpoint_capture(self) -> CheckpointCapture:
        """Begin a checkpoint: in its `with` block call `step` until it is False, then `plan`."""
        letters = [self._letters_syncing, self._state.letters.behind]
        return CheckpointCapture(self._state, min([each for each in letters if each is not None], default=None))

    def finish_checkpoint(self, plan: CheckpointWrite) -> Iterator[None]:
        """The checkpoint is durable. Take all steps, with or without pauses: they put queues to rest."""
        assert plan.captured is not None, "the checkpoint was not written"
        self.checkpointed = plan.checkpoint.store_offset
        self._state.groups.removals.checkpoint_covers(plan.removed)
        return self._state.queues.rest(plan.captured)

    def checkpoint(self) -> None:
        """Capture, write and finish in one go. Raises DiskFullError, SyncFailedError."""
        with self.checkpoint_capture() as capture:
            while capture.step():
                pass
            plan = capture.plan()
        plan.run()
        for _ in self.finish_checkpoint(plan):
            pass
