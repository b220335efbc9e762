"""The state of the days: beyond the fine horizon a day is coarse (one file), then sealed, then drained into minutes.

    coarse ──seal at sequence S──▶ sealed (draining) ──minutes synced──▶ drained
       └────all of it is overdue──▶ whole

The state is durable before the first direct record of a sealed day is written: sequences up to S belong to the day file,
later ones to the minutes. A day that is overdue as a whole when its turn comes stays in one file for good: all its messages,
also later ones, belong to the day file, and their outcomes to the outcome file of the day. That is durable before the
first delivery from it. The table is a small file, replaced atomically; `fine_until_ms` only ever grows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import google_crc32c
import msgpack
import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import DAY_MS, TIME_MS_MAX, day_of, day_starts, window_starts
from store.records.batches import I64

# Version 2 is written where days are whole; a table without any stays readable for older programs.
DAYS_VERSION = 2


@dataclass(frozen=True, slots=True)
class SealedDay:
    """A day with a coarse file: its records end with `sequence`; `drained` says the minutes have them, synced."""

    start_ms: int
    sequence: int
    drained: bool


class DayTable:
    """Which tier a record belongs to, decided by durable state and never by the clock."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        fine_until_ms: int,
        sealed: dict[int, SealedDay],
        whole: Collection[int] = (),
        *,
        shared: bool = False,
    ) -> None:
        self._fs = fs
        self.shared = shared
        self._path = path
        self._sealed = sealed
        self._whole = frozenset(whole)
        self._whole_ms = np.array(sorted(self._whole), np.int64)
        self.fine_until_ms = fine_until_ms
        self.version = 0

    @classmethod
    def open(cls, fs: FileSystem, path: str, fine_until_ms: int, *, shared: bool = False) -> DayTable:
        """Read the table, or make it with days before `fine_until_ms` fine. `shared`: the directory is that of a member of a
        cluster. Raises CorruptionError, FormatError."""
        if not fs.exists(path):
            table = cls(fs, path, day_of(fine_until_ms), {}, shared=shared)
            table._save(table.fine_until_ms, {}, frozenset())
            return table
        data = read_whole(fs, path)
        if len(data) < 4 or google_crc32c.value(data[4:]) != int.from_bytes(data[:4], "little"):
            raise CorruptionError(path, 0, "checksum of the table of days")
        try:
            value = msgpack.unpackb(data[4:])
            if value["version"] > DAYS_VERSION:
                raise FormatError(
                    path, f"format version {value['version']} is newer than this program's {DAYS_VERSION}"
                )
            sealed = {start_ms: _sealed_day(start_ms, *rest) for start_ms, *rest in value["sealed"]}
            whole = {_start(start_ms) for start_ms in (value["whole"] if value["version"] > 1 else ())}
            if not whole.isdisjoint(sealed):
                raise ValueError("a day is sealed and whole")
            return cls(fs, path, _number(value["fine_until_ms"]), sealed, whole, shared=shared)
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            # Four zero bytes, which a disk can leave, carry the right checksum of nothing.
            raise CorruptionError(path, 4, f"the table of days makes no sense: {error!r}") from error

    @classmethod
    def rebuild(
        cls, fs: FileSystem, path: str, fine_until_ms: int, sealed: list[SealedDay], whole: Collection[int] = ()
    ) -> DayTable:
        """Replace a lost table by the state that the files of the days show. Durable when this returns."""
        table = cls(fs, path, fine_until_ms, {day.start_ms: day for day in sealed}, whole)
        table._save(table.fine_until_ms, table._sealed, table._whole)
        return table

    def _save(self, fine_until_ms: int, sealed: dict[int, SealedDay], whole: frozenset[int]) -> None:
        """Durable first, then known: on a full disk (DiskFullError) the table stays as it was."""
        rows = [(day.start_ms, day.sequence, day.drained) for day in sealed.values()]
        value = {"version": 1, "fine_until_ms": fine_until_ms, "sealed": sorted(rows)}
        if whole:
            value |= {"version": DAYS_VERSION, "whole": sorted(whole)}
        payload: bytes = msgpack.packb(value)
        write_atomically(self._fs, self._path, google_crc32c.value(payload).to_bytes(4, "little") + payload)
        self.fine_until_ms, self._sealed = fine_until_ms, sealed
        if whole != self._whole:
            self._whole, self._whole_ms = whole, np.array(sorted(whole), np.int64)
        self.version += 1

    def coarse_rows(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_] | None:
        """True where a record of the message_log goes to its day file; None where no row does (the common case)."""
        # A day a day is sealed, and none is forgotten: a replay of what message_log has kept may need few of them.
        first = int(sequence.min())
        sealed = [day for day in self._sealed.values() if day.sequence >= first]
        mask = self.in_day_files(due_ms)
        if mask is None and not sealed:
            return None
        if mask is None:
            mask = np.zeros(len(due_ms), dtype=bool)
        if sealed:
            days = day_starts(due_ms)
            for day in sealed:
                mask |= (days == day.start_ms) & (sequence <= day.sequence)
        return mask if bool(mask.any()) else None

    def in_day_files(self, due_ms: I64) -> NDArray[np.bool_] | None:
        """True where all messages of the day lie in its file, whatever their sequences; None where no row does."""
        mask: NDArray[np.bool_] = due_ms >= self.fine_until_ms
        if self._whole and int(due_ms.min(initial=1 << 62)) < int(self._whole_ms[-1]) + DAY_MS:
            mask |= np.isin(day_starts(due_ms), self._whole_ms)
        return mask if bool(mask.any()) else None

    def is_coarse(self, due_ms: int) -> bool:
        """Whether outcomes of messages with this due time belong to the file of their day: it is not sealed, or whole."""
        return due_ms >= self.fine_until_ms or (bool(self._whole) and day_of(due_ms) in self._whole)

    def is_whole(self, start_ms: int) -> bool:
        """Whether the day that starts then is delivered from its own file."""
        return start_ms in self._whole

    def whole(self) -> list[int]:
        """Starts of the whole days, ascending."""
        starts: list[int] = self._whole_ms.tolist()
        return starts

    def start_of(self, due_ms: int, window_ms: int) -> int:
        """The start of the whole day of a due time, or else of its window."""
        day_ms = day_of(due_ms)
        return day_ms if day_ms in self._whole else due_ms - due_ms % window_ms

    def starts_of(self, due_ms: I64, window_ms: int) -> I64:
        """`start_of` for each, i64[n]."""
        starts = window_starts(due_ms, window_ms)
        if not self._whole or not len(due_ms) or int(due_ms.min()) >= int(self._whole_ms[-1]) + DAY_MS:
            return starts
        days = day_starts(due_ms)
        return np.where(np.isin(days, self._whole_ms), days, starts)

    def draining(self) -> list[SealedDay]:
        """Sealed days whose minutes are not complete yet, earliest first."""
        return sorted([day for day in self._sealed.values() if not day.drained], key=lambda day: day.start_ms)

    def is_draining(self, due_ms: int) -> bool:
        """Whether the day of this due time is sealed but not drained."""
        day = self._sealed.get(day_of(due_ms))
        return day is not None and not day.drained

    def is_drained(self, start_ms: int) -> bool:
        """Whether this day had a coarse file and its minutes have all of it."""
        day = self._sealed.get(start_ms)
        return day is not None and day.drained

    def seal(
        self, fine_until_ms: int, last_sequence: int, days_with_files: list[int], whole: Collection[int] = ()
    ) -> None:
        """Move the fine tier on to `fine_until_ms`: the coarse days before it end with `last_sequence`, but those that are
        to be `whole`. Durable."""
        if fine_until_ms <= self.fine_until_ms:
            return
        near = [start_ms for start_ms in days_with_files if self.fine_until_ms <= start_ms < fine_until_ms]
        sealed = {start_ms: SealedDay(start_ms, last_sequence, False) for start_ms in near if start_ms not in whole}
        self._save(fine_until_ms, self._sealed | sealed, self._whole.union([day for day in near if day in whole]))

    def mark_drained(self, start_ms: int) -> None:
        """Records that the minutes of this day have all its records, synced. Durable when this returns."""
        day = self._sealed[start_ms]
        sealed = self._sealed | {start_ms: SealedDay(day.start_ms, day.sequence, True)}
        self._save(self.fine_until_ms, sealed, self._whole)

    def forget(self, start_ms: int) -> None:
        """Removes the entry of a day file of which no replay can meet a record any more."""
        if start_ms in self._sealed:
            kept = {day: sealed for day, sealed in self._sealed.items() if day != start_ms}
            self._save(self.fine_until_ms, kept, self._whole)


def _sealed_day(start_ms: object, sequence: object, drained: object) -> SealedDay:
    """One row of the file. Raises ValueError, TypeError."""
    if type(drained) is not bool:
        raise ValueError(f"({start_ms!r}, {sequence!r}, {drained!r}) is no sealed day")
    return SealedDay(_start(start_ms), _number(sequence), drained)


def _start(start_ms: object) -> int:
    start = _number(start_ms)
    if start > TIME_MS_MAX or start % DAY_MS:
        raise ValueError(f"{start_ms!r} is no start of a day")
    return start


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no time and no sequence")
    return value
