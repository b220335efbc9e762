"""The broker of a member of a cluster: what it decides goes through the log of its shard, and what others decided comes
from there.

Memory and the store run ahead of the log. The progress log does not: it gets rows that came back, and behind them a mark of
how far they go. A start cuts both files to the last mark, and applies what message_log has behind it. So a member that is
superseded has nothing to undo, and a crash at any moment leaves what the log says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import trio

from delayserver.broker.actions.given_up import FirstKept
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.progress_log import FROM, GIVEN_UP, PROGRESS_ROW_BYTES, AppliedTo, ProgressRows, rows_of
from delayserver.broker.files.store import StoreSync, size_of
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.durability import SharedSync
from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.runtime.marks import Mark
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError
from store.logs.message_log import LogEntry
from store.records.batches import KeptBatch, ProgressBatch, StoredBatch
from store.records.segment import Appendable
from store.records.stored_rows import StoredRows

# The store's records of one envelope: half of what a record of the log may have.
ENVELOPE_BYTES = 16 << 20

Write = Callable[[Sequence[Appendable]], Awaitable[int]]
"""Proposes records as one envelope. Returns when they are in message_log: the offset behind them. Raises InDoubt."""

IsOver = Callable[[int], bool]
"""Whether a schedule window of this shard has passed, and all of it has durable outcomes here."""

GivesUp = Callable[[], bool]
"""Whether the log says what the store gives up. Before, each member decides it by its own clock."""


class SharedBroker:
    """Keeps the files of a broker as its log says. `replayed` and `durable` are the marks of message_log.

    Invariant: what the log has below the last mark is in the files, and what it has behind that comes again at a start."""

    def __init__(
        self,
        core: Broker,
        write: Write,
        replayed: Mark,
        durable: Mark,
        gives_up: GivesUp,
        is_over: IsOver,
        runtime: Runtime,
    ) -> None:
        self._core = core
        self._write = write
        self._replayed = replayed
        self._durable = durable
        self.gives_up = gives_up
        self._is_over = is_over
        self._clock = runtime.clock
        self._workers = runtime.workers
        files = core.state.files
        applied = files.progress.applied
        assert applied is not None, "a start writes the first mark"
        # Records of message_log below this offset were followed, now or before the start. `replayed` moves once a round,
        # which may wait for room half-way.
        self._followed = applied.log_offset
        # Above all sequences of stored messages.
        self.next_sequence = applied.next_sequence
        # Rows that are not in the progress log yet. `_anew`: they are to replace it.
        self._rows = ProgressRows()
        self._anew = False
        self._rows_bound = 0
        # Of a primary: where message_log and the store ended behind the last records that came back. They move together:
        # where a sync comes back in part, all of it comes again at a start. None: this process does not lead.
        self._confirmed: tuple[int, int] | None = None
        # Held while something is on its way to the log, and while a mark is written.
        self._lock = trio.Lock()

    # -- following

    def follow(self, entry: LogEntry) -> None:
        """Take a record of message_log that another process decided; in order. Raises DiskFullError, StoreError."""
        if entry.start < self._followed:
            return
        if isinstance(entry.batch, ProgressBatch):
            self._follow_progress(entry.batch, entry.start)
        elif isinstance(entry.batch, StoredBatch):
            self._core.follow(entry.batch, self._clock.now_us())
            self._count(entry.batch)
        elif isinstance(entry.batch, KeptBatch):
            self._keep(entry.batch)
        self._followed = entry.end

    def _follow_progress(self, batch: ProgressBatch, offset: int) -> None:
        now_us, lease_us = self._clock.now_us(), self._clock.monotonic_us()
        for made in rows_of(batch):
            # Offsets of message_log are of one member. The record that may replace messages comes behind this one, since
            # it waits for it. One that replaced the same messages before stands before this one.
            row = replace(made, stop=offset) if made.change == FROM else made
            self._core.replay.apply(row, now_us, lease_us)
            self._rows.add_row(row)
        self._core.replay.letters.clear()  # these rows ack their messages

    def _keep(self, batch: KeptBatch) -> None:
        first = FirstKept(*[int(column.item(-1)) for column in (batch.subject, batch.target_group, batch.position)])
        self._core.state.given_up.keep(first)
        self._rows.add(GIVEN_UP, first.subject, first.target_group, False, 0, first.position)
        self._core.retention.give_up()

    def _count(self, record: StoredBatch | StoredRows) -> None:
        last = max(record.sequences) if isinstance(record, StoredRows) else int(record.sequence.max())
        self.next_sequence = max(self.next_sequence, last + 1)

    def forget_windows(self) -> None:
        """Drop the keys of the windows of which this shard hands off nothing more. The primary declares them to its node
        alone. Not before the replay of the start is complete, which may bring messages for any window."""
        state = self._core.state
        own = state.files.server_id
        over = [start for server, start in state.windows.extents if server == own and self._is_over(start)]
        self._core.arrivals.window_complete(own, over)

    @property
    def leads(self) -> bool:
        """Whether this process has taken over."""
        return self._confirmed is not None

    def take_over(self, epoch: int) -> None:
        """This process leads, and has followed all that came before its claim."""
        self._core.take_over(epoch, self._clock.now_us())
        self._confirmed = self._durable.value, self._core.state.files.store.end

    # -- leading

    async def sync(self) -> None:
        """Make all deliveries and acks so far part of the log. Raises InDoubt if this process leads no longer,
        SyncFailedError."""
        async with self._lock:
            # Until a mark, the rows behind a snapshot stand behind it, up to as many as the next one would have.
            compact = not self._anew or len(self._rows) > self._rows_bound
            plan = self._core.durability.shared_plan(compact=compact)
            assert self._confirmed is not None, "a standby stores nothing of its own"
            end, _ = self._confirmed
            for records in _envelopes(plan):
                try:
                    end = await self._write(records)
                except DelayServerError as error:
                    # Never that nothing was done: parts of this plan may stand in the log, also of callers who wait for
                    # a later sync.
                    raise InDoubt(f"the result is unknown: {error.message}") from error
            self._confirmed = end, plan.store_end
            for record in plan.records:
                self._count(record)
            if plan.snapshot is None:
                self._rows.extend(plan.rows)
            else:
                self._rows, self._anew = plan.snapshot, True
                self._rows_bound = 2 * len(plan.snapshot) + _rows_max(self._core.state.limits)
            self._core.durability.finish_sync()
            if len(self._rows) > _rows_max(self._core.state.limits) and not self._anew:
                try:
                    await self._mark()
                except DiskFullError:
                    return  # they wait for the next mark

    async def give_up(self, first: FirstKept, stop: int) -> None:
        """Let all members give up what stands in front of a record of the store, which ends at `stop`. Nothing is done where
        the log does not have that record yet. Raises InDoubt."""
        async with self._lock:
            assert self._confirmed is not None, "a standby decides nothing"
            _, store_end = self._confirmed
            if stop > store_end:
                return
            kept = KeptBatch.filled(1, position=first.position, subject=first.subject, target_group=first.target_group)
            try:
                end = await self._write([kept])
            except DelayServerError as error:
                raise InDoubt(f"the result is unknown: {error.message}") from error
            self._confirmed = end, store_end
            self._keep(kept)

    # -- marks

    async def mark(self) -> None:
        """Write the rows that are not in the progress log yet, and a mark: what comes before it will not be asked of
        message_log again. Raises DiskFullError, SyncFailedError."""
        async with self._lock:
            await self._mark()

    async def _mark(self) -> None:
        durability, files = self._core.durability, self._core.state.files
        rows, anew = self._rows, self._anew
        if not self.leads and durability.progress_is_long:
            rows, anew = durability.snapshot(), True
        log_end, store_end = self._confirmed or (self._replayed.value, files.store.end)
        applied = AppliedTo(max(self._followed, log_end), store_end, self.next_sequence)
        self._rows, self._anew = ProgressRows(), False
        with trio.CancelScope(shield=True):
            try:
                await self._workers.run(partial(self._save, files.store.sync_plan(), rows, applied, anew))
            except DiskFullError:
                self._rows.put_before(rows)
                self._anew = anew
                raise

    def _save(self, store: StoreSync, rows: ProgressRows, applied: AppliedTo, anew: bool) -> None:
        store.run()
        self._core.state.files.progress.write_applied(rows, applied, anew=anew)


def _rows_max(limits: BrokerLimits) -> int:
    return limits.progress_bytes_max // PROGRESS_ROW_BYTES


def _envelopes(plan: SharedSync) -> Iterator[list[Appendable]]:
    """The records, then the rows that are about them, in envelopes that the log takes."""
    records: list[Appendable] = []
    size = 0
    for record in plan.records:
        size += size_of(record)
        if records and size > ENVELOPE_BYTES:
            yield records
            records, size = [], size_of(record)
        records.append(record)
    for rows in plan.rows.batches():
        size += PROGRESS_ROW_BYTES * len(rows)
        if records and size > ENVELOPE_BYTES:
            yield records
            records, size = [], PROGRESS_ROW_BYTES * len(rows)
        records.append(rows)
    if records:
        yield records
