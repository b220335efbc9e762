"""Finds orphans: outcomes whose message is in no schedule file any more, because a crash or damage took it.

By counts alone they would pass for outcomes of other messages of the window, which would then never be loaded. So a
start compares sequences wherever a window or a coarse day may have lost rows. Orphans of a day are noted for the window
to which they will move. Neither orphans nor their messages count in the balance. Reads files; may run in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from delayserver.logs.events import EventLogger
from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.windows.window_book import WindowBook
from store.errors import CorruptionError, FormatError
from store.logs.dispatch_log import DispatchKey, DispatchLog, count_outcomes
from store.logs.due_windows import day_of, window_starts
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.logs.open_rows import without_row
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, MessageBatch, OutcomeBatch
from store.tables.checkpoint import Checkpoint
from store.tables.checkpoint_marks import dispatch_marks, schedule_marks

events = EventLogger()

_FINE = (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY)
# Outcomes that are looked up in a file at a time. A day may have millions.
_FIND_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Orphans:
    """The orphaned outcomes in some files, one per message, by sequence; and the files that cannot be read at all."""

    outcomes: OutcomeBatch
    unreadable: set[DispatchKey]


def orphans_in(schedule: ScheduleLog, dispatch: DispatchLog, keys: Iterable[DispatchKey], window_ms: int) -> Orphans:
    """Searches these dispatch files for orphans.

    Messages in damaged records count as present as long as the file counts them, so damage alone makes no orphans.
    """
    parts = [OutcomeBatch.filled(0)]
    unreadable = set()
    for key in keys:
        try:
            settled = _one_each(dispatch.outcomes(key, damages=[]))
            parts.append(
                _of_day(schedule, key, settled, window_ms) if key.coarse else _of_window(schedule, key, settled)
            )
        except (CorruptionError, FormatError):  # a reader that needs the file reports it
            unreadable.add(key)
    # While a day is drained, an outcome may be in the files of the day and of the minute.
    return Orphans(_one_each(OutcomeBatch.concatenate(parts)), unreadable)


def _one_each(outcomes: OutcomeBatch) -> OutcomeBatch:
    _, first = np.unique(outcomes.sequence, return_index=True)
    return outcomes.take(first)


def _of_window(schedule: ScheduleLog, key: DispatchKey, settled: OutcomeBatch) -> OutcomeBatch:
    if not len(settled):
        return settled
    files = [ScheduleKey(key.start_ms, source) for source in _FINE]
    placed = [_sequences(schedule, file) for file in files]
    counted = sum([schedule.rows(file) for file in files])
    if sum([len(sequences) for sequences in placed]) > counted:
        # A record with damaged bytes at the opening of the file is not counted, although its columns can be read. So
        # its outcomes must not count either.
        placed = [_verified(schedule, file) for file in files]
    unreadable = counted - sum([len(sequences) for sequences in placed])
    unknown = settled.take(np.flatnonzero(without_row(settled.sequence, placed)))
    # While a day is drained, its minutes may lack rows that a crash took. They come again from the day's file.
    unknown = _not_in(schedule, ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY), unknown)
    return unknown.slice(min(max(unreadable, 0), len(unknown)), len(unknown))


def _of_day(schedule: ScheduleLog, key: DispatchKey, settled: OutcomeBatch, window_ms: int) -> OutcomeBatch:
    unknown = _not_in(schedule, ScheduleKey(key.start_ms, ScheduleSource.DAY), settled, hidden=True)
    starts = window_starts(unknown.due_ms, window_ms)
    parts = [OutcomeBatch.filled(0)]
    for start in np.unique(starts).tolist():  # minutes that are drained already, if the day's file is gone
        mine = unknown.take(np.flatnonzero(starts == start))
        parts.append(_not_in(schedule, ScheduleKey(start, ScheduleSource.FROM_DAY), mine))
    return OutcomeBatch.concatenate(parts)


def _not_in(schedule: ScheduleLog, file: ScheduleKey, outcomes: OutcomeBatch, *, hidden: bool = False) -> OutcomeBatch:
    """The outcomes whose messages are not in the file. With `hidden`, a message that damage may hide is present."""
    parts = [OutcomeBatch.filled(0)]
    for first in range(0, len(outcomes), _FIND_ROWS):
        some = outcomes.slice(first, min(first + _FIND_ROWS, len(outcomes)))
        found = schedule.find(file, some.sequence)
        parts.append(some.take(np.flatnonzero(~(found.mask | found.hidden if hidden else found.mask))))
    return OutcomeBatch.concatenate(parts)


def _sequences(schedule: ScheduleLog, key: ScheduleKey) -> I64:
    sequences: I64 = schedule.read_columns(key, ("sequence",), damages=[])["sequence"]
    return sequences


def _verified(schedule: ScheduleLog, key: ScheduleKey) -> I64:
    """The sequences in records that verify as a whole."""
    parts = [batch.sequence for _, batch in schedule.batches(key, damages=[])]
    return np.concatenate([np.zeros(0, np.int64), *parts])


# -- at a start


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Corrections of the balance at a start: `outcomes` to subtract from the totals, one per row. `accepted` messages
    and `internal` records are added to the accepted ones; they may be negative."""

    outcomes: OutcomeBatch
    accepted: int
    internal: int


class OrphanSearch:
    """Finds the orphans of a newly opened directory after its replay is complete."""

    def __init__(
        self, files: Files, checkpoint: Checkpoint, book: WindowBook, window_ms: int, runtime: Runtime
    ) -> None:
        self._checkpoint = checkpoint
        self._log = files.log
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._days = files.days
        self._book = book
        self._window_ms = window_ms
        self._workers = runtime.workers

    async def find(self, has_retired: Callable[[int], bool], *, everywhere: bool) -> Uncounted:
        """Notes orphans in the book, so that they do not count for other messages of their windows.

        Returns the corrections of the balance. `has_retired`: True if the ledger has a window. `everywhere`: search all
        windows."""
        book, table = self._book, self._checkpoint.orphans
        kept = {} if table is None else dict(zip(table.start_ms.tolist(), table.rows.tolist(), strict=True))
        book.note_orphans(kept)
        suspects = book.suspects(
            schedule_marks(self._checkpoint.schedule),
            self._doubtful(kept),
            everywhere=everywhere or table is None or bool(self._log.damages),
        )
        found = await self._workers.run(partial(orphans_in, self._schedule, self._dispatch, suspects, self._window_ms))
        # Windows that cannot be searched now keep their previous counts.
        unsaid = {start: rows for start, rows in kept.items() if not found.unreadable.isdisjoint(_files_of(start))}
        starts = self._days.starts_of(found.outcomes.due_ms, self._window_ms)
        windows, rows = np.unique(starts, return_counts=True)
        orphans = dict(zip(windows.tolist(), rows.tolist(), strict=True)) | unsaid
        book.note_orphans(orphans)
        self._tell(orphans, kept)
        # The ledger counts retired windows, also if they have files again.
        skipped = {start for start in {*kept, *orphans} if start in unsaid or has_retired(start)}
        outcomes = found.outcomes.take(np.flatnonzero(~np.isin(starts, list(skipped))))
        if table is None:  # only messages in the files were counted
            return Uncounted(outcomes, 0, 0)
        left = [start for start in kept if start not in skipped and self._files_there(start)]
        return Uncounted(outcomes, *await self._left_out(outcomes, sum([kept[start] for start in left])))

    def _tell(self, orphans: dict[int, int], kept: dict[int, int]) -> None:
        for start, count in orphans.items():
            if count != kept.get(start):
                path = next(map(self._dispatch.path, self._files_there(start)), f"window {start}")
                events.error(
                    "orphan_outcomes_found",
                    "{path}: {outcomes} outcomes of messages that no schedule file holds; the window is kept",
                    path=path,
                    outcomes=count,
                )

    def _files_there(self, start_ms: int) -> list[DispatchKey]:
        return [key for key in _files_of(start_ms) if key in self._dispatch]

    def _doubtful(self, kept: dict[int, int]) -> set[DispatchKey]:
        """Files of windows with damage or orphans, or with outcomes that the checkpoint does not cover. The messages of
        such outcomes may be lost (durability `os`)."""
        marks, dispatch, schedule = dispatch_marks(self._checkpoint.dispatch), self._dispatch, self._schedule
        doubtful = {key for key in dispatch.keys() if key not in marks or dispatch.end(key) > marks[key].end}
        doubtful |= {
            DispatchKey(key.start_ms, key.source == ScheduleSource.DAY)
            for key in [*(damage.key for damage in schedule.damages), *schedule.lost]
        }
        return doubtful.union(*map(_files_of, kept))

    async def _left_out(self, orphans: OutcomeBatch, before: int) -> tuple[int, int]:
        """The corrections of accepted messages and internal records for these orphans.

        `before` outcomes were orphans already, so their messages are not counted any more. Messages that came back with
        their file, which an operator found, are counted again."""
        counted = orphans.sequence <= self._checkpoint.replayed_sequence
        if not counted.all():  # messages that a loss of power also took from message_log were never counted
            replayed = await self._workers.run(partial(sequences_behind, self._log, self._checkpoint.replay_offset))
            counted |= np.isin(orphans.sequence, replayed)
        counted_orphans = orphans.take(np.flatnonzero(counted))
        more = len(counted_orphans) - before
        added = counted_orphans.slice(len(counted_orphans) - max(more, 0), len(counted_orphans))
        accepted, internal = count_outcomes(added).sum(axis=1).tolist()
        return max(-more, 0) - accepted, -internal


def _files_of(start_ms: int) -> tuple[DispatchKey, DispatchKey]:
    """The files that may hold outcomes of a window."""
    return DispatchKey(start_ms, False), DispatchKey(day_of(start_ms), True)


def sequences_behind(log: MessageLog, offset: int) -> I64:
    """The sequences of the readable messages in message_log behind a logical offset."""
    parts = [np.zeros(0, np.int64)]
    scan = LogScan(log, max(offset, log.first), log.synced)
    parts += [entry.batch.sequence for entry in scan if isinstance(entry.batch, MessageBatch)]
    return np.concatenate(parts)
