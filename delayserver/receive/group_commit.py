"""The group commit: makes everything durable in message_log that must be there before its answer, many items at a time.

The next group gathers while the `RecordWriter` makes one durable, which gives it to `AcceptedLog.accept`. A writer may have
several groups on their way. No later stage sees a record before its acceptance. A failed sync is final: all waiting callers
get the error, and the server stops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import trio

from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import (
    DelayServerError,
    DiskFull,
    NotPrimary,
    NotReady,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    copied,
)
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.sequence_source import SequenceSource
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup, Committed, Done, Gathering, RowsDone
from delayserver.state.positions.positions import Positions
from delayserver.state.positions.record_writer import RecordWriter
from store.errors import DiskFullError, StoreError
from store.records.batches import OWN_SEQUENCE, CancelBatch, MessageBatch
from store.records.column_batch import ColumnBatch
from store.records.message_rows import ROWS_MAX, MessageRows, Row, to_batch

# Memory of one row or item besides its bytes, for the bound on gathered bytes.
ROW_OVERHEAD_BYTES = 120


class GroupCommit:
    """Gathers items, commits them in groups, and calls back each one when it is durable or has failed."""

    def __init__(
        self,
        gathering: Gathering,
        sequences: SequenceSource,
        writer: RecordWriter,
        accepted: AcceptedLog,
        positions: Positions,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._gathering = gathering
        self._sequences = sequences
        self._writer = writer
        self._accepted = accepted
        self._positions = positions
        self._settings = settings
        self._clock = runtime.clock
        self._work = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.refusal: DelayServerError | None = None
        self._in_step = False

    # -- handing in

    def submit_rows(self, rows: list[Row], done: RowsDone) -> None:
        """Commits at least one row; calls `done` on the event loop after the sync. Raises a named error if refused."""
        size = ROW_OVERHEAD_BYTES * len(rows)
        for _, _, _, message_id, properties, body, _, order_key in rows:
            size += len(message_id) + len(properties) + len(body) + len(order_key)
        self._take(size).add_rows(rows, done)

    def submit(self, batch: MessageBatch | CancelBatch, done: Done) -> None:
        """Commits a batch as one record (all or nothing, also across a crash) and gives it sequences. Calls `done` and
        raises as `submit_rows` does."""
        size = ROW_OVERHEAD_BYTES * len(batch)
        if isinstance(batch, MessageBatch):
            size += len(batch.bodies) + len(batch.properties) + len(batch.ids) + len(batch.order_keys)
        self._take(size).add(batch, done)

    @property
    def durable_end(self) -> int:
        """The offset of message_log at or behind which items stand that are submitted from now on."""
        return self._positions.durable.value

    async def commit(self, batch: MessageBatch | CancelBatch) -> Committed:
        """Submits a batch and waits until it is durable. Raises the named error if that fails."""
        results: list[Committed | DelayServerError] = []
        ready = trio.Event()

        def done(result: Committed | DelayServerError) -> None:
            results.append(result)
            ready.set()

        self.submit(batch, done)
        with trio.CancelScope(shield=True):  # a submitted batch cannot be taken back, so the caller gets its result
            await ready.wait()
        result = results.pop()
        if isinstance(result, DelayServerError):
            try:
                raise copied(result)  # the other callers of the group get the same error
            finally:
                del result
        return result

    def _take(self, size_bytes: int) -> CommitGroup:
        """The group for an item of this size, which is taken with that."""
        if self.refusal is not None:
            raise copied(self.refusal)
        group = self._gathering.take(size_bytes)
        if group is None:
            raise QueueFull("too many sends wait for the disk", retry_after_ms=50)
        if not self._in_step:
            self._work.set()
        return group

    def begin_step(self) -> None:
        """Begins a step of the event loop. Items taken until `end_step` are one group."""
        self._in_step = True

    def end_step(self) -> bool:
        """Commits the items of this step at once if the group is small and the disk quick. False if `run` must do it.
        All clients that were ready are in the group, so another event-loop iteration would gain nothing."""
        self._in_step = False
        gathering = self._gathering
        if not gathering:
            return True
        busy = self._work.is_set() or not self._idle.is_set()
        if busy or self._lagging() or not self._writer.takes_now(gathering.size_bytes):
            self._work.set()
            return False
        group = gathering.next()
        try:
            self._writer.write_now(group, self._number(group))
        except StoreError as error:
            self._refused(group, error)
            self._work.set()
            return False
        return True

    def _lagging(self) -> bool:
        marks = self._positions
        return marks.durable.value - marks.replayed.value > self._settings.replay_lag_bytes_max

    async def _lag_over(self) -> None:
        while self._lagging():
            bound = self._positions.durable.value - self._settings.replay_lag_bytes_max
            await self._positions.replayed.reached(bound)

    def refuse(self, error: NotReady | NotPrimary) -> None:
        """Refuses all items: for good, or with NotReady until `accept`, because records in the log have no room in
        schedule_log yet."""
        if self.refusal is None:
            self.refusal = error

    def accept(self) -> None:
        """Ends `refuse`. A refusal for another reason stays."""
        if isinstance(self.refusal, NotReady):
            self.refusal = None

    def refuse_from_now(self, error: StorageFailed) -> None:
        """Refuses everything from now on and lets `run` end the server, because a sync elsewhere has failed."""
        self.refusal = error
        self._work.set()

    # -- committing

    async def run(self) -> None:
        """Commits groups until cancelled. Raises StoreError if a sync fails; the server must then stop."""
        try:
            await self._run()
        finally:
            # Waiting callers are shielded from cancellation, so a stop would hang without these answers.
            if self.refusal is None:
                self.refusal = ShuttingDown("the server is stopping", retry_after_ms=1000)
            for group in self._gathering.on_their_way:
                self._accepted.refuse(group, self._writer.unknown())
            self._fail_gathered(self.refusal)

    async def _run(self) -> None:
        while True:
            if not self._gathering:
                self._idle.set()
                self._work = trio.Event()
                await self._work.wait()
                self._idle = trio.Event()
                self._stop_if_failed()
                continue  # `refuse_from_now` may have set `_work` with nothing gathered
            await self._lag_over()
            await self._commit_group(self._accepted.begin())
            if self._gathering:
                await trio.lowlevel.checkpoint()  # a group synced inline never waited: let the readers go first
            self._stop_if_failed()

    def _stop_if_failed(self) -> None:
        if isinstance(self.refusal, StorageFailed):
            raise StoreError(self.refusal.message)

    async def _commit_group(self, group: CommitGroup) -> None:
        try:
            records = self._number(group)
            if self._writer.takes_now(group.size_bytes):
                self._writer.write_now(group, records)
            else:
                await self._writer.write(group, records)
        except StoreError as error:
            self._refused(group, error)

    def _refused(self, group: CommitGroup, error: StoreError) -> None:
        if isinstance(error, DiskFullError):
            self._accepted.refuse(group, DiskFull(str(error), retry_after_ms=1000))
            return
        # Final: items that have gathered and all later ones get the same error.
        self.refusal = StorageFailed(str(error))
        self._accepted.refuse(group, self.refusal)
        self._fail_gathered(self.refusal)

    def _fail_gathered(self, error: DelayServerError) -> None:
        while self._gathering:
            self._gathering.next().fail(error)

    def _number(self, group: CommitGroup) -> list[ColumnBatch | MessageRows]:
        """Give out sequences in the order of the records. May have to reserve some, on a disk that is full: StoreError."""
        now_us = self._clock.now_us()
        self._positions.accept(now_us)
        numbered: list[ColumnBatch | MessageRows] = []
        group.number(self._sequences.take(len(group.rows)) if group.rows else 0, now_us)
        if group.rows:
            rows = MessageRows(group.rows, group.first_sequence, now_us)
            numbered.append(rows if len(group.rows) <= ROWS_MAX else to_batch([rows]))
        for batch in group.batches:
            if isinstance(batch, MessageBatch):
                first = self._sequences.take(len(batch))
                sequence = np.arange(first, first + len(batch), dtype=np.int64)
                columns: dict[str, Any] = {"sequence": sequence, "accepted_us": now_us}
                if batch.target_group.item(0):  # a redelivery has since when its message waits
                    columns["accepted_us"] = batch.accepted_us
                if batch.origin_sequence.item(-1) < 0:  # timers name their transactions, whose sequences are new too
                    origin = batch.origin_sequence
                    earlier = np.where(origin < 0, sequence + origin, origin)
                    columns["origin_sequence"] = np.where(origin == OWN_SEQUENCE, sequence, earlier)
                numbered.append(batch.with_columns(**columns))
            else:
                numbered.append(batch)
        return numbered

    # -- around

    async def stop(self) -> None:
        """Refuses new items, and waits until all taken ones are durable and answered."""
        if self.refusal is None:
            self.refusal = ShuttingDown("the server is stopping", retry_after_ms=1000)
        while self._gathering or not self._idle.is_set():  # what was taken in this pass has not begun yet
            await self._idle.wait()
        positions = self._positions
        await positions.commits_ended.reached(positions.commits_begun.value)
