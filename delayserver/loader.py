"""Brings the near future into the wheel: window by window, ahead of time, and no more than memory may hold.

Moving the `loading` cursor and capturing the ends of the window's files is one step on the event loop (`begin_load`);
what lies below those ends is read here, what comes later goes from the replayer straight to the wheel. Rows that have an
outcome, written or not, stay out. Past the bound of memory the far end is dropped and read again when there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.group_wheels import GroupWheels
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.outcomes import Outcome
from delayserver.rows import make_rows
from delayserver.settings import WheelSettings
from delayserver.window_book import WindowBook
from store.batches import I64, OutcomeBatch
from store.dispatch_log import DispatchKey
from store.errors import CorruptionError, FormatError
from store.filesystem import FileSystem
from store.outcome_index import OutcomeIndex
from store.scan import Damage
from store.schedule_log import ScheduleIndex, ScheduleKey, ScheduleLog, Source
from wheel.cursors import LoadCursors
from wheel.keys import KEY_HIGHEST, Key

FINE_SOURCES = (Source.DIRECT, Source.FROM_DAY)
# After an eviction this much of the bound is kept, so that the next few rows do not evict again.
KEEP_SHARE = 0.75
# And this much where an earlier window wants in: it is loaded while more than a quarter is free.
LATE_SHARE = 0.5
# A window whose file is damaged is looked at again after this long.
DAMAGED_AGAIN_US = 60_000_000


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Rows of one window read from its files, ready for the wheel."""

    due_ms: NDArray[np.int64]
    sequence: NDArray[np.int64]
    rows: NDArray[Any]
    suppressed: ScheduleIndex
    """Copies of messages (deduplicated); never delivered."""
    limit: Key = KEY_HIGHEST
    """Of the keys up to this one these are all rows; what is behind it has to be read again."""

    def take(self, indices: NDArray[np.intp]) -> LoadedRows:
        """The rows at `indices`."""
        return LoadedRows(self.due_ms[indices], self.sequence[indices], self.rows[indices], self.suppressed)


class Loader:
    """Fills the wheel from schedule_log."""

    def __init__(
        self,
        schedule: ScheduleLog,
        book: WindowBook,
        recorder: OutcomeRecorder,
        wheel: GroupWheels,
        cursors: LoadCursors,
        fs: FileSystem,
        settings: WheelSettings,
        window_ms: int,
        clock: Clock,
    ) -> None:
        self._schedule = schedule
        self._book = book
        self._recorder = recorder
        self._wheel = wheel
        self._cursors = cursors
        self._inline = fs.inline
        self._settings = settings
        self._window_ms = window_ms
        self._clock = clock
        self._wake = trio.Event()
        self.rows_elsewhere: Callable[[], int] = lambda: 0
        self.make_room: Callable[[], None] = lambda: None
        self.on_added: Callable[[], None] = lambda: None
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        self.not_done_elsewhere: Callable[[int, NDArray[np.int64]], NDArray[np.bool_]] = _all
        self.maybe_attempted: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]] = _none
        self.result_unknown: Callable[[NDArray[np.int64]], NDArray[np.bool_]] = lambda rows: np.zeros(
            len(rows), dtype=bool
        )
        self.not_dispatched: Callable[[NDArray[np.int64]], NDArray[np.bool_]] = lambda rows: np.ones(
            len(rows), dtype=bool
        )
        self.has_replayed: Callable[[I64], NDArray[np.bool_]] = lambda sequence: np.ones(len(sequence), dtype=bool)
        self.has_published = self.has_replayed
        self._waits_for_room = False
        self._damaged: dict[int, int] = {}
        self._unreadable: set[int] = set()
        self.loads = 0
        self.evictions = 0

    def wake_if_room(self) -> None:
        """Memory was freed: a window that was loaded in part may go on."""
        if self._waits_for_room and not self._still_short():
            self._wake.set()

    def ends(self, window_ms: int) -> dict[str, int]:
        """Where the files of a window end now, by source."""
        return {source.name: self._schedule.end(ScheduleKey(window_ms, source)) for source in FINE_SOURCES}

    def wake(self) -> None:
        """There may be something to load now: records of a window nobody loads yet, or room in memory."""
        self._wake.set()

    def has_brought(self, rows: NDArray[Any], due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Which of these index rows of the wheel memory has, or had until they were released: no load brings them again
        before their part of the window is evicted."""
        here = np.zeros(len(rows), dtype=bool)
        # A record begins below its blobs, and the next one begins behind them.
        offset = rows["ids_offset"] - 1
        code = rows["window_ms"] * 4 + rows["source"]
        for value in np.unique(code).tolist():
            mine = np.flatnonzero(code == value)
            here[mine] = self._cursors.holds(
                value // 4, Source(value % 4).name, offset[mine], due_ms[mine], sequence[mine]
            )
        return here

    @property
    def room(self) -> int:
        """Rows that memory may still take."""
        return self._settings.rows_max - len(self._wheel) - self.rows_elsewhere()

    @property
    def is_short(self) -> bool:
        """Whether there is too little room for a load."""
        return self.room <= self._settings.rows_max // 4

    def _still_short(self) -> bool:
        """Whether there is no room for a load, also after whoever holds more than its share has given it back."""
        if self.is_short:
            self.make_room()
        return self.is_short

    async def run(self) -> None:
        """Load until cancelled."""
        while True:
            self._wake = trio.Event()
            window = self._next_window()
            if window is not None and window not in self._unreadable and self._still_short():
                self._put_before_later(window)
            self._waits_for_room = window is not None and self._still_short()
            if window is not None and not self._waits_for_room:
                await self._load(window)
                continue
            with trio.move_on_after(1):
                await self._wake.wait()

    def _next_window(self) -> int | None:
        """The earliest window that has something to load, or will soon get its first records."""
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms + self._settings.load_ahead_ms
        now_us = self._clock.monotonic_us()
        self._damaged = {window: until for window, until in self._damaged.items() if until > now_us}
        for window in self._book.incomplete_before(ahead_ms):
            if window in self._damaged:
                continue
            if not self._cursors.is_loading(window) and not self._cursors.is_loaded(window):
                return window
        following = self._cursors.next_unloaded(now_ms, ahead_ms)
        while following in self._damaged:
            following = self._cursors.next_unloaded(following + self._window_ms, ahead_ms)
        return following

    async def _load(self, window_ms: int) -> None:
        ends = self.ends(window_ms)
        ticket = self._cursors.begin_load(window_ms, ends, None)
        try:
            if any(ends.values()):
                async with self._recorder.pinned(DispatchKey(window_ms, False)) as index:
                    rows_max = self._settings.rows_max
                    read = partial(self.read, window_ms, ticket.end_offsets, ticket.from_key, ticket.to_key, rows_max)
                    loaded = read() if self._inline else await trio.to_thread.run_sync(read)
                    # One step from here on: what the index knows now is all that was decided.
                    if loaded.limit < KEY_HIGHEST:
                        self.evict_after(loaded.limit)
                    self._record_suppressed(window_ms, loaded, index)
                    undone = index.missing(loaded.sequence) & self._recorder.not_held(loaded.sequence)
                    undone &= self._cursors.covers(ticket, loaded.due_ms, loaded.sequence)
                    undone &= self.not_done_elsewhere(window_ms, loaded.sequence)
                    # What was released already may be loaded once more after an eviction, or by a refill: it has left.
                    undone &= self.not_dispatched(loaded.sequence)
                    self._add(self.mark_unknown(loaded.take(np.flatnonzero(undone))))
        except CorruptionError as error:
            self.on_corruption(error)
            self._cursors.abandon_load(ticket)
            # The other windows go on; somebody may repair this one meanwhile.
            self._damaged[window_ms] = self._clock.monotonic_us() + DAMAGED_AGAIN_US
            self._unreadable.add(window_ms)
            return
        except BaseException:
            self._cursors.abandon_load(ticket)
            raise
        self._cursors.finish_load(ticket)
        self._unreadable.discard(window_ms)
        self.loads += 1
        self.on_added()

    def read(
        self, window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> LoadedRows:
        """Read the rows of a window's files below `ends` with keys in (from_key, to_key]; of each file about `rows_max`."""
        now_us = self._clock.now_us()
        limit = KEY_HIGHEST
        parts = []
        suppressed = []
        for source in FINE_SOURCES:
            end = ends.get(source.name, 0)
            if not end:
                continue
            index = self._index(ScheduleKey(window_ms, source), end, from_key, to_key, rows_max)
            if rows_max is not None and len(index) >= rows_max:
                last = np.lexsort((index.sequence, index.due_ms))[-1]
                limit = min(limit, Key(int(index.due_ms[last]), int(index.sequence[last])))
            original = index.duplicate_of == 0
            if not original.all():
                suppressed.append(index.take(np.flatnonzero(~original)))
                index = index.take(np.flatnonzero(original))
            rows = make_rows(index, window_ms, source, now_us)
            rows["uncertain"] = self.maybe_attempted(index.sequence, index.due_ms)
            parts.append((index.due_ms, index.sequence, rows))
        copies = ScheduleIndex.concatenate(suppressed)
        if len(parts) == 1:
            return LoadedRows(*parts[0], copies, limit)
        return LoadedRows(
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
            copies,
            limit,
        )

    def mark_unknown(self, loaded: LoadedRows) -> LoadedRows:
        """The same rows; those that left memory after an attempt without an answer are uncertain again."""
        loaded.rows["uncertain"][self.result_unknown(loaded.sequence)] = 1
        return loaded

    def _index(self, key: ScheduleKey, end: int, from_key: Key, to_key: Key, rows_max: int | None) -> ScheduleIndex:
        """What can be served is: damage is reported, and the records around it are loaded (rule 11)."""
        damages: list[Damage] = []
        try:
            index = self._schedule.index(
                key, None, end, from_key=_plain(from_key), to_key=_plain(to_key), rows_max=rows_max, damages=damages
            )
        except FormatError as error:
            raise CorruptionError(error.path, 0, error.detail) from error
        for damage in damages:
            self.on_corruption(CorruptionError(self._schedule.path(key), damage.start, damage.detail))
        return index

    def _record_suppressed(self, window_ms: int, loaded: LoadedRows, index: OutcomeIndex) -> None:
        """A crash can lose the outcome row of a suppressed copy: its verdict stands in the schedule file."""
        copies = loaded.suppressed
        lost = index.missing(copies.sequence) & self.not_done_elsewhere(window_ms, copies.sequence)
        # Of a round of the message_log the publisher records them; of a day's rows it leaves them to the load that has them.
        lost &= self.has_replayed(copies.sequence)
        if lost.any():
            self._recorder.record(suppressed_outcomes(copies.take(np.flatnonzero(lost)), self._clock.now_us()))

    def _add(self, loaded: LoadedRows) -> None:
        """Add what memory can hold of a load, the earliest first; the rest is a later load's again."""
        room = max(self.room, 1)
        if len(loaded.sequence) > room:
            order = np.lexsort((loaded.sequence, loaded.due_ms))[:room]
            loaded = loaded.take(order)
            self.evict_after(Key(int(loaded.due_ms[-1]), int(loaded.sequence[-1])))
        self.add(loaded)

    def add(self, loaded: LoadedRows) -> None:
        """Put rows into the wheel."""
        if len(loaded.sequence):
            self._wheel.add(np.ascontiguousarray(loaded.due_ms), np.ascontiguousarray(loaded.sequence), loaded.rows)

    def evict_after(self, key: Key) -> None:
        """Drop everything behind `key` from memory; it is loaded again when there is room."""
        self._wheel.evict_after(key.due_ms, key.sequence)
        self._cursors.evict_after(key)
        self.evictions += 1

    def bound(self) -> None:
        """Called after rows went straight to the wheel: past the bound, drop the far end."""
        if self.room < 0:
            self.make_room()
        if self.room >= 0:
            return
        self._evict(KEEP_SHARE, self._clock.now_ms())

    def _put_before_later(self, window_ms: int) -> None:
        """A window that comes late, with messages that are due already or soon, does not wait behind later ones."""
        end_ms = window_ms + self._window_ms
        in_queues = self.rows_elsewhere() >= int(self._settings.rows_max * LATE_SHARE)  # it would not fit all the same
        if not in_queues and self._wheel.rows_below(end_ms) < len(self._wheel):
            self._evict(LATE_SHARE, max(end_ms - 1, self._clock.now_ms()))

    def _evict(self, share: float, low_ms: int) -> None:
        """Keep about this share of what memory can hold, the earliest rows, and all that is due up to `low_ms`."""
        keep = int(self._settings.rows_max * share) - self.rows_elsewhere()
        low, high = low_ms, self._clock.now_ms() + 2 * self._settings.load_ahead_ms
        while low < high:  # the latest due time up to which `keep` rows suffice
            middle = (low + high + 1) // 2
            if self._wheel.rows_below(middle + 1) <= keep:
                low = middle
            else:
                high = middle - 1
        self.evict_after(Key(low, (1 << 62)))


def _all(_window_ms: int, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.ones(len(sequence), dtype=bool)


def _none(sequence: NDArray[np.int64], _due_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.zeros(len(sequence), dtype=bool)


def suppressed_outcomes(copies: ScheduleIndex, now_us: int) -> OutcomeBatch:
    """Outcome rows for suppressed copies: `deduplicated`, with the sequence of the original."""
    return OutcomeBatch.filled(
        len(copies),
        sequence=copies.sequence,
        due_ms=copies.due_ms,
        accepted_us=copies.accepted_us,
        settled_us=now_us,
        origin_sequence=copies.duplicate_of,
        subject=copies.subject,
        outcome=int(Outcome.DEDUPLICATED),
    )


def _plain(key: Key) -> tuple[int, int]:
    return key.due_ms, key.sequence
