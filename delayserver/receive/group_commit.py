"""The group commit: makes everything durable in message_log that must be there before its answer, many items at a time.

The next group gathers while one is written and synced. While the disk is quick, a small group is synced on the event
loop, because a worker thread costs as much as such a sync. A large group is synced in a thread. No later stage sees a
record before its sync. A failed sync is final: all waiting callers get the error, and the server stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import trio

from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import (
    DelayServerError,
    DiskFull,
    NotReady,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    copied,
)
from delayserver.runtime.disk_pace import DiskPace
from delayserver.runtime.name_look import NameLook
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.balance import Balance
from delayserver.state.positions.gathering import CommitGroup, Committed, Done, Gathering, RowsDone
from delayserver.state.positions.log_queue import LogQueue
from store.errors import DiskFullError, StoreError
from store.logs.message_log import LogEntry, MessageLog
from store.records.batches import CancelBatch, MessageBatch
from store.records.columns import ColumnBatch
from store.records.message_rows import ROWS_MAX, MessageRows, Row, to_batch
from store.tables.identity import SequenceReservation

# Memory of one row or item besides its bytes, for the bound on gathered bytes.
ROW_OVERHEAD_BYTES = 120


class _Written(NamedTuple):
    """What a group has become in the log, and when its write began and was durable."""

    entries: list[LogEntry]
    started_us: int
    ended_us: int


class GroupCommit:
    """Gathers items, commits them in groups, and calls back each one when it is durable or has failed."""

    def __init__(
        self,
        log: MessageLog,
        sequences: SequenceReservation,
        gathering: Gathering,
        queue: LogQueue,
        balance: Balance,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._log = log
        self._sequences = sequences
        self._workers = runtime.workers
        self._settings = settings
        self._clock = runtime.clock
        self._stages = runtime.stages
        self._positions = queue.positions
        self._queue = queue
        self._balance = balance
        self._gathering = gathering
        self._work = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.refusal: DelayServerError | None = None
        self._in_step = False
        # When the first item of those came that wait now.
        self._gathered_us = 0
        self.groups = 0
        self.sync_us_max = 0
        self._pace = DiskPace()
        self._name = NameLook(log.require_name)

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
        if not self._gathering:
            self._gathered_us = self._clock.monotonic_us()
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
        if not self._gathering:
            return True
        settings = self._settings
        small = self._gathering.size_bytes <= settings.inline_sync_bytes_max
        lagging = self._positions.lag_bytes > settings.replay_lag_bytes_max
        if self._work.is_set() or not small or lagging or not self._idle.is_set() or not self._pace.quick:
            self._work.set()
            return False
        group = self._gathering.next()
        try:
            written = self._write(self._number(group))
        except StoreError as error:
            self._refused(group, error)
            self._work.set()
            return False
        self._committed(group, written, self._gathered_us)
        return True

    def _lagging(self) -> bool:
        return self._positions.lag_bytes > self._settings.replay_lag_bytes_max

    async def _lag_over(self) -> None:
        while self._lagging():
            bound = self._positions.durable.value - self._settings.replay_lag_bytes_max
            await self._positions.replayed.reached(bound)

    def refuse(self, error: NotReady) -> None:
        """Refuses all items until `accept`, because records in the log have no room in schedule_log yet."""
        if self.refusal is None:
            self.refusal = error

    def accept(self) -> None:
        """Ends `refuse`. A refusal for another reason stays."""
        if isinstance(self.refusal, NotReady):
            self.refusal = None

    def storage_failed(self, error: StorageFailed) -> None:
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
            self._fail_gathered(self.refusal)

    async def _run(self) -> None:
        while True:
            if not self._gathering:
                self._idle.set()
                self._work = trio.Event()
                await self._work.wait()
                self._idle = trio.Event()
                self._stop_if_failed()
                continue  # `storage_failed` may have set `_work` with nothing gathered
            await self._lag_over()
            with self._gathering.committing() as group:
                try:
                    await self._commit_group(group)
                except BaseException:
                    group.fail(StorageFailed("the server stopped before it knew; look the message up"))
                    raise
            if self._gathering:
                await trio.lowlevel.checkpoint()  # a group synced inline never waited: let the readers go first
            self._stop_if_failed()

    def _stop_if_failed(self) -> None:
        if isinstance(self.refusal, StorageFailed):
            raise StoreError(self.refusal.message)

    async def _commit_group(self, group: CommitGroup) -> None:
        marks = self._positions
        marks.commits_begun.advance(marks.commits_begun.value + 1)
        try:
            await self._commit_numbered(group)
        finally:
            marks.commits_ended.advance(marks.commits_begun.value)

    async def _commit_numbered(self, group: CommitGroup) -> None:
        try:
            batches, gathered_us = self._number(group), self._gathered_us
            # Rows that gather meanwhile have waited at least since now.
            self._gathered_us = self._clock.monotonic_us()
            if group.size_bytes <= self._settings.inline_sync_bytes_max and self._pace.quick:
                written = self._write(batches)
            else:
                written = await self._workers.run(partial(self._write, batches))
        except StoreError as error:
            self._refused(group, error)
        else:
            self._committed(group, written, gathered_us)

    def _refused(self, group: CommitGroup, error: StoreError) -> None:
        if isinstance(error, DiskFullError):
            group.fail(DiskFull(str(error), retry_after_ms=1000))
            return
        # Final: items that have gathered and all later ones get the same error.
        self.refusal = StorageFailed(str(error))
        group.fail(self.refusal)
        self._fail_gathered(self.refusal)

    def _fail_gathered(self, error: DelayServerError) -> None:
        while self._gathering:
            self._gathering.next().fail(error)

    def _committed(self, group: CommitGroup, written: _Written, gathered_us: int) -> None:
        """`gathered_us`: when the first item of the group came."""
        # Answers first, so that the clients go on during the rest of this step.
        group.tell(written.entries)
        self.groups += 1
        self._stages.commit_wait.add(written.started_us - gathered_us)
        self._took(written.ended_us - written.started_us, group.size_bytes)
        for entry in written.entries:
            batch = entry.batch
            if type(batch) is MessageRows:
                self._positions.accepted_sequence.advance(batch.last_sequence)
                self._balance.commit(len(batch))
                self._balance.subjects.accept_rows(batch.rows)
            elif isinstance(batch, MessageBatch):
                self._positions.accepted_sequence.advance(int(batch.sequence[-1]))
                self._balance.commit(len(batch) - int(np.count_nonzero(batch.origin_sequence)))
                self._balance.subjects.accept(batch)
        self._positions.durable.advance(written.entries[-1].end)
        self._queue.put(written.entries)

    def _took(self, duration_us: int, size_bytes: int) -> None:
        self.sync_us_max = max(self.sync_us_max, duration_us)
        self._stages.sync.add(duration_us)
        if size_bytes <= self._settings.inline_sync_bytes_max:
            self._pace.took(duration_us)

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
                    columns["origin_sequence"] = np.where(origin < 0, sequence + origin, origin)
                numbered.append(batch.with_columns(**columns))
            else:
                numbered.append(batch)
        return numbered

    def _write(self, batches: Sequence[ColumnBatch | MessageRows]) -> _Written:
        """Appends records and makes them durable. Runs on the event loop or in a thread, never twice in parallel."""
        if self._sequences.needs_extension():
            self._sequences.extend()
        started_us = self._clock.monotonic_us()
        if self._settings.durability == "sync":
            entries = self._log.append_durably(batches)
        else:
            entries = self._log.append_assumed(batches)  # durability "os": the page cache counts as durable
        ended_us = self._clock.monotonic_us()
        self._name.require(ended_us)
        return _Written(entries, started_us, ended_us)

    # -- around

    async def warm(self) -> None:
        """Overwrites space ahead of the tail while there is nothing to commit. Raises SyncFailedError."""
        while self._settings.warm_ahead_bytes:
            following = self._positions.durable.value + 1
            step = None
            if self._idle.is_set():
                try:
                    step = self._log.warm_ahead(self._settings.warm_ahead_bytes)
                except DiskFullError:
                    await self._clock.sleep_ms(1000)
            if step is not None:
                await self._workers.run(partial(self._log.sync_warm, step))
                self._log.use_warm(step)
            else:
                await self._positions.durable.reached(following)  # an idle server does not poll
            await self._clock.sleep_ms(20)

    async def stop(self) -> None:
        """Refuses new items, and waits until all taken ones are durable and answered."""
        if self.refusal is None:
            self.refusal = ShuttingDown("the server is stopping", retry_after_ms=1000)
        while self._gathering or not self._idle.is_set():  # what was taken in this pass has not begun yet
            await self._idle.wait()
