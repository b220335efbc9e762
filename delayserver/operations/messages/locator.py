"""Finds accepted messages in schedule_log by receipt or by id. Reads files, decides nothing; may run in a thread.

Damage is reported and read around. A message that damage may hide is marked `hidden`, not just missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.runtime import Runtime
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import day_of, day_starts, window_of, window_starts
from store.logs.schedule_log import FoundRows, ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import FLAG_PREPARED, I64, U32, MessageBatch
from store.records.message_name import MessageId, MessageName
from store.records.scan import Damage
from store.tables.days import DayTable

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Located:
    """The result for n messages: `found` bool[n], sequence `message` i64[n] and subject code `subject` u32[n].

    `message` is the sequence of the original if the message is a duplicate. Both are 0 where nothing was found.
    `hidden` bool[n]: not found, and damage of a file may be the reason. `prepared` bool[n]: `message` is a transaction."""

    found: NDArray[np.bool_]
    message: I64
    subject: U32
    hidden: NDArray[np.bool_]
    prepared: NDArray[np.bool_]

    def first(self, count: int) -> Located:
        """The first `count` messages."""
        return Located(*[column[:count] for column in self._columns()])

    def put(self, rows: NDArray[np.intp], found: Located) -> None:
        """Copies the results of some rows from another search."""
        for mine, theirs in zip(self._columns(), found._columns(), strict=True):
            mine[rows] = theirs

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.found, self.message, self.subject, self.hidden, self.prepared


@dataclass(frozen=True, slots=True)
class LocatedNames:
    """For each name the `sequence` of its message, and the reported damage that may hide it, or a newer one (`hidden`)."""

    sequence: dict[MessageName, int]
    hidden: dict[MessageName, CorruptionError]


@dataclass(frozen=True, slots=True)
class Bearer:
    """A message that bears an id; of a copy the original. `hidden`: it should bear it, and damage hides the bytes."""

    sequence: int
    due_ms: int
    hidden: bool = False


class Locator:
    """Searches all files that may hold a message."""

    def __init__(self, schedule: ScheduleLog, days: DayTable, window_ms: int, runtime: Runtime) -> None:
        self._schedule = schedule
        self._days = days
        self._window_ms = window_ms
        self._damage = runtime.damage

    def _files(self, start_ms: int) -> list[ScheduleKey]:
        """Files that may hold messages of a window, the most likely first."""
        files = [
            ScheduleKey(start_ms, ScheduleSource.DIRECT),
            ScheduleKey(start_ms, ScheduleSource.FROM_DAY),
            ScheduleKey(day_of(start_ms), ScheduleSource.DAY),
        ]
        return [file for file in files if file in self._schedule or self._schedule.hiding(file) is not None]

    def locate(self, sequence: I64, due_ms: I64) -> Located:
        """Finds messages by sequence and due time; both must agree. Internal records are not found."""
        while True:
            version = self._days.version
            located = self._locate(sequence, due_ms)
            # Meanwhile the event loop may have moved the rows of a day into minutes that were searched before.
            if version == self._days.version or bool(located.found.all()):
                return located

    def _locate(self, sequence: I64, due_ms: I64) -> Located:
        count = len(sequence)
        found = np.zeros(count, dtype=bool)
        message = np.zeros(count, dtype=np.int64)
        subject = np.zeros(count, dtype=np.uint32)
        prepared = np.zeros(count, dtype=bool)
        hidden = np.zeros(count, dtype=bool)
        for _, rows, hit, right in self._hits(sequence, due_ms):
            if hit is None:
                hidden[rows] = True
                continue
            hidden[rows] |= hit.hidden
            place = rows[right]
            found[place] = True
            copies = hit.duplicate_of[right]
            message[place] = np.where(copies != 0, copies, sequence[place])
            subject[place] = hit.subject[right]
            prepared[place] = hit.index.flags[right] & FLAG_PREPARED != 0
        copies = np.flatnonzero(found & (message != sequence))
        if len(copies):  # whether a message is a transaction is for the original to say
            prepared[copies] = False
            for _, rows, hit, right in self._hits(message[copies], due_ms[copies]):
                if hit is not None:
                    prepared[copies[rows[right]]] = hit.index.flags[right] & FLAG_PREPARED != 0
        return Located(found, message, subject, hidden & ~found, prepared)

    def bearers(self, wanted: Sequence[MessageId], sequence: I64, due_ms: I64) -> list[Bearer | None]:
        """For each of n messages that may bear the wanted id the message that counts. None: it bears another id, or is
        gone."""
        while True:
            version = self._days.version
            found = self._bearers(wanted, sequence, due_ms)
            if version == self._days.version or all(found):  # as in `locate`
                return found

    def _bearers(self, wanted: Sequence[MessageId], sequence: I64, due_ms: I64) -> list[Bearer | None]:
        found: list[Bearer | None] = [None] * len(sequence)
        for file, rows, hit, right in self._hits(sequence, due_ms):
            hidden = rows if hit is None else rows[hit.hidden]
            for row in hidden.tolist():
                found[row] = Bearer(int(sequence[row]), int(due_ms[row]), hidden=True)
            if hit is None or not right.any():
                continue
            mine = rows[right]
            ids = self._ids(file, np.unique(sequence[mine]))
            for row, copy in zip(mine.tolist(), hit.duplicate_of[right].tolist(), strict=True):
                own, name = int(sequence[row]), wanted[row]
                if own not in ids:
                    found[row] = Bearer(own, int(due_ms[row]), hidden=True)
                elif ids[own] == (name.subject, name.message_id):
                    found[row] = Bearer(copy or own, int(due_ms[row]))
        return found

    def _ids(self, file: ScheduleKey, sequence: I64) -> dict[int, tuple[int, bytes]]:
        """Subject and id of those messages of a file that can be read, by sequence."""
        rows = self._read(file, sequence, ids_only=True)
        ends = np.cumsum(rows.ids_length, dtype=np.int64)
        columns = zip(
            rows.sequence.tolist(), rows.subject.tolist(), ends.tolist(), rows.ids_length.tolist(), strict=True
        )
        return {own: (subject, bytes(rows.ids[end - length : end])) for own, subject, end, length in columns}

    def accepted_us(self, sequence: I64, due_ms: I64) -> I64:
        """When n messages were accepted, i64[n]; 0 where a message is not found."""
        accepted_us = np.zeros(len(sequence), np.int64)
        for _, rows, hit, right in self._hits(sequence, due_ms):
            if hit is not None:
                accepted_us[rows[right]] = hit.index.accepted_us[right]
        return accepted_us

    def _hits(self, sequence: I64, due_ms: I64) -> Iterator[tuple[ScheduleKey, Rows, FoundRows | None, Mask]]:
        """Searches each file that may hold these messages. Yields the file, the places searched for and the rows found.
        The rows are None if nothing of the file can be read. The mask is True for rows with the right due time."""
        starts = window_starts(due_ms, self._window_ms)
        coarse = self._days.in_day_files(due_ms)
        # All rows of a coarse or whole day are in one file, so one search covers all its minutes.
        units = starts if coarse is None else np.where(coarse, day_starts(due_ms), starts)
        for unit in np.unique(units).tolist():
            rows = np.flatnonzero(units == unit)
            for file in self._files(unit):
                hit = self._find(file, sequence[rows])
                if hit is None:
                    yield file, rows, None, np.zeros(len(rows), dtype=bool)
                    continue
                right = hit.mask & (hit.due_ms == due_ms[rows]) & (hit.origin_sequence == 0)
                yield file, rows, hit, right
                rows = rows[~right]
                if not len(rows):
                    break

    def _find(self, file: ScheduleKey, sequence: I64) -> FoundRows | None:
        """The rows of a file, or None if nothing of it can be read. Reports damage."""
        try:
            hit = self._schedule.find(file, sequence)
        except KeyError:  # retention or the draining of its day removed the file during the search
            return self._schedule.find(file, sequence)
        except (CorruptionError, FormatError) as error:
            self._told(error)
            return None
        for damage in hit.damages:
            self._damaged(file, damage)
        return hit

    def _damaged(self, file: ScheduleKey, damage: Damage) -> CorruptionError:
        return self._told(damage.error(self._schedule.path(file)))

    def _told(self, error: CorruptionError | FormatError) -> CorruptionError:
        if isinstance(error, FormatError):
            error = error.as_damage()
        self._damage.report(error)
        return error

    def rows_near(self, due_ms: Iterable[int]) -> int:
        """The number of rows that a search for ids at these times reads."""
        files = {file for due in due_ms for file in self._files(window_of(due, self._window_ms))}
        return sum([self._schedule.rows(file) for file in files])

    def by_ids(self, names: Iterable[MessageName]) -> LocatedNames:
        """Finds messages by ids. Scans the columns of each file that may hold some of them once.

        A reschedule to the same due time leaves the cancelled message in the file, so the last one with an id counts.
        """
        rest = list(dict.fromkeys(names))
        sequence: dict[MessageName, int] = {}
        hidden: dict[MessageName, CorruptionError] = {}
        while True:
            version = self._days.version
            located = self._by_ids(rest)
            sequence |= located.sequence
            hidden = {name: error for name, error in hidden.items() if name in sequence} | located.hidden
            rest = [name for name in rest if name not in sequence]
            if not rest or version == self._days.version:  # as in `locate`
                return LocatedNames(sequence, hidden)

    def _by_ids(self, names: Iterable[MessageName]) -> LocatedNames:
        wanted: dict[ScheduleKey, list[MessageName]] = {}
        for name in names:
            for file in self._files(window_of(name.due_ms, self._window_ms)):
                wanted.setdefault(file, []).append(name)
        last: dict[MessageName, int] = {}
        hidden: dict[MessageName, CorruptionError] = {}
        for file, theirs in wanted.items():
            damages: list[Damage] = []
            lost = self._schedule.hiding(file)
            if lost is not None:
                hidden |= dict.fromkeys(theirs, self._told(lost))
            try:
                found = self._schedule.find_ids(file, theirs, damages)
            except KeyError:  # as in `_find`
                continue
            except (CorruptionError, FormatError) as error:
                hidden |= dict.fromkeys(theirs, self._told(error))
                continue
            for name, sequence in found.last.items():
                last[name] = max(sequence, last.get(name, 0))
            for damage in damages:
                hidden |= dict.fromkeys(theirs, self._damaged(file, damage))
            for name, damage in found.hidden.items():
                hidden[name] = self._damaged(file, damage)
        return LocatedNames(last, hidden)

    def read_first(self, sequence: I64, due_ms: I64, bytes_max: int) -> tuple[int, MessageBatch]:
        """Reads the first of n messages, about `bytes_max` bytes of them, at least one. Reports damage and skips it.
        Returns how many messages were tried, and those that could be read, whole and in any order."""
        while True:
            version = self._days.version
            size, places = np.zeros(len(sequence), dtype=np.int64), []
            for file, rows, hit, right in self._hits(sequence, due_ms):
                if hit is not None:
                    size[rows[right]] = hit.index.blob_bytes()[right]
                    places.append((file, rows[right]))
            count = max(int(np.searchsorted(np.cumsum(size), bytes_max, side="right")), 1)
            parts = [self._read(file, sequence[rows[rows < count]]) for file, rows in places]
            if version == self._days.version:  # as in `locate`
                return count, MessageBatch.concatenate(parts) if parts else MessageBatch.filled(0)

    def read_internal(self, sequence: int, due_ms: int) -> MessageBatch:
        """Reads an internal record, whole; no row where it is not found. Reports damage."""
        while True:
            version = self._days.version
            start_ms = window_of(due_ms, self._window_ms)
            for file in self._files(start_ms):
                rows = self._read(file, np.array([sequence], np.int64))
                if len(rows):
                    return rows
            if version == self._days.version:  # as in `locate`
                return MessageBatch.filled(0)

    def _read(self, file: ScheduleKey, sequence: I64, *, ids_only: bool = False) -> MessageBatch:
        damages: list[Damage] = []
        read = self._schedule.read_ids if ids_only else self._schedule.read_rows
        try:
            rows = read(file, sequence, damages=damages)
        except KeyError:  # as in `_find`
            return MessageBatch.filled(0)
        except (CorruptionError, FormatError) as error:
            self._told(error)
            return MessageBatch.filled(0)
        for damage in damages:
            self._damaged(file, damage)
        return rows
