"""Removes what nobody needs any more, never by age alone: windows whose messages all have an outcome, message_log that is
replayed. Before a window goes its counts are in the ledger, synced, so the balance stays provable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.clock import Clock
from delayserver.deduplication import Deduplication
from delayserver.outcome_recorder import OutcomeRecorder
from delayserver.protocol.outcomes import Outcome
from delayserver.settings import StorageSettings
from delayserver.window_book import WindowBook
from store.batches import I64, U32, LedgerBatch
from store.dispatch_log import DispatchKey, DispatchLog
from store.errors import CorruptionError, DiskFullError, FormatError
from store.filesystem import FileSystem
from store.ledger import Ledger
from store.message_log import MessageLog
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from store.windows import window_of
from wheel.cursors import LoadCursors

INTERVAL_MS = 5_000
# After a ledger that could not be written anew: so long it stays as it is.
COMPACT_AGAIN_US = 600_000_000
_FINE = (Source.DIRECT, Source.FROM_DAY)
_COLUMNS = {
    "delivered": Outcome.DELIVERED,
    "cancelled": Outcome.CANCELLED,
    "expired": Outcome.EXPIRED,
    "deduplicated": Outcome.DEDUPLICATED,
    "dead_lettered": Outcome.DEAD_LETTERED,
}


class Retention:
    """Retires windows and segments."""

    def __init__(
        self,
        schedule: ScheduleLog,
        dispatch: DispatchLog,
        log: MessageLog,
        ledger: Ledger,
        book: WindowBook,
        cursors: LoadCursors,
        recorder: OutcomeRecorder,
        deduplication: Deduplication,
        fs: FileSystem,
        settings: StorageSettings,
        clock: Clock,
    ) -> None:
        self._schedule = schedule
        self._dispatch = dispatch
        self._log = log
        self._ledger = ledger
        self._book = book
        self._cursors = cursors
        self._recorder = recorder
        self._deduplication = deduplication
        self._inline = fs.inline
        self._settings = settings
        self._clock = clock
        retired = ledger.windows()
        self._closed_until_ms = int(retired[-1][0]) + settings.window_ms if len(retired) else 0
        self._segments_seen: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._compact_after_us = 0
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None
        self.durable_position: Callable[[], int] = lambda: 0
        self.is_draining: Callable[[int], bool] = lambda _start_ms: False
        self.on_retired: Callable[[list[int]], None] = lambda _windows: None
        # Windows of messages that were taken and not placed yet; and who is to ask for `oldest_due_ms` again.
        self.on_their_way: Callable[[], Awaitable[set[int]]] = _none
        self.on_closed: Callable[[], None] = lambda: None

    def oldest_due_ms(self) -> int:
        """Due times before this are refused (`too_old`): their window may be gone, and with it what tells copies."""
        oldest_by_age_ms = window_of(self._clock.now_ms() - self._settings.retention_ms, self._settings.window_ms)
        return max(oldest_by_age_ms, self._closed_until_ms)

    def are_retired(self, start_ms: int, sequence: I64) -> NDArray[np.bool_]:
        """Which of n messages of one window may have been retired with it, bool[n]. Damage in the ledger leaves that
        possible."""
        if not self._ledger.has(start_ms):
            return np.zeros(len(sequence), dtype=bool)
        try:
            retired: NDArray[np.bool_] = sequence <= self._ledger.last_sequence(start_ms)
        except CorruptionError as error:
            self.on_corruption(error)
            return np.ones(len(sequence), dtype=bool)
        return retired

    def retired_up_to(self, start_ms: int) -> int:
        """The last sequence that went with this window, 0 if it was never retired: a replay has nothing to do below."""
        return self._ledger.last_sequence(start_ms)

    def finish_interrupted(self) -> None:
        """A crash came between the ledger's entry and the removal of the files: remove what is left of them now."""
        starts = {key.start_ms for key in self._schedule.keys() if key.source != Source.DAY}
        starts |= {key.start_ms for key in self._dispatch.keys() if not key.coarse}
        for start in sorted(starts):
            if self._ledger.has(start) and self._last_known(start) <= self.retired_up_to(start):
                self._remove(start)

    def _last_known(self, start_ms: int) -> int:
        """As `_last_sequence`; a crash may have taken a late message from its schedule file and left its outcome."""
        try:
            outcomes = self._dispatch.outcomes(DispatchKey(start_ms, False), damages=[])
        except (CorruptionError, FormatError):
            return 1 << 62  # told by whoever needs the file; it is kept
        return max(self._last_sequence(start_ms), int(outcomes.sequence.max(initial=0)))

    def _last_sequence(self, start_ms: int) -> int:
        return max(self._schedule.last_sequence(ScheduleKey(start_ms, source)) for source in _FINE)

    def retired_totals(self) -> I64:
        """Outcome counts i64[16] of what was retired, without those that files still tell: a late message can keep a
        window's files past its entry in the ledger, and past a crash."""
        totals = np.zeros(16, dtype=np.int64)
        counts = self._ledger.totals()
        for name, code in _COLUMNS.items():
            totals[int(code)] = int(getattr(counts, name).sum())
        for key in self._dispatch.keys():
            if not key.coarse and self._ledger.has(key.start_ms):
                outcomes = self._dispatch.outcomes(key, damages=[])
                twice = outcomes.sequence <= self.retired_up_to(key.start_ms)
                twice &= (outcomes.origin_sequence == 0) | (outcomes.outcome == int(Outcome.DEDUPLICATED))
                totals -= np.bincount(outcomes.outcome[twice], minlength=16)
        return totals

    async def run(self) -> None:
        """Retire until cancelled."""
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            await self.retire_windows()
            await self.compact_ledger()
            self.retire_message_log()

    async def retire_windows(self) -> None:
        """One pass over complete windows past retention."""
        limit_ms = self._clock.now_ms() - self._settings.retention_ms - self._settings.window_ms
        starts = {
            key.start_ms for key in self._schedule.keys() if key.source != Source.DAY and key.start_ms <= limit_ms
        }
        # An empty minute has a cursor too, and nothing else would ever go with it.
        for start in self._cursors.windows(limit_ms):
            if start not in starts and not self._cursors.is_loading(start):
                self._cursors.forget(start)
        done = [start for start in sorted(starts) if self._may_go(start)]
        if not done:
            return
        # From here on nothing more is accepted for them, also if the clock goes back.
        self._closed_until_ms = max(self._closed_until_ms, done[-1] + self._settings.window_ms)
        self.on_closed()
        coming = await self.on_their_way()
        done = [start for start in done if start not in coming]
        await self._recorder.flush()
        # A late message may have come meanwhile, and may come while the files are read: none above these counts.
        last = {start: self._last_sequence(start) for start in done if self._may_go(start)}
        collect = partial(self._enter, last)
        if self._inline:
            collect()
        else:
            await trio.to_thread.run_sync(collect)
        self.on_retired([start for start in last if self._ledger.has(start) and self._remove(start)])

    async def compact_ledger(self) -> None:
        """Write the ledger anew where its many small records would hold up a start."""
        if not self._ledger.wants_compaction or self._clock.monotonic_us() < self._compact_after_us:
            return
        try:
            if self._inline:
                self._ledger.compact()
            else:
                await trio.to_thread.run_sync(self._ledger.compact)
        except (CorruptionError, DiskFullError) as error:
            self._compact_after_us = self._clock.monotonic_us() + COMPACT_AGAIN_US
            if isinstance(error, CorruptionError):
                self.on_corruption(error)

    def _may_go(self, start_ms: int) -> bool:
        if self.is_draining(start_ms) or start_ms in self._damaged:
            return False  # more of its messages are on their way from the day's file
        return self._book.is_complete(start_ms) and not self._cursors.is_loading(start_ms)

    def _enter(self, last: dict[int, int]) -> None:
        """Put the counts of windows, each up to its last sequence, into the ledger, synced: all, or those before the disk
        was full."""
        for start, last_sequence in last.items():
            try:
                self._ledger.append(self._count(start, last_sequence))
            except CorruptionError as error:
                self._damaged.add(start)  # what cannot be counted is not removed
                self.on_corruption(error)
                continue
            except DiskFullError:
                return  # the others keep their files, and a later pass comes back to them

    def _count(self, start_ms: int, last_sequence: int) -> LedgerBatch:
        """What the ledger will hold of a window: what it holds already, and the rows up to `last_sequence` that are not
        in it yet.

        Raises CorruptionError where rows and outcomes are not of the same messages: equal counts prove nothing then.
        """
        before, retired_to = self._ledger.window(start_ms), self.retired_up_to(start_ms)
        subjects = [before.subject]
        placed = [np.zeros(0, np.int64)]
        # Before the rows: each outcome has its row then.
        outcomes = self._dispatch.outcomes(DispatchKey(start_ms, False))
        for source in _FINE:
            key = ScheduleKey(start_ms, source)
            if key in self._schedule:
                columns = self._schedule.read_columns(key, ("sequence", "subject", "origin_sequence"))
                new = (columns["sequence"] > retired_to) & (columns["sequence"] <= last_sequence)
                subjects.append(columns["subject"][new & (columns["origin_sequence"] == 0)])
                placed.append(columns["sequence"][columns["sequence"] > retired_to])
        settled = outcomes.sequence[outcomes.sequence > retired_to]
        self._compare(start_ms, np.concatenate(placed), settled, last_sequence)
        codes = np.unique(np.concatenate(subjects))
        if not len(codes):
            codes = np.zeros(1, dtype=np.uint32)  # internal records only: the window is noted all the same
        places = np.searchsorted(codes, before.subject)
        balance = (outcomes.origin_sequence == 0) | (outcomes.outcome == int(Outcome.DEDUPLICATED))
        balance &= (outcomes.sequence > retired_to) & (outcomes.sequence <= last_sequence)

        def per_subject(name: str, values: U32) -> I64:
            counts = np.bincount(np.searchsorted(codes, values), minlength=len(codes)).astype(np.int64, copy=False)
            counts[places] += getattr(before, name)
            return counts

        counts = {
            name: per_subject(name, outcomes.subject[balance & (outcomes.outcome == int(code))])
            for name, code in _COLUMNS.items()
        }
        return LedgerBatch.filled(
            len(codes),
            subject=codes,
            start_ms=start_ms,
            accepted=per_subject("accepted", np.concatenate(subjects[1:]) if subjects[1:] else before.subject[:0]),
            last_sequence=max(retired_to, last_sequence),
            **counts,
        )

    def _compare(self, start_ms: int, placed: I64, settled: I64, last_sequence: int) -> None:
        orphaned, undone = np.setdiff1d(settled, placed), np.setdiff1d(placed[placed <= last_sequence], settled)
        if not len(orphaned) and not len(undone):
            return
        first = int(orphaned[0] if len(orphaned) else undone[0])
        key = DispatchKey(start_ms, False)
        raise CorruptionError(
            self._dispatch.path(key) if key in self._dispatch else f"window {start_ms}",
            0,
            f"{len(orphaned)} outcomes of messages that no schedule file holds, {len(undone)} messages without an outcome "
            f"(the first sequence {first}); the window is kept",
        )

    def _remove(self, start_ms: int) -> bool:
        """Remove what the ledger counts; whether it was all. A message that came after the entry keeps the files."""
        retired_to = self.retired_up_to(start_ms)
        for source in _FINE:
            key = ScheduleKey(start_ms, source)
            if key in self._schedule and not self._schedule.remove(key, retired_to):
                return False
        if DispatchKey(start_ms, False) in self._dispatch:
            self._dispatch.remove(DispatchKey(start_ms, False))
        self._recorder.forget(DispatchKey(start_ms, False))
        self._deduplication.forget(ScheduleKey(start_ms, Source.DIRECT))
        self._cursors.forget(start_ms)
        self._book.forget(start_ms)
        return True

    def retire_message_log(self) -> None:
        """Remove segments that a checkpoint has passed and that were sealed longer ago than their retention."""
        now_ms = self._clock.monotonic_us() // 1000  # a wall clock that was set back would hold all of them for as long
        limit = self.durable_position()
        below = 0
        for base, end, _ in self._log.segments()[:-1]:
            sealed_ms = self._segments_seen.setdefault(base, now_ms)
            if end > limit or now_ms - sealed_ms < self._settings.message_log_retention_ms:
                break
            below = end
        if below:
            self._log.retire(below)
            self._segments_seen = {base: seen for base, seen in self._segments_seen.items() if base >= below}


async def _none() -> set[int]:
    return set()
