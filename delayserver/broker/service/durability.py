"""Making the broker durable: group commits and checkpoints, as plans that may run in a worker thread.

A plan is captured on the event loop. Its `run` blocks, in any thread. The plan is finished on the event loop again.
The order is the rule: the store is synced before progress rows about it, and both before the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.broker.actions.state import BrokerState
from delayserver.broker.files.checkpoint import BrokerCheckpoint, encode_checkpoint
from delayserver.broker.files.progress import ACKED, SEEN, TIMES_MAX, ProgressRows, ProgressSync
from delayserver.broker.files.store import StoreSync
from store.disk.filesystem import FileSystem, keep_room, write_atomically
from store.records.segment import Segment


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
class CheckpointWrite:
    """One checkpoint, captured on the event loop. `run` blocks, in any thread."""

    fs: FileSystem
    path: str
    content: bytes
    store_offset: int
    store: StoreSync
    blocks: Segment

    def run(self) -> None:
        """Sync the files that it points to, then write it. Raises DiskFullError, SyncFailedError."""
        self.store.run()
        self.blocks.sync()
        write_atomically(self.fs, self.path, self.content)
        # A start first writes a checkpoint, for its epoch. Space is reserved, because the disk may be full then.
        keep_room(self.fs, self.path, 2 * len(self.content))


class Durability:
    """Plans syncs and checkpoints."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._compact = state.progress_ahead
        self.checkpointed = state.store.end
        self.syncing = False

    @property
    def compaction_urgent(self) -> bool:
        """Whether the progress log must be replaced before anything else happens."""
        return self._compact

    def needs_sync(self) -> bool:
        """Whether a delivery or an ack waits for a sync."""
        return self._state.store.end > self._state.store.synced or len(self._state.pending) > 0

    def sync_plan(self) -> BrokerSync:
        """Capture a sync, one at a time. The progress rows are a snapshot if the log is long or must be replaced."""
        assert not self.syncing, "a sync is under way"
        self.syncing = True
        state = self._state
        bound = max(state.limits.progress_bytes_max, 2 * state.progress.snapshot_bytes)
        snapshot = self._compact or state.progress.length_bytes > bound
        rows = self._snapshot() if snapshot else state.pending
        if not snapshot:
            self._add_seen(rows)
        state.take_pending()
        return BrokerSync(state.store.sync_plan(), ProgressSync(state.progress, rows, snapshot))

    def finish_sync(self) -> None:
        """The plan ran."""
        self.syncing = False
        self._compact = False

    def abort_sync(self, plan: BrokerSync) -> None:
        """The plan failed for want of space: its rows wait for the next plan."""
        self.syncing = False
        if plan.progress.snapshot:
            self._compact = True  # the snapshot replaced the pending rows, so the next plan must make one too
        else:
            self._state.pending.put_before(plan.progress.rows)

    def _add_seen(self, rows: ProgressRows) -> None:
        """Add how far each group was handed out, so that attempts count on after a crash. It never causes a sync."""
        for key in self._state.seen_changed:
            group = self._state.groups[key]
            for retry, cursor in ((False, group.main), (True, group.retry)):
                times = cursor.seen_times if cursor.seen_stop > cursor.committed else 0
                rows.add(SEEN, *key, retry, 0, max(cursor.next, cursor.seen_stop), times)
        self._state.seen_changed.clear()

    def _snapshot(self) -> ProgressRows:
        rows = ProgressRows()
        self._state.seen_changed.update(self._state.groups)
        self._add_seen(rows)
        for (subject, consumer_group), group in self._state.groups.items():
            key = subject, consumer_group
            for retry, cursor in ((False, group.main), (True, group.retry)):
                rows.add(ACKED, *key, retry, 0, cursor.committed)
                for start, stop in cursor.acked:
                    rows.add(ACKED, *key, retry, start, stop)
                for place in cursor.places if cursor.place_ranges else ():
                    self._state.in_place(key, retry, place, rows)
            if group.redelivery_bytes:
                for start_ms, count in self._state.kept(key).steps():
                    self._state.wrote_redeliveries(key, start_ms, count, rows)
            for first in range(0, group.expired, TIMES_MAX):
                rows.add(ACKED, *key, False, 0, 0, min(group.expired - first, TIMES_MAX))
        return rows

    def checkpoint_due(self) -> bool:
        """Whether the store has grown by `checkpoint_bytes` since the last checkpoint."""
        return self._state.store.end - self.checkpointed >= self._state.limits.checkpoint_bytes

    def checkpoint_plan(self) -> CheckpointWrite:
        """Capture a checkpoint."""
        state = self._state
        content = encode_checkpoint(
            BrokerCheckpoint(
                state.server_id,
                state.epoch,
                state.store.end,
                state.blocks.end,
                state.queues,
                state.windows.extents,
                state.segment_newest_us,
            )
        )
        path = f"{state.directory}/checkpoint"
        store = state.store.sync_plan()
        return CheckpointWrite(state.fs, path, content, state.store.end, store, state.blocks.tail())

    def finish_checkpoint(self, plan: CheckpointWrite) -> None:
        """The checkpoint is durable."""
        self.checkpointed = plan.store_offset
