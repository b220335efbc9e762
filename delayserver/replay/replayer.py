"""Brings accepted messages from message_log into their schedule files, in order, once each (rule 5).

It takes batches from memory while it keeps up, and reads them from the log when it does not. Placing rows (bucketing,
encoding, writing) may run in a worker thread; publishing them (counts, cursors, wheel) is one step on the event loop, and
so is the loader's capture of a file's end: each record has exactly one owner (rule 7). Schedule_log has one writer, so the
steps of sealing and draining coarse days are taken in this task too, between rounds.
"""

from __future__ import annotations

from functools import partial

import trio

from delayserver.replay.day_tier import DayTier
from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.replay.rounds import Rounds
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.outcome_rows import cancels_of_replacements
from delayserver.state.positions.log_queue import LogQueue, due_range
from delayserver.state.replay_round import Round
from store.logs.due_windows import window_of
from store.logs.message_log import LogEntry
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import (
    CancelBatch,
    KeptBatch,
    LedgerBatch,
    MessageBatch,
    NameBatch,
    OutcomeBatch,
    ProgressBatch,
    StoredBatch,
    TableBatch,
)
from store.records.column_batch import has_any
from store.records.message_rows import MessageRows, to_batch

# One round: large enough for numpy to shine, small enough that the event loop hears of it within milliseconds.
ROUND_BYTES_MAX = 4 << 20
ROUND_ROWS_MAX = 1 << 16
# A round of this many rows is placed on the event loop: a hop to a thread would cost more.
INLINE_ROWS_MAX = 512
_Messages = MessageBatch | MessageRows


class Replayer:
    """Source log + position → schedule files."""

    def __init__(
        self,
        reader: MessageLogReader,
        schedule: ScheduleLog,
        rounds: Rounds,
        tier: DayTier,
        queue: LogQueue,
        window_ms: int,
        runtime: Runtime,
    ) -> None:
        """Rounds come from message_log (through `queue` while the replay keeps up) and from `tier`."""
        self._reader = reader
        self._schedule = schedule
        self._placing = rounds.placing
        self._publisher = rounds.publisher
        self._tables = rounds.tables
        self._groups = rounds.groups
        self._tier = tier
        self._positions = queue.positions
        self._queue = queue
        self._turns = runtime.turns
        self._window_ms = window_ms

    # -- rounds

    async def run(self) -> None:
        """Replay until cancelled."""
        while True:
            entries = await self._next_entries()
            if entries:
                done = Round(entries[-1].end, self._positions.replayed_sequence.value, entries)
                quick = self._is_quick(entries)
                retired_until_ms = _retired_until_ms(entries)
                if retired_until_ms:
                    await self._tier.bring_near(retired_until_ms)
                if quick and not any(map(self._queue.is_urgent, entries)):
                    await self._turns.take()  # a millisecond's work that can wait for what is due now
                await self._placing.run(partial(self._place, entries), done, quick=quick)
                await self._placing.run(self._publisher.publish, done, quick=True)
            if self._tier.is_due:
                await self._tier.step()
            if not entries and not self._queue and not self._queue.overflowed and not self._tier.is_due:
                self._queue.arrived.hush()
                await self._queue.arrived.rung()
            else:
                await trio.lowlevel.checkpoint()
            # Also behind a round: where single sends never pause, each round would have the few that came during the last.
            if not self._queue.overflowed and not self._tier.is_due:
                await self._queue.linger()

    async def _next_entries(self) -> list[LogEntry]:
        if self._queue:
            return self._queue.take(ROUND_BYTES_MAX, ROUND_ROWS_MAX)
        if not self._queue.overflowed:
            return []
        position, stop = self._positions.replayed.value, min(self._positions.durable.value, self._queue.round_end)
        entries = await self._reader.read(position, stop)
        if not self._queue.catch_up() and not entries:
            self._positions.replayed.advance(stop)  # only the header of a new segment, or damage, lies between
        return entries

    def _is_quick(self, entries: list[LogEntry]) -> bool:
        """Whether a round may hold the event loop: few rows (cancels and what `repair` filled a range with are not
        placed), and no file to be made or synced."""
        if sum([len(entry.batch) for entry in entries if isinstance(entry.batch, _Messages)]) > INLINE_ROWS_MAX:
            return False
        for entry in entries:
            if isinstance(entry.batch, LedgerBatch | TableBatch):
                return False
            if isinstance(entry.batch, OutcomeBatch) and has_any(entry.batch.origin_sequence):
                return False  # their groups are read
            if isinstance(entry.batch, _Messages):
                first_ms, last_ms = due_range(entry.batch)
                start = window_of(first_ms, self._window_ms)
                same = window_of(last_ms, self._window_ms) == start
                if not same or ScheduleKey(start, ScheduleSource.DIRECT) not in self._schedule:
                    return False
        return True

    def _place(self, entries: list[LogEntry], done: Round) -> None:
        messages = _columns_of(entries)
        batch = MessageBatch.concatenate(messages) if messages else None
        others = [entry for entry in entries if not isinstance(entry.batch, _Messages)]  # mostly none
        cancels = [entry.batch for entry in others if isinstance(entry.batch, CancelBatch)]
        # Code 0: `repair` filled a range.
        names = [entry.batch for entry in others if isinstance(entry.batch, NameBatch) and entry.batch.code.item(0)]
        followed = [entry for entry in others if entry.start < self._positions.led_from]
        outcomes = [entry.batch for entry in followed if isinstance(entry.batch, OutcomeBatch)]
        of_broker = [entry for entry in followed if isinstance(entry.batch, StoredBatch | ProgressBatch | KeptBatch)]
        if batch is not None and batch.replaces_sequence.any():
            cancels.append(cancels_of_replacements(batch))
        retired = [entry.batch for entry in others if isinstance(entry.batch, LedgerBatch)]
        tables = [entry.batch for entry in others if isinstance(entry.batch, TableBatch)]
        done.begin(batch, cancels, entries[-1].end - entries[0].start, names, outcomes, retired, of_broker, tables)
        if batch is not None:
            if self._placing.count_skipped:
                done.recount(batch)
            self._placing.place_batch(batch, done, ScheduleSource.DIRECT)
        done.outcome_groups.extend([self._groups.of(each) for each in outcomes])
        for counted in retired:
            self._placing.enter_retired(counted)
        for table in tables:
            self._tables.keep(table)


def _retired_until_ms(entries: list[LogEntry]) -> int:
    """Behind the start of the last window that a round retires; 0 if it retires none."""
    retired = [entry.batch.start_ms for entry in entries if isinstance(entry.batch, LedgerBatch)]
    return max([int(start_ms.max()) + 1 for start_ms in retired], default=0)


def _columns_of(entries: list[LogEntry]) -> list[MessageBatch]:
    """The messages of a round in columns, those that came as rows folded together as far as they stand side by side."""
    batches: list[MessageBatch] = []
    rows: list[MessageRows] = []
    for entry in entries:
        if type(entry.batch) is MessageRows:
            rows.append(entry.batch)
        elif isinstance(entry.batch, MessageBatch):
            if rows:
                batches.append(to_batch(rows))
                rows = []
            batches.append(entry.batch)
    if rows:
        batches.append(to_batch(rows))
    return batches
