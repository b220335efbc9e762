"""Brings accepted messages from message_log into their schedule files, in order, once each (rule 5).

It takes batches from memory while it keeps up, and reads them from the log when it does not. Placing rows (bucketing,
encoding, writing) may run in a worker thread; publishing them (counts, cursors, wheel) is one step on the event loop, and
so is the loader's capture of a file's end: each record has exactly one owner (rule 7). It is the only writer of
schedule_log, so sealing and draining of coarse days happen here too, between rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.buckets import bucket
from delayserver.clock import Clock
from delayserver.deduplication import Deduplication
from delayserver.settings import StorageSettings
from store.batches import I64, CancelBatch, MessageBatch
from store.columns import ColumnBatch
from store.days import DayTable
from store.errors import CorruptionError, DiskFullError
from store.filesystem import FileSystem
from store.message_log import LogEntry, MessageLog
from store.message_rows import MessageRows, to_batch
from store.row_sums import U64
from store.schedule_index import batch_sums
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.segment import Appended
from store.windows import window_of

# One round: large enough for numpy to shine, small enough that the event loop hears of it within milliseconds.
ROUND_BYTES_MAX = 4 << 20
ROUND_ROWS_MAX = 1 << 16
# Far behind, larger rounds: rows spread over many files then come in fewer, longer records.
ROUND_BYTES_BEHIND = 16 << 20
FAR_BEHIND_BYTES = 64 << 20
ROUND_BYTES_FAR_BEHIND = 32 << 20
# A round of this many rows is placed on the event loop: a hop to a thread would cost more.
INLINE_ROWS_MAX = 512
# Batches kept in memory between commit and replay; behind that they are read back from the log.
QUEUE_BYTES_MAX = 32 << 20
# Single sends that are not due soon share a round: it is put off by this much, unless somebody waits for it or a row
# that is due soon comes. A round costs as much as a dozen sends, whatever is in it.
LINGER_MS = 50
LINGER_ROWS_MAX = 512
SOON_MS = 200
_Messages = MessageBatch | MessageRows


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows written to one schedule file."""

    key: ScheduleKey
    appended: Appended
    batch: MessageBatch
    row_sum: U64 | None = None
    """Of all rows, where they are likely to go straight to the wheel: made in the thread that places them."""


@dataclass(slots=True)
class Round:
    """What one round of replay did, to be published."""

    end: int
    last_sequence: int
    # All messages of the round; copies are marked in `placed` only.
    messages: MessageBatch | None = None
    placed: list[Placed] = field(default_factory=list)
    cancels: list[CancelBatch] = field(default_factory=list)
    size_bytes: int = 0
    accepted: int = 0
    internal: int = 0


class Replayer:
    """Source log + position → schedule files."""

    def __init__(
        self,
        log: MessageLog,
        schedule: ScheduleLog,
        days: DayTable,
        deduplication: Deduplication,
        fs: FileSystem,
        settings: StorageSettings,
        clock: Clock,
        *,
        position: int,
        replayed_sequence: int,
    ) -> None:
        self._log = log
        self._schedule = schedule
        self._days = days
        self._deduplication = deduplication
        self._inline = fs.inline
        self._settings = settings
        self._clock = clock
        self.position = position
        self.replayed_sequence = replayed_sequence
        self._drained = np.empty(0, np.int64)
        self._backwards = False
        self._queue: deque[LogEntry] = deque()
        self._queue_bytes = 0
        self._behind = True
        self._work = trio.Event()
        self._hurry = trio.Event()
        self._lingering = False
        self._lingering_rows = 0
        self._waiters: list[tuple[int, trio.Event]] = []
        self.caught_up = trio.Event()
        self.publish: Callable[[Round], None] = lambda _round: None
        self.take_turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.on_progress: Callable[[int], None] = lambda _position: None
        self.between_rounds: Callable[[], Awaitable[None]] | None = None
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        # The last sequence that retention removed with a window: without its file there is no other high-water mark.
        self.retired_up_to: Callable[[int], int] = lambda _start_ms: 0
        # Whether rows of this window may go to the wheel at once; asked in the thread that places them.
        self.sums_wanted: Callable[[int], bool] = lambda _start_ms: False
        self.bytes_since_checkpoint = 0
        self.met_damage = False
        # Without a checkpoint the files were counted instead, so rows that are in them already are not counted again.
        self.count_skipped = True

    # -- hand-over

    def feed(self, entries: list[LogEntry]) -> None:
        """Durable entries from the commit, in order."""
        if not self._behind:
            for entry in entries:
                if entry.start < self.position:
                    continue  # read from the log already, before its commit came back from the thread
                size = entry.end - entry.start
                if self._queue_bytes + size > QUEUE_BYTES_MAX:
                    self._behind = True  # from here on the log itself is the queue
                    break
                self._queue.append(entry)
                self._queue_bytes += size
                if self._lingering and not self._may_linger(entry):
                    self._hurry.set()
        self._work.set()

    @property
    def lag_bytes(self) -> int:
        """Durable in the log, not in its schedule file yet."""
        return max(self._log.synced - self.position, 0)

    def sync_source(self) -> None:
        """Nothing may point behind what a loss of power takes (durability `os`). Raises SyncFailedError."""
        self._log.sync_assumed()

    def passed(self, sequence: int) -> None:
        """Nothing up to this sequence is still to come: those that a crash left unused must not be waited for."""
        self.replayed_sequence = max(self.replayed_sequence, sequence)

    async def wait_replayed(self, sequence: int) -> None:
        """Return when this sequence (accepted already) is in its schedule file."""
        if sequence > self.replayed_sequence:
            event = trio.Event()
            self._waiters.append((sequence, event))
            self._hurry.set()
            await event.wait()

    # -- rounds

    async def run(self) -> None:
        """Replay until cancelled."""
        while True:
            entries = await self._next_entries()
            if entries:
                done = Round(entries[-1].end, self.replayed_sequence)
                quick = self._is_quick(entries)
                if quick and not any(map(self._is_urgent, entries)):
                    await self.take_turn()  # a millisecond's work that can wait for what is due now
                await self._round(partial(self._place, entries), done, quick)
                self.publish(done)
            elif not self._behind:
                self.caught_up.set()
            if self.between_rounds is not None:
                await self.between_rounds()
            if not entries and not self._queue and not self._behind and self.between_rounds is None:
                self._work = trio.Event()
                await self._work.wait()
            else:
                await trio.lowlevel.checkpoint()
            # Also behind a round: where single sends never pause, each round would have the few that came during the last.
            if not self._behind and self.between_rounds is None:
                await self._linger()

    def wake(self) -> None:
        """There is something new to do (`between_rounds` was set)."""
        self._work.set()

    async def _linger(self) -> None:
        """Let a few more rows gather, unless somebody waits or a row is due soon."""
        self._lingering_rows = 0
        if self._waiters or not self._queue or not all(map(self._may_linger, self._queue)):
            return
        self._hurry, self._lingering = trio.Event(), True
        with trio.move_on_after(LINGER_MS / 1000):
            await self._hurry.wait()
        self._lingering = False

    def _may_linger(self, entry: LogEntry) -> bool:
        self._lingering_rows += len(entry.batch)
        return self._lingering_rows <= LINGER_ROWS_MAX and not self._is_urgent(entry)

    def _is_urgent(self, entry: LogEntry) -> bool:
        batch = entry.batch
        return not isinstance(batch, _Messages) or _due_range(batch)[0] <= self._clock.now_ms() + SOON_MS

    async def _next_entries(self) -> list[LogEntry]:
        if self._queue:
            return self._take_queue()
        if not self._behind:
            return []
        stop = self._log.synced
        if self.position >= stop:
            self._behind = False
            return []
        read = partial(self._read, self.position, stop)
        entries = read() if self._inline else await trio.to_thread.run_sync(read)
        if not entries:
            self.position = stop  # only the header of a new segment, or damage, lies between
        return entries

    def _take_queue(self) -> list[LogEntry]:
        entries: list[LogEntry] = []
        size, rows = 0, 0
        while self._queue and size < ROUND_BYTES_MAX and rows < ROUND_ROWS_MAX:
            entry = self._queue.popleft()
            entries.append(entry)
            size += entry.end - entry.start
            rows += len(entry.batch)
        self._queue_bytes -= size
        return entries

    def _read(self, position: int, stop: int) -> list[LogEntry]:
        size = ROUND_BYTES_FAR_BEHIND if stop - position > FAR_BEHIND_BYTES else ROUND_BYTES_BEHIND
        try:
            return self._log.read(position, stop, size)
        except CorruptionError as error:
            self.met_damage = True
            self.on_corruption(error)
            following = self._log.skip_damage(position)
            assert following > position
            return self._read(following, stop) if following < stop else []

    def _is_quick(self, entries: list[LogEntry]) -> bool:
        """Whether a round may hold the event loop: few rows (cancels and what `repair` filled a range with are not
        placed), and no file to be made, since that takes two syncs."""
        if sum([len(entry.batch) for entry in entries if isinstance(entry.batch, _Messages)]) > INLINE_ROWS_MAX:
            return False
        for entry in entries:
            if isinstance(entry.batch, _Messages):
                first_ms, last_ms = _due_range(entry.batch)
                start = window_of(first_ms, self._settings.window_ms)
                same = window_of(last_ms, self._settings.window_ms) == start
                if not same or ScheduleKey(start, Source.DIRECT) not in self._schedule:
                    return False
        return True

    async def _round(self, place: Callable[[Round], None], done: Round, quick: bool) -> None:
        """Place in a thread where that pays. A full disk is waited for: what was placed stays in `done`, and the
        high-water marks of the files let a further attempt go on behind it."""
        while True:
            try:
                if self._inline or quick:
                    place(done)
                else:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(place, done)
            except DiskFullError:
                await self._clock.sleep_ms(200)
            else:
                return

    async def place_drained(self, batch: MessageBatch) -> Round:
        """Place rows of a sealed day's file into its minutes; for `between_rounds` only."""
        done = Round(self.position, self.replayed_sequence)
        await self._round(partial(self.place_batch, batch, source=Source.FROM_DAY), done, False)
        return done

    def _place(self, entries: list[LogEntry], done: Round) -> None:
        messages = _columns_of(entries)
        done.cancels = [entry.batch for entry in entries if isinstance(entry.batch, CancelBatch)]
        done.size_bytes = entries[-1].end - entries[0].start
        if messages:
            batch = MessageBatch.concatenate(messages)
            if self.count_skipped:
                done.accepted = done.internal = 0  # a round that met a full disk is placed again
                _count(batch, done)
            if batch.replaces_sequence.any():
                done.cancels.append(_replaced(batch))
            done.last_sequence = int(batch.sequence[-1])
            done.messages = batch
            self.place_batch(batch, done, Source.DIRECT)

    def place_batch(self, batch: MessageBatch, done: Round, source: Source) -> None:
        """Write rows to their files, skipping what is there already."""
        coarse = self._days.coarse_rows(batch.due_ms, batch.sequence) if source == Source.DIRECT else None
        parts = [
            (part.key, rows)
            for part in bucket(batch, self._settings.window_ms, coarse, source)
            if len(rows := self._behind_high_water(part.key, part.batch))
        ]
        # To and fro: of more files than may be open, those of the end of a round are open at the begin of the next one.
        self._backwards = not self._backwards
        if self._backwards:
            parts.reverse()
        if source == Source.FROM_DAY:  # not what its minutes had before: that was published, or is a load's
            self._drained = np.concatenate([self._drained, *[rows.sequence for _, rows in parts]])
        self._schedule.prepare([key for key, _ in parts])
        for key, rows in parts:
            if source == Source.DIRECT:
                marked = self._deduplication.mark(key, rows)
            else:
                marked = rows
                self._deduplication.drained_into(key.start_ms)
            wanted = key.source != Source.DAY and self.sums_wanted(key.start_ms)
            row_sum = batch_sums(marked) if wanted else None
            done.placed.append(Placed(key, self._schedule.append(key, marked), marked, row_sum))
            if not self.count_skipped and source == Source.DIRECT:
                _count(rows, done)

    def _behind_high_water(self, key: ScheduleKey, rows: MessageBatch) -> MessageBatch:
        """The rows that the file does not have yet."""
        high_water = self._high_water(key)
        if int(rows.sequence[0]) > high_water:
            return rows
        return rows.slice(int(np.searchsorted(rows.sequence, high_water, side="right")), len(rows))

    def _high_water(self, key: ScheduleKey) -> int:
        if key.source == Source.DAY and self._days.is_drained(key.start_ms):
            return 1 << 62  # the minutes have all of it, and the day file may be gone
        if key.source == Source.DAY:
            return self._schedule.last_sequence(key)
        return max(self._schedule.last_sequence(key), self.retired_up_to(key.start_ms))

    # -- publishing

    def has_replayed(self, sequence: I64) -> NDArray[np.bool_]:
        """Of messages found in the files of windows those whose round of the message_log was published, bool[n]."""
        known: NDArray[np.bool_] = sequence <= self.replayed_sequence
        return known

    def has_published(self, sequence: I64) -> NDArray[np.bool_]:
        """Of messages found in the files of windows those that were handed on, bool[n]. The others are placed only:
        `publish` will release them, or a load that was told to; whoever does it before does it twice."""
        known = self.has_replayed(sequence)
        if len(self._drained):
            known &= ~np.isin(sequence, self._drained)
        return known

    def published_drained(self) -> None:
        """What `place_drained` placed was handed on."""
        self._drained = np.empty(0, np.int64)

    def published(self, done: Round) -> None:
        """Move the position on and wake who waits for it. To be called by `publish`, in the same step."""
        self.position = done.end
        self.replayed_sequence = max(self.replayed_sequence, done.last_sequence)
        self.bytes_since_checkpoint += done.size_bytes
        self.on_progress(self.position)
        if self._waiters:
            for sequence, event in self._waiters:
                if sequence <= self.replayed_sequence:
                    event.set()
            self._waiters = [(s, event) for s, event in self._waiters if s > self.replayed_sequence]


def _due_range(batch: ColumnBatch | MessageRows) -> tuple[int, int]:
    if type(batch) is MessageRows:
        first = batch.rows[0][0]
        return (first, first) if len(batch.rows) == 1 else (min(batch.due_ms), max(batch.due_ms))
    assert isinstance(batch, MessageBatch)
    return int(batch.due_ms.min()), int(batch.due_ms.max())


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


def _count(batch: MessageBatch, done: Round) -> None:
    internal = int(np.count_nonzero(batch.origin_sequence))
    done.internal += internal
    done.accepted += len(batch) - internal


def _replaced(batch: MessageBatch) -> CancelBatch:
    """The cancels that lie in rescheduling messages."""
    rows = np.flatnonzero(batch.replaces_sequence)
    return CancelBatch.filled(
        len(rows),
        sequence=batch.replaces_sequence[rows],
        due_ms=batch.replaces_due_ms[rows],
        requested_us=batch.accepted_us[rows],
        subject=batch.subject[rows],
    )
