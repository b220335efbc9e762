"""Brings the near future into the wheel: window by window, ahead of time, and no more than memory may hold.

Moving the `loading` cursor and capturing the ends of the window's files is one step on the event loop (`begin_load`);
what lies below those ends is read here, what comes later goes from the replayer straight to the wheel. Rows that have an
outcome, written or not, stay out. Past the bound of memory the far end is dropped and read again when there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import WheelSettings
from delayserver.load.turns import (
    NEAR_MS,
    NEAR_SHARE,
    SOON_MS,
    LoadTurn,
    NearFuture,
    near_room,
    near_share,
    overdue_room,
    room_beside_near,
    room_beside_overdue,
)
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.runtime import Runtime
from delayserver.state.attempted import Attempted
from delayserver.state.decided import Decided
from delayserver.state.group_wheels import GroupWheels
from delayserver.state.positions import Positions
from delayserver.state.rows import make_rows
from delayserver.state.window_book import WindowBook
from store.errors import CorruptionError, DiskError, FormatError, UnreadableError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import ScheduleIndex, ScheduleKey, ScheduleLog, Source
from store.logs.windows import day_starts, window_of
from store.records.batches import I64, OutcomeBatch
from store.records.scan import Damage
from wheel.cursors import LoadCursors
from wheel.keys import KEY_HIGHEST, Key, key_order
from wheel.window_cursor import LoadTicket

# After an eviction this much of the bound is kept, so that the next few rows do not evict again.
KEEP_SHARE = 0.75
# Rows that a load adds to memory in one step: some 15 ms of work. A million rows in one step held up everybody for a second.
STEP_ROWS = 16_384
# Overdue windows are read many at a time, up to these bounds: of a small one the file costs more than its rows.
RUN_WINDOWS_MAX = 256
RUN_BYTES_MAX = 16 << 20
# Overdue windows wait so long for queues to empty. Then the near future, which memory holds in part, has to make room.
# The loader looks so often whether it is time for the next part of the near future.
NEAR_LOOK_MS = 250
# A window whose file is damaged is looked at again after this long.
DAMAGED_AGAIN_US = 60_000_000
# And after this long where the disk refused to open or read the file: that may be over soon.
REFUSED_AGAIN_US = 1_000_000
# So often a window waits where the disk cannot read some of its bytes; then what stands around them is loaded.
READ_TRIES = 3
FAILED_READS_MAX = 1024


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

    def parts(self, rows_max: int) -> Iterator[LoadedRows]:
        """The rows in key order, at most `rows_max` at a time, at least one part. `limit` of a part is the last key of
        it, and KEY_HIGHEST for the last one."""
        if len(self.sequence) <= rows_max:
            yield LoadedRows(self.due_ms, self.sequence, self.rows, self.suppressed)
            return
        order = key_order(self.due_ms, self.sequence)
        for start in range(0, len(self.sequence), rows_max):
            place = slice(start, start + rows_max) if order is None else order[start : start + rows_max]
            due_ms, sequence = self.due_ms[place], self.sequence[place]
            last = start + rows_max >= len(self.sequence)
            limit = KEY_HIGHEST if last else Key(int(due_ms[-1]), int(sequence[-1]))
            yield LoadedRows(due_ms, sequence, self.rows[place], self.suppressed, limit)

    @classmethod
    def concatenate(cls, parts: Sequence[LoadedRows]) -> LoadedRows:
        """The rows of all parts (at least one), in order; without their copies and limits."""
        opaque = np.dtype((np.void, parts[0].rows.dtype.itemsize))
        return cls(
            np.concatenate([part.due_ms for part in parts]),
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.rows.view(opaque) for part in parts]).view(parts[0].rows.dtype),
            parts[0].suppressed,
        )

    def take(self, indices: NDArray[np.intp]) -> LoadedRows:
        """The rows at `indices`."""
        return LoadedRows(self.due_ms[indices], self.sequence[indices], self.rows[indices], self.suppressed)


@dataclass(frozen=True, slots=True)
class _Many:
    """What a read of several windows found: their rows, side by side, and what is wrong with the others."""

    windows: list[int]
    loaded: list[LoadedRows]
    damaged: dict[int, CorruptionError | DiskError]

    def leave_out(self, window_ms: int) -> None:
        """Forget the rows of a window."""
        place = self.windows.index(window_ms)
        del self.windows[place], self.loaded[place]


class Loader:
    """Fills the wheel from schedule_log."""

    def __init__(
        self,
        schedule: ScheduleLog,
        book: WindowBook,
        decided: Decided,
        wheel: GroupWheels,
        cursors: LoadCursors,
        attempted: Attempted,
        positions: Positions,
        settings: WheelSettings,
        window_ms: int,
        runtime: Runtime,
    ) -> None:
        self._schedule = schedule
        self._book = book
        self._decided = decided
        self._wheel = wheel
        self._cursors = cursors
        self._attempted = attempted
        self._positions = positions
        self._workers = runtime.workers
        self._settings = settings
        self._window_ms = window_ms
        self._clock = runtime.clock
        self._wake = trio.Event()
        self.rows_elsewhere: Callable[[], int] = lambda: 0
        self.make_room: Callable[[], None] = lambda: None
        self._damage = runtime.damage
        self.not_dispatched: Callable[[I64, I64], NDArray[np.bool_]] = lambda due_ms, _sequence: np.ones(
            len(due_ms), dtype=bool
        )
        # Rows of room that a load waits for, None if none does.
        self._room_wanted: int | None = None
        self._damaged: dict[int, int] = {}
        self._unreadable: set[int] = set()
        # How often the disk could not read some bytes of a window, since its last load.
        self._failed_reads: dict[int, int] = {}
        self.loads = 0
        self.evictions = 0

    def wake_if_room(self) -> None:
        """Memory was freed: a window that was loaded in part may go on."""
        if self._room_wanted is not None and not self._still_short(self._room_wanted):
            self._wake.set()

    def ends(self, window_ms: int) -> dict[str, int]:
        """Where the files of a window end now, by source."""
        return {file.source.name: self._schedule.end(file) for file in self._book.files(window_ms)}

    def outcome_file(self, window_ms: int) -> DispatchKey:
        """The dispatch file of a window."""
        return self._book.outcome_file(window_ms)

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
        return self.room <= near_room(self._settings.rows_max)

    def _still_short(self, wanted: int) -> bool:
        """Whether there is no more room than `wanted`, also after whoever holds more than its share has given it back."""
        if self.room <= wanted and self.is_short:
            self.make_room()
        return self.room <= wanted

    async def run(self) -> None:
        """Load until cancelled. What becomes due now comes first: fresh messages do not wait for overdue windows. Nor do
        these wait for the rest of a near window that memory cannot hold (`load/turns.py`)."""
        short_since_us: int | None = None
        while True:
            self._wake = trio.Event()
            now_us = self._clock.monotonic_us()
            self._damaged = {window: until for window, until in self._damaged.items() if until > now_us}
            overdue = self._overdue_windows()
            near = self._near_window(only_now=bool(overdue))
            near_waits = bool(overdue) and near is not None and self._may_wait(near)
            windows = overdue if near is None or near_waits else [near]
            rows_max = self._settings.rows_max
            wanted = overdue_room(rows_max) if windows is overdue else near_room(rows_max)
            short = bool(windows) and windows[0] not in self._unreadable and self._still_short(wanted)
            short_since_us = None if not short else now_us if short_since_us is None else short_since_us
            if short_since_us is not None and now_us >= short_since_us + NEAR_LOOK_MS * 1000 * near_waits:
                self._put_before_later(windows[-1])
            self._room_wanted = wanted if windows and self._still_short(wanted) else None
            if windows and self._room_wanted is None:
                if windows is overdue:  # what memory holds of the near future stays
                    turn = LoadTurn(room_beside_near(rows_max) if near_waits else 0, self._book.end(windows[-1]))
                else:
                    turn = LoadTurn(room_beside_overdue(rows_max, self.room) if overdue else 0)
                if len(windows) == 1:
                    await self._load(windows[0], turn)
                else:
                    await self._load_many(windows, turn)
                continue
            with trio.move_on_after(NEAR_LOOK_MS / 1000 if near_waits else 1):
                await self._wake.wait()

    def _may_wait(self, near: int) -> bool:
        """Whether the next part of a near window may wait for overdue windows."""
        now_ms = self._clock.now_ms()
        loaded_to_ms = max(self._cursors.loaded_limit(near).due_ms, near)
        ahead = NearFuture(loaded_to_ms, len(self._wheel) - self._wheel.rows_below(now_ms + 1))
        return ahead.may_wait(now_ms, near_share(self._settings.rows_max) - self.rows_elsewhere())

    def _near_window(self, *, only_now: bool) -> int | None:
        """The first window from now on that has something to load, or will soon get its first records."""
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms + (min(NEAR_MS, self._settings.load_ahead_ms) if only_now else self._settings.load_ahead_ms)
        following = self._cursors.next_unloaded(now_ms, ahead_ms)
        # The minutes of a whole day have no files; only its first one bears the cursor of the day.
        while following is not None and (following in self._damaged or self._book.start_of(following) != following):
            following = self._cursors.next_unloaded(following + self._window_ms, ahead_ms)
        return following

    def _overdue_windows(self) -> list[int]:
        """The first overdue windows that have something to load, as many as are read at once: at least one, if there is
        any."""
        windows: list[int] = []
        rows = size = 0
        for window in self._book.incomplete_before(window_of(self._clock.now_ms(), self._window_ms)):
            if window in self._damaged or self._cursors.is_loading(window) or self._cursors.is_loaded(window):
                continue
            rows += self._book.rows(window)
            size += sum(self.ends(window).values())
            if windows and (rows > STEP_ROWS or size > RUN_BYTES_MAX):
                break
            windows.append(window)
            if len(windows) == RUN_WINDOWS_MAX:
                break
        return windows

    async def _load(self, window_ms: int, turn: LoadTurn) -> None:
        ends = self.ends(window_ms)
        ticket = self._cursors.begin_load(window_ms, ends, None)
        try:
            if any(ends.values()):
                async with self._decided.pinned(self.outcome_file(window_ms)) as index:
                    rows_max = self._settings.rows_max
                    read = partial(self.read, window_ms, ticket.end_offsets, ticket.from_key, ticket.to_key, rows_max)
                    loaded = await self._workers.run(read)
                    if loaded.limit < KEY_HIGHEST:
                        self._drop_behind(loaded.limit, turn)
                    self._record_suppressed(window_ms, loaded, index.missing(loaded.suppressed.sequence))
                    for part in loaded.parts(STEP_ROWS):
                        self._add_undone(window_ms, ticket, part, index, turn)
                        if part.limit < KEY_HIGHEST:
                            await trio.lowlevel.checkpoint()
        except (CorruptionError, DiskError) as error:
            self._abandon(window_ms, ticket, error)
            return
        except BaseException:
            # Some parts may be in memory; all keys of the ticket have to be a later load's again.
            self.evict_after(max(ticket.from_key, Key(window_ms - 1, 1 << 62)))
            self._cursors.abandon_load(ticket)
            raise
        self._cursors.finish_load(ticket)
        self._unreadable.discard(window_ms)
        self._failed_reads.pop(window_ms, None)
        self.loads += 1

    def _abandon(self, window_ms: int, ticket: LoadTicket, error: CorruptionError | DiskError) -> None:
        """The other windows go on; somebody may repair this one meanwhile."""
        self._damage.report(error)
        self._cursors.abandon_load(ticket)
        self._damaged[window_ms] = self._clock.monotonic_us() + again_us(error)
        self._unreadable.add(window_ms)

    async def _load_many(self, windows: list[int], turn: LoadTurn) -> None:
        """Load small windows together: one step takes their ends, one read in a thread, and one step adds their rows."""
        tickets = {window: self._cursors.begin_load(window, self.ends(window), None) for window in windows}
        try:
            async with AsyncExitStack() as stack:
                indexes: dict[int, OutcomeIndex] = {}
                for window in filter(self._decided.has_file, windows):
                    try:
                        pinned = self._decided.pinned(self.outcome_file(window))
                        indexes[window] = await stack.enter_async_context(pinned)
                    except (CorruptionError, DiskError) as error:
                        self._abandon(window, tickets.pop(window), error)
                read = partial(self._read_many, tickets)
                found = await self._workers.run(read)
                for window, damage in found.damaged.items():
                    self._abandon(window, tickets.pop(window), damage)
                # One step from here on: what the indexes and the outcomes in memory know now is all that was decided.
                for window in [window for window in found.windows if window not in indexes]:
                    if self._decided.has_file(window):  # it was made meanwhile: the next load asks it
                        self._cursors.abandon_load(tickets.pop(window))
                        found.leave_out(window)
                if found.windows:
                    self._add_undone_of_many(found, tickets, indexes, turn)
        except BaseException:
            self.evict_after(Key(windows[0] - 1, 1 << 62))
            for ticket in tickets.values():
                self._cursors.abandon_load(ticket)
            raise
        for window, ticket in tickets.items():
            self._cursors.finish_load(ticket)
            self._unreadable.discard(window)
            self._failed_reads.pop(window, None)
        self.loads += len(tickets)

    def _read_many(self, tickets: Mapping[int, LoadTicket]) -> _Many:
        found = _Many([], [], {})
        for window, ticket in tickets.items():
            try:
                loaded = self.read(window, ticket.end_offsets, ticket.from_key, ticket.to_key)
            except (CorruptionError, DiskError) as error:
                found.damaged[window] = error
            else:
                found.windows.append(window)
                found.loaded.append(loaded)
        return found

    def _add_undone_of_many(
        self, found: _Many, tickets: Mapping[int, LoadTicket], indexes: Mapping[int, OutcomeIndex], turn: LoadTurn
    ) -> None:
        masks = []
        for window, loaded in zip(found.windows, found.loaded, strict=True):
            index = indexes.get(window)
            copies = loaded.suppressed
            if len(copies) and index is None:
                missing = self._decided.is_unknown(copies.due_ms, copies.sequence)
                self._record_suppressed(window, loaded, missing)
            elif len(copies) and index is not None:
                self._record_suppressed(window, loaded, index.missing(copies.sequence))
            undone = np.ones(len(loaded.sequence), dtype=bool)
            if index is not None and len(index):
                undone &= index.missing(loaded.sequence)
            if not self._cursors.covers_all(tickets[window]):
                undone &= self._cursors.covers(tickets[window], loaded.due_ms, loaded.sequence)
            masks.append(undone)
        loaded = LoadedRows.concatenate(found.loaded)
        undone = np.concatenate(masks)
        days = day_starts(loaded.rows["window_ms"])
        for day in np.unique(days).tolist():
            mine = np.flatnonzero(days == day)
            undone[mine] &= self._decided.overlays.not_done(day, loaded.sequence[mine])
        undone &= self._decided.is_unknown(loaded.due_ms, loaded.sequence)
        undone &= self._decided.holds.not_held(loaded.sequence)
        undone &= self.not_dispatched(loaded.due_ms, loaded.sequence)
        self._add(self.mark_unknown(loaded.take(np.flatnonzero(undone))), turn)

    def _add_undone(
        self, window_ms: int, ticket: LoadTicket, loaded: LoadedRows, index: OutcomeIndex, turn: LoadTurn
    ) -> None:
        """Add the rows of a part that are still to be delivered. One step: what the index knows now is all that was
        decided."""
        undone = index.missing(loaded.sequence) & self._decided.holds.not_held(loaded.sequence)
        undone &= self._cursors.covers(ticket, loaded.due_ms, loaded.sequence)
        undone &= self._decided.overlays.not_done(window_ms, loaded.sequence)
        # What was released already may be loaded once more after an eviction, or by a refill: it has left.
        undone &= self.not_dispatched(loaded.due_ms, loaded.sequence)
        self._add(self.mark_unknown(loaded.take(np.flatnonzero(undone))), turn)

    def read(
        self, window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> LoadedRows:
        """Read the rows of a window's files below `ends` with keys in (from_key, to_key]; of each file about `rows_max`.

        Raises CorruptionError and DiskError of a file; UnreadableError the first times that the disk cannot read some of
        the rows, since it may read them soon. After that, and where the bytes are wrong, the rows around them are read.
        """
        now_us = self._clock.now_us()
        limit = KEY_HIGHEST
        parts = []
        suppressed = []
        for name, end in ends.items():
            if not end:
                continue
            source = Source[name]
            index = self._index(ScheduleKey(window_ms, source), end, from_key, to_key, rows_max)
            if rows_max is not None and len(index) >= rows_max:
                last = np.lexsort((index.sequence, index.due_ms))[-1]
                limit = min(limit, Key(int(index.due_ms[last]), int(index.sequence[last])))
            original = index.duplicate_of == 0
            if not original.all():
                suppressed.append(index.take(np.flatnonzero(~original)))
                index = index.take(np.flatnonzero(original))
            rows = make_rows(index, window_ms, source, now_us)
            rows["uncertain"] = self._attempted.maybe(index.sequence, index.due_ms)
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
        self._attempted.mark(loaded.sequence, loaded.rows)
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
            if damage.errno and self._may_read_soon(key.start_ms):
                raise damage.error(self._schedule.path(key))
            self._damage.report(damage.error(self._schedule.path(key)))
        return index

    def _may_read_soon(self, window_ms: int) -> bool:
        """Whether the disk failed to read this window fewer times than it takes to believe it."""
        failed = self._failed_reads.pop(window_ms, 0) + 1
        self._failed_reads[window_ms] = failed
        if len(self._failed_reads) > FAILED_READS_MAX:
            del self._failed_reads[next(iter(self._failed_reads))]
        return failed < READ_TRIES

    def _record_suppressed(self, window_ms: int, loaded: LoadedRows, missing: NDArray[np.bool_]) -> None:
        """A crash can lose the outcome row of a suppressed copy: its verdict stands in the schedule file."""
        copies = loaded.suppressed
        lost = missing & self._decided.overlays.not_done(window_ms, copies.sequence)
        # Of a round of the message_log the publisher records them; of a day's rows it leaves them to the load that has them.
        lost &= self._positions.has_replayed(copies.sequence)
        if lost.any():
            self._decided.add(suppressed_outcomes(copies.take(np.flatnonzero(lost)), self._clock.now_us()))

    def _add(self, loaded: LoadedRows, turn: LoadTurn) -> None:
        """Add what memory can hold of a load, the earliest first, and at least one row; the rest is a later load's again."""
        room = max(self.room - turn.leave_rows, 1)
        if len(loaded.sequence) > room:
            order = np.lexsort((loaded.sequence, loaded.due_ms))[:room]
            loaded = loaded.take(order)
            self._drop_behind(Key(int(loaded.due_ms[-1]), int(loaded.sequence[-1])), turn)
        self.add(loaded)

    def _drop_behind(self, key: Key, turn: LoadTurn) -> None:
        """A load ends at this key: what is behind it is a later load's again."""
        if turn.until_ms is None:
            self.evict_after(key)
            return
        self._wheel.evict_between(key.due_ms, key.sequence, turn.until_ms)
        self._cursors.evict_between(key, turn.until_ms)
        self.evictions += 1

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
        keep_ms = max(self._book.end(window_ms) - 1, self._clock.now_ms() + SOON_MS)
        in_queues = self.rows_elsewhere() >= near_share(self._settings.rows_max)  # it would not fit all the same
        if not in_queues and self._wheel.rows_below(keep_ms + 1) < len(self._wheel):
            self._evict(NEAR_SHARE, keep_ms)

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


def again_us(error: Exception) -> int:
    """How long rows wait before their file is read again, after it could not be read for this reason."""
    return REFUSED_AGAIN_US if isinstance(error, (DiskError, UnreadableError)) else DAMAGED_AGAIN_US


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
