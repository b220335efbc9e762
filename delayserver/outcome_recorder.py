"""Writes what became of messages to dispatch_log, many rows at a time, and knows what is decided but not written yet.

An outcome counts as durable only after its sync. Rows are handed in on the event loop; a flush writes them per window.
The loader and cancel ask `index` which sequences of a window have an outcome, written or not: nobody may be delivered
twice because the disk was slow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.open_messages import OpenMessages
from delayserver.protocol.outcomes import Outcome
from delayserver.settings import DispatchSettings
from store.batches import I64, MessageBatch, OutcomeBatch
from store.days import DayTable
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, DiskFullError, StoreError
from store.filesystem import FileSystem
from store.outcome_index import OutcomeIndex
from store.windows import day_of, window_of, window_starts

# Indexes of windows that were asked for; 16 bytes a row.
INDEX_BYTES_MAX = 96 << 20
# In a hot moment so many outcomes come at once. They are written when it is over, which is when none came for a while, or
# at the latest after that: a thread that writes takes the interpreter from what consumers wait for, and hardly anybody
# waits for an outcome.
HOT_ROWS = 1024
QUIET_MS = 20
HOT_MS_MAX = 100


class OutcomeRecorder:
    """The only writer of dispatch_log."""

    def __init__(
        self, log: DispatchLog, days: DayTable, fs: FileSystem, settings: DispatchSettings, window_ms: int, clock: Clock
    ) -> None:
        self._log = log
        self._days = days
        self._inline = fs.inline
        self._settings = settings
        self._window_ms = window_ms
        self._clock = clock
        self._buffer: list[OutcomeBatch] = []
        self._flushing: list[OutcomeBatch] = []
        self._rows = 0
        self._hot = False
        self._hurry = trio.Event()
        # Where several broker groups share the event loop it is 0: one large write would hold up the others.
        self.hot_ms_max = HOT_MS_MAX
        self._work = trio.Event()
        self._room = trio.Event()
        self._flushed = trio.Event()
        self._indexes: dict[DispatchKey, OutcomeIndex] = {}
        self._loading: dict[DispatchKey, list[OutcomeBatch]] = {}
        self._pins: dict[DispatchKey, int] = {}
        self._held: set[int] = set()
        self._released = trio.Event()
        self.open_messages = OpenMessages()
        self.replayed_sequence: Callable[[], int] = lambda: 1 << 62
        # Sequences decided before their round was published: of one round at most.
        self._early: list[I64] = []
        self._failure: StoreError | None = None
        # Whether outcomes could not be made durable: the server ends, and its next start decides again.
        self.gave_up = False
        self.day_outcomes: Callable[[int, NDArray[np.int64]], NDArray[np.uint8]] | None = None
        self.totals = np.zeros(16, dtype=np.int64)
        self.durable_totals = np.zeros(16, dtype=np.int64)
        self.on_durable: Callable[[set[DispatchKey]], None] = lambda _keys: None
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        self.on_disk_full: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.disk_full = False

    @property
    def rows_waiting(self) -> int:
        """Rows that are decided and not durable yet."""
        return self._rows

    def record(self, batch: OutcomeBatch, *, moved: bool = False) -> None:
        """Take outcomes. `moved` rows were counted when they were first recorded (a drained day's)."""
        if not len(batch):
            return
        self._buffer.append(batch)
        self._rows += len(batch)
        self._hot |= len(batch) >= HOT_ROWS
        if not moved:
            balance = (batch.origin_sequence == 0) | (batch.outcome == int(Outcome.DEDUPLICATED))
            if batch.outcome.strides == (0,):
                self.totals[batch.outcome[0]] += np.count_nonzero(balance)
            else:
                self.totals += np.bincount(batch.outcome[balance], minlength=16)
        if self._indexes or self._loading:
            self._feed_indexes(batch)
        self.open_messages.remove(batch.sequence)
        early = batch.sequence[batch.sequence > self.replayed_sequence()]
        if len(early):  # delivered by a load, while the round that placed them waits for room for the rest of it
            self._early.append(early)
        self._work.set()

    def opened(self, messages: MessageBatch) -> None:
        """A round of the message_log is published: its messages have no outcome, but for early ones."""
        self.open_messages.add(messages)
        for early in self._early:
            self.open_messages.remove(early)
        self._early.clear()

    def _feed_indexes(self, batch: OutcomeBatch) -> None:
        for key, part in self._by_file(batch):
            index = self._indexes.get(key)
            if index is not None:
                index.add(part.sequence, part.outcome)
            elif key in self._loading:
                self._loading[key].append(part)

    async def wait_for_room(self) -> None:
        """Return when the disk keeps up with what was decided (bound of memory)."""
        while self._rows > self._settings.outcome_rows_max:
            if self._room.is_set():  # otherwise others wait for this one already
                self._room = trio.Event()
            await self._room.wait()

    def hurry(self) -> None:
        """Somebody waits for what is decided: write it now."""
        self._hurry.set()

    def unwritten(self) -> list[OutcomeBatch]:
        """Batches that are decided and maybe not in their files yet."""
        return self._flushing + self._buffer

    # -- files

    def key_of(self, due_ms: int) -> DispatchKey:
        """The dispatch file of a message with this due time, as the days stand now."""
        if self._days.is_coarse(due_ms):
            return DispatchKey(day_of(due_ms), True)
        return DispatchKey(window_of(due_ms, self._window_ms), False)

    def _by_file(self, batch: OutcomeBatch) -> list[tuple[DispatchKey, OutcomeBatch]]:
        starts = window_starts(batch.due_ms, self._window_ms)
        first = int(starts[0])
        if bool((starts == first).all()):
            return [(self.key_of(first), batch)]
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        batch = batch.take(order)
        cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        parts: dict[DispatchKey, list[OutcomeBatch]] = {}
        for begin, end in pairwise(cuts):
            parts.setdefault(self.key_of(int(starts[begin])), []).append(batch.slice(begin, end))
        return [(key, OutcomeBatch.concatenate(list_)) for key, list_ in parts.items()]

    async def run(self) -> None:
        """Flush until cancelled. A failed sync is raised: the server must stop."""
        while True:
            if not self._buffer:
                self._work = trio.Event()
                await self._work.wait()
            await self._hot_moment_over()
            await self.flush()
            # Whatever comes within this time shares the next sync.
            await self._clock.sleep_ms(self._settings.outcome_flush_ms)

    async def _hot_moment_over(self) -> None:
        self._hurry = trio.Event()
        for _ in range(self.hot_ms_max // QUIET_MS):
            if not self._hot or self._hurry.is_set() or self._rows > self._settings.outcome_rows_max // 2:
                break
            self._hot = False
            with trio.move_on_after(QUIET_MS / 1000):
                await self._hurry.wait()
        self._hot = False

    async def flush(self) -> None:
        """Write and sync what is buffered. One at a time; a second caller waits for the first, and is told of its failure:
        a checkpoint must not go past outcomes that were lost."""
        while self._flushing and not self.gave_up:
            await self._flushed.wait()
        if self._failure is not None:
            raise self._failure
        if self.gave_up:
            await trio.sleep_forever()  # the server ends: nothing may be written as if those were durable
        if not self._buffer:
            return
        self._flushing, self._buffer = self._buffer, []
        totals = self.totals.copy()
        self._flushed = trio.Event()
        keys = None
        try:
            keys = await self._write(self._flushing)
        except StoreError as error:
            self._failure = error
            raise
        finally:
            self.gave_up = keys is None  # then they stay what is unwritten: until the end nobody hears otherwise
            self._flushed.set()
        self._rows -= sum([len(batch) for batch in self._flushing])
        self._flushing = []
        self.durable_totals = totals
        self._room.set()
        self.on_durable(keys)

    async def _write(self, batches: list[OutcomeBatch]) -> set[DispatchKey]:
        """Nobody waits for an outcome as for an ack, so the disk is never waited for on the event loop."""
        parts: list[tuple[DispatchKey, OutcomeBatch]] = await self._run(
            lambda: self._by_file(OutcomeBatch.concatenate(batches))
        )
        done = 0
        while True:
            try:
                await self._run(partial(self._append_and_sync, parts, done))
                self.disk_full = False
                return {key for key, _ in parts}
            except _PartlyWrittenError as error:
                done += error.parts
                self.disk_full = True
                await self.on_disk_full()
                # Not shielded: a stop must not wait for room that nobody makes. The next start finds these undone.
                await self._clock.sleep_ms(200)

    async def _run(self, work: Callable[[], Any]) -> Any:
        if self._inline:
            return work()
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(work)

    def _append_and_sync(self, parts: list[tuple[DispatchKey, OutcomeBatch]], done: int) -> None:
        """Go on behind the parts an earlier try wrote before the disk was full, and sync those as well."""
        for count, (key, part) in enumerate(parts[done:]):
            try:
                self._log.append(key, part)
            except DiskFullError as error:
                raise _PartlyWrittenError(count) from error
        self._log.sync([key for key, _ in parts])

    # -- what is decided

    @asynccontextmanager
    async def pinned(self, key: DispatchKey) -> AsyncIterator[OutcomeIndex]:
        """Sequences with an outcome in this file, those not written yet included; kept up until the block ends.

        Raises CorruptionError where the file does not tell: nobody may take its messages for undecided then."""
        self._pins[key] = self._pins.get(key, 0) + 1
        try:
            while key not in self._indexes:
                if key in self._loading:
                    await self._clock.sleep_ms(1)
                else:
                    await self._load_index(key)
            index = self._indexes.pop(key)
            self._indexes[key] = index  # most recently used last
            yield index
        finally:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]

    # -- what is being decided

    def hold(self, sequences: NDArray[np.int64]) -> None:
        """These are being cancelled: nobody may load or deliver them until `release`."""
        self._held.update(sequences.tolist())

    def release(self, sequences: NDArray[np.int64]) -> None:
        """The cancel is recorded, or it failed."""
        self._held.difference_update(sequences.tolist())
        self._released.set()
        self._released = trio.Event()

    def any_held(self, sequences: NDArray[np.int64]) -> bool:
        """Whether a cancel of one of these is under way."""
        return bool(self._held) and not self._held.isdisjoint(sequences.tolist())

    async def wait_released(self) -> None:
        """Return when some cancel was recorded or failed."""
        await self._released.wait()

    def outcome_of(self, key: DispatchKey, index: OutcomeIndex, sequences: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Outcome codes u8[n] of messages of one window or day, 0 where there is none yet."""
        answer = index.lookup(sequences)
        if key.coarse or self.day_outcomes is None or not self._days.is_draining(key.start_ms):
            return answer
        return np.where(answer == 0, self.day_outcomes(key.start_ms, sequences), answer)

    def not_held(self, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True where no cancel is under way, bool[n]."""
        if not self._held:
            return np.ones(len(sequences), dtype=bool)
        held = np.fromiter(self._held, np.int64, len(self._held))
        return ~np.isin(sequences, held)

    async def _load_index(self, key: DispatchKey) -> None:
        captured = [
            part for batch in self._flushing + self._buffer for owner, part in self._by_file(batch) if owner == key
        ]
        self._loading[key] = captured
        read = partial(self._read_index, key, self._log.end(key))
        try:
            index = read() if self._inline or not self._log.end(key) else await trio.to_thread.run_sync(read)
            for part in captured:
                index.add(part.sequence, part.outcome)
            self._indexes[key] = index
        except CorruptionError as error:
            self.on_corruption(error)
            raise
        finally:
            del self._loading[key]
        self._evict()

    def _read_index(self, key: DispatchKey, end: int) -> OutcomeIndex:
        index = OutcomeIndex()
        written = self._log.outcomes(key, None, end)
        if len(written):
            index.add(written.sequence, written.outcome)
        return index

    def _evict(self) -> None:
        total = sum([index.nbytes for index in self._indexes.values()])
        for key in list(self._indexes)[:-1]:
            if total <= INDEX_BYTES_MAX:
                return
            if key in self._pins:
                continue
            total -= self._indexes.pop(key).nbytes

    def forget(self, key: DispatchKey) -> None:
        """The file is removed by retention."""
        self._indexes.pop(key, None)


class _PartlyWrittenError(Exception):
    """The disk is full; the first `parts` files were written."""

    def __init__(self, parts: int) -> None:
        super().__init__(parts)
        self.parts = parts
