"""Finds accepted messages in schedule_log by receipt or by id. Reads files, decides nothing; may run in a thread.

Damage is reported and read around; what it may hide is told apart from what was never there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.batches import I64, U32, MessageBatch
from store.days import DayTable
from store.errors import CorruptionError, FormatError
from store.id_hash import hash_id
from store.scan import Damage
from store.schedule_log import Found, ScheduleKey, ScheduleLog, Source
from store.windows import day_of, window_of, window_starts


@dataclass(frozen=True, slots=True)
class Located:
    """For n messages asked: `found` bool[n], the `message` each stands for (its own sequence, or that of the original
    it is a copy of; i64[n]) and its subject code u32[n]. Zeros where not found. `hidden` bool[n]: not found, and damage
    of a file may be the reason."""

    found: NDArray[np.bool_]
    message: I64
    subject: U32
    hidden: NDArray[np.bool_]

    def put(self, rows: NDArray[np.intp], found: Located) -> None:
        """Take over what was found of some rows elsewhere."""
        for mine, theirs in zip(self._columns(), found._columns(), strict=True):
            mine[rows] = theirs

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.found, self.message, self.subject, self.hidden


class Locator:
    """Looks into all files that may hold a message."""

    def __init__(self, schedule: ScheduleLog, days: DayTable, window_ms: int) -> None:
        self._schedule = schedule
        self._days = days
        self._window_ms = window_ms
        # Told of damage that was met; called in the thread that looks.
        self.on_corruption: Callable[[CorruptionError], None] = lambda _error: None

    def _files(self, start_ms: int) -> list[ScheduleKey]:
        """Files that may hold messages of a window, the likeliest first."""
        files = [
            ScheduleKey(start_ms, Source.DIRECT),
            ScheduleKey(start_ms, Source.FROM_DAY),
            ScheduleKey(day_of(start_ms), Source.DAY),
        ]
        return [file for file in files if file in self._schedule]

    def locate(self, sequence: I64, due_ms: I64) -> Located:
        """Messages by sequence and due time (both must agree). Internal records are nobody's to find."""
        while True:
            version = self._days.version
            located = self._locate(sequence, due_ms)
            # The file of a day may have gone meanwhile, on the event loop, and its rows to minutes looked into before.
            if version == self._days.version or bool(located.found.all()):
                return located

    def _locate(self, sequence: I64, due_ms: I64) -> Located:
        count = len(sequence)
        found = np.zeros(count, dtype=bool)
        message = np.zeros(count, dtype=np.int64)
        subject = np.zeros(count, dtype=np.uint32)
        hidden = np.zeros(count, dtype=bool)
        starts = window_starts(due_ms, self._window_ms)
        coarse = due_ms >= self._days.fine_until_ms
        # All rows of a coarse day are in one file: asked for together, whatever their minutes.
        units = np.where(coarse, due_ms // 86_400_000 * 86_400_000, starts)
        for unit in np.unique(units).tolist():
            rows = np.flatnonzero(units == unit)
            for file in self._files(unit):
                hit = self._find(file, sequence[rows])
                if hit is None:
                    hidden[rows] = True
                    continue
                hidden[rows] |= hit.hidden
                right = hit.mask & (hit.due_ms == due_ms[rows]) & (hit.origin_sequence == 0)
                place = rows[right]
                found[place] = True
                copies = hit.duplicate_of[right]
                message[place] = np.where(copies != 0, copies, sequence[place])
                subject[place] = hit.subject[right]
                rows = rows[~right]
                if not len(rows):
                    break
        return Located(found, message, subject, hidden & ~found)

    def _find(self, file: ScheduleKey, sequence: I64) -> Found | None:
        """The rows of a file, or None where nothing of it can be read."""
        try:
            hit = self._schedule.find(file, sequence)
        except KeyError:  # it went while it was looked at: by retention, or with a day that is drained
            return self._schedule.find(file, sequence)
        except (CorruptionError, FormatError) as error:
            self._told(error)
            return None
        for damage in hit.damages:
            self.on_corruption(CorruptionError(self._schedule.path(file), damage.start, damage.detail))
        return hit

    def _told(self, error: CorruptionError | FormatError) -> CorruptionError:
        if isinstance(error, FormatError):
            error = CorruptionError(error.path, 0, error.detail)
        self.on_corruption(error)
        return error

    def rows_near(self, due_ms: int) -> int:
        """How many rows a search for an id looks through."""
        return sum([self._schedule.rows(file) for file in self._files(window_of(due_ms, self._window_ms))])

    def by_id(self, subject: int, due_ms: int, message_id: bytes) -> int:
        """Sequence of the message with this id, 0 if there is none. Scans the columns of one window.

        Raises CorruptionError (told already) where there is none, and damage may hide it.

        A reschedule that keeps the due time leaves the cancelled message there as well: the last one is the one that lives.
        """
        while True:
            version = self._days.version
            last, hidden = self._by_id(subject, due_ms, message_id)
            if last or version == self._days.version:  # as in `locate`
                break
        if not last and hidden is not None:
            raise hidden
        return last

    def _by_id(self, subject: int, due_ms: int, message_id: bytes) -> tuple[int, CorruptionError | None]:
        wanted = hash_id(message_id)
        last = 0
        hidden: CorruptionError | None = None
        for file in self._files(window_of(due_ms, self._window_ms)):
            damages: list[Damage] = []
            try:
                found = self._schedule.find_ids(file, subject, due_ms, wanted, message_id, damages)
            except KeyError:  # as in `_find`
                continue
            except (CorruptionError, FormatError) as error:
                hidden = self._told(error)
                continue
            last = max(last, int(found.max(initial=0)))
            for damage in damages:
                hidden = self._told(CorruptionError(self._schedule.path(file), damage.start, damage.detail))
        return last, hidden

    def read(self, sequence: int, due_ms: int) -> MessageBatch | None:
        """One whole message. Raises CorruptionError (told already) where damage stands around it."""
        for file in self._files(window_of(due_ms, self._window_ms)):
            try:
                rows = self._schedule.read_rows(file, np.array([sequence], dtype=np.int64))
            except (CorruptionError, FormatError) as error:
                raise self._told(error) from error
            if len(rows):
                return rows
        return None
