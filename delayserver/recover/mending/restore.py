"""Puts messages back into schedule files, from message_log and from the files of days.

A schedule file becomes the union of its readable messages and those of message_log, in sequence order. So messages whose
message_log is retired stay. Each file is replaced at once, and the checkpoint forgets it before: an interrupted restore can
be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from delayserver.recover.mending.copies import mark_copies
from delayserver.recover.mending.mended_marks import Marks
from delayserver.recover.mending.rewriting import write_file
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Reader, log_parts
from delayserver.recover.reading.window_units import Units
from store.disk.filesystem import FileSystem
from store.logs.due_windows import DAY_MS, day_of, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.column_batch import ColumnBatch
from store.records.file_header import FILE_SCHEDULE, FileHeader
from store.records.record import RecordHeader

SIDE_FOLDER = "rebuild"


class Restore:
    """Puts messages back into schedule files."""

    def __init__(self, taken: Capture, marks: Marks, tell: Callable[[str], None]) -> None:
        self._taken = taken
        self._reader = Reader(taken)
        self._marks = marks
        self._units = Units(taken)
        self._tell = tell
        self._side_path = f"{taken.path}/{SIDE_FOLDER}"

    def run(self, codes: list[int]) -> None:
        """Restore the files of some units."""
        _clear(self._taken.fs, self._side_path)
        held = {key: self._sequences(key) for key in self._taken.files.schedule if self._unit_of(key) in codes}
        side = ScheduleLog(self._taken.fs, self._side_path, self._taken.server_id, self._taken.files.window_ms)
        try:
            for batch in self._logged(np.array(codes, np.int64)):
                self._set_aside(side, batch, held)
            self._marks.forget({self._taken.schedule_path(key) for key in [*held, *side.keys()]})
            for key in sorted({*held, *side.keys()}, key=lambda key: (key.start_ms, -key.source)):
                self._merge(side, key)
        finally:
            side.close()
            _clear(self._taken.fs, self._side_path)  # on a full disk, this is what filled it

    def fill_up(self, key: ScheduleKey) -> None:
        """Put the messages that a day gave to a minute back into it. The drain brings those behind its last sequence."""
        sequences = self._sequences(key)
        day = (self._of_window(batch, key.start_ms, sequences) for batch in self._valid(_day_key(key)))
        path = self._taken.schedule_path(key)
        self._marks.forget({path})
        header = FileHeader(FILE_SCHEDULE, self._taken.server_id, key.start_ms, self._taken.files.window_ms)
        lacking = (batch for batch in day if len(batch))
        self._taken.files.schedule[key] = write_file(self._taken.fs, path, header, merge(self._valid(key), lacking))
        self._tell(f"{path} is written anew: {len(self._sequences(key)) - len(sequences)} messages restored")

    def _of_window(self, batch: MessageBatch, start_ms: int, sequences: I64) -> MessageBatch:
        mine = window_starts(batch.due_ms, self._taken.files.window_ms) == start_ms
        mine &= batch.sequence < max(sequences.tolist()[-1:], default=0)
        return batch.take(np.flatnonzero(mine & ~self._units.is_retired(batch.due_ms, batch.sequence)))

    def _unit_of(self, key: ScheduleKey) -> int:
        if key.source == ScheduleSource.DIRECT:
            return key.start_ms * 2
        day = day_of(key.start_ms) * 2 + 1
        # While a day is drained its own file is the source, and the drain fills the minutes from it.
        drained = _day_key(key) not in self._taken.files.schedule
        return day if key.source == ScheduleSource.DAY or drained else -1

    def _sequences(self, key: ScheduleKey) -> I64:
        parts = [batch.sequence for batch in self._valid(key)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def _valid(self, key: ScheduleKey) -> Iterator[MessageBatch]:
        """The records of a schedule file that verify."""
        size = self._taken.files.schedule.get(key)
        if size is not None:
            yield from _messages(self._reader.batches(self._taken.schedule_path(key), size))

    def _logged(self, codes: I64) -> Iterator[MessageBatch]:
        """Messages of these units in message_log."""
        for part, _ in log_parts(self._taken):
            for batch in _messages(self._reader.batches(part.path, part.size)):
                of_row = self._units.codes_of(batch.due_ms, batch.sequence)
                retired = self._units.is_retired(batch.due_ms, batch.sequence)
                rows = np.flatnonzero(np.isin(of_row, codes) & ~retired)
                if len(rows):
                    yield batch if len(rows) == len(batch) else batch.take(rows)

    def _set_aside(self, side: ScheduleLog, batch: MessageBatch, held: dict[ScheduleKey, I64]) -> None:
        """Rows that their file lacks, into a file of the same name in the side folder."""
        for key, rows in self._by_file(batch):
            present = held.get(key)
            if present is not None and len(present):
                lacking = np.flatnonzero(~np.isin(rows.sequence, present))
                if not len(lacking):
                    continue
                rows = rows.take(lacking)  # noqa: PLW2901
            fresh = rows.sequence > side.last_sequence(key)
            if fresh.all():
                side.append(key, rows)
            elif fresh.any():
                side.append(key, rows.take(np.flatnonzero(fresh)))

    def _by_file(self, batch: MessageBatch) -> Iterator[tuple[ScheduleKey, MessageBatch]]:
        codes = self._units.codes_of(batch.due_ms, batch.sequence)
        for code in np.unique(codes).tolist():
            rows = batch.take(np.flatnonzero(codes == code))
            start = code >> 1
            if not code & 1:
                yield ScheduleKey(start, ScheduleSource.DIRECT), rows
            elif self._taken.tables.days is None or not self._taken.tables.days.is_drained(start):
                yield ScheduleKey(start, ScheduleSource.DAY), rows
            else:
                windows = window_starts(rows.due_ms, self._taken.files.window_ms)
                for window in np.unique(windows).tolist():
                    yield ScheduleKey(window, ScheduleSource.FROM_DAY), rows.take(np.flatnonzero(windows == window))

    def _merge(self, side: ScheduleLog, key: ScheduleKey) -> None:
        """The union of the old file and what was set aside, in the place of the old file."""
        path = self._taken.schedule_path(key)

        def restored() -> Iterator[MessageBatch]:
            return (batch for _, batch in side.batches(key)) if key in side else iter(())

        copies = mark_copies(self._taken, key, restored, self._valid)
        span_ms = DAY_MS if key.source == ScheduleSource.DAY else self._taken.files.window_ms
        header = FileHeader(FILE_SCHEDULE, self._taken.server_id, key.start_ms, span_ms)
        self._taken.files.schedule[key] = write_file(self._taken.fs, path, header, merge(self._valid(key), copies))
        self._tell(f"{path} is written anew: {side.rows(key) if key in side else 0} messages restored")


def _day_key(key: ScheduleKey) -> ScheduleKey:
    return ScheduleKey(day_of(key.start_ms), ScheduleSource.DAY)


def merge(first: Iterator[MessageBatch], second: Iterator[MessageBatch]) -> Iterator[MessageBatch]:
    """Two streams of batches in sequence order as one. Where both have a sequence, the row of `first` is kept."""
    left, right = next(first, None), next(second, None)
    last = 0
    while left is not None or right is not None:
        if left is None or right is None:
            part = left if left is not None else right
            left, right = (next(first, None), right) if left is not None else (None, next(second, None))
        else:
            limit = min(int(left.sequence[-1]), int(right.sequence[-1]))
            part, left, right = _up_to(left, right, limit)
            left = left if left is not None else next(first, None)
            right = right if right is not None else next(second, None)
        assert part is not None
        fresh = np.flatnonzero(part.sequence > last)
        if len(fresh):
            part = part if len(fresh) == len(part) else part.take(fresh)
            last = int(part.sequence[-1])
            yield part


def _up_to(
    left: MessageBatch, right: MessageBatch, limit: int
) -> tuple[MessageBatch, MessageBatch | None, MessageBatch | None]:
    """All rows up to a sequence, merged, and what is left of both."""
    parts, rests = [], []
    for batch in (left, right):
        cut = int(np.searchsorted(batch.sequence, limit, side="right"))
        parts.append(batch.slice(0, cut))
        rests.append(batch.slice(cut, len(batch)) if cut < len(batch) else None)
    joined = MessageBatch.concatenate([part for part in parts if len(part)])
    order = np.argsort(joined.sequence, kind="stable")
    ordered = joined.sequence[order]
    keep = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return joined.take(order[keep]), rests[0], rests[1]


def _messages(records: Iterator[tuple[RecordHeader, ColumnBatch]]) -> Iterator[MessageBatch]:
    return (batch for _, batch in records if isinstance(batch, MessageBatch))


def _clear(fs: FileSystem, folder: str) -> None:
    for day in fs.listdir(folder):
        for name in fs.listdir(f"{folder}/{day}"):
            fs.remove(f"{folder}/{day}/{name}")
        fs.remove_directory(f"{folder}/{day}")
    fs.remove_directory(folder)
