"""The state of the days: beyond the fine horizon a day is coarse (one file), then sealed, then drained into minutes.

    coarse ──seal at sequence S──▶ sealed (draining) ──minutes synced──▶ drained

The state is durable before the first direct record of a sealed day is written: sequences up to S belong to the day file,
later ones to the minutes. It is a small file, replaced atomically; `fine_until_ms` only ever grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import msgpack
import numpy as np
from numpy.typing import NDArray

from store.batches import I64
from store.errors import CorruptionError, FormatError
from store.filesystem import FileSystem, read_whole, write_atomically
from store.windows import DAY_MS, TIME_MS_MAX, day_of, day_starts

DAYS_VERSION = 1


@dataclass(frozen=True, slots=True)
class SealedDay:
    """A day with a coarse file: its records end with `sequence`; `drained` says the minutes have them, synced."""

    start_ms: int
    sequence: int
    drained: bool


class DayTable:
    """Which tier a record belongs to, decided by durable state and never by the clock."""

    def __init__(self, fs: FileSystem, path: str, fine_until_ms: int, sealed: dict[int, SealedDay]) -> None:
        self._fs = fs
        self._path = path
        self._sealed = sealed
        self.fine_until_ms = fine_until_ms
        self.version = 0

    @classmethod
    def open(cls, fs: FileSystem, path: str, fine_until_ms: int) -> DayTable:
        """Read the table, or make it with days before `fine_until_ms` fine. Raises CorruptionError, FormatError."""
        if not fs.exists(path):
            table = cls(fs, path, day_of(fine_until_ms), {})
            table._save(table.fine_until_ms, {})
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
            return cls(fs, path, _number(value["fine_until_ms"]), sealed)
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            # Four zero bytes, which a disk can leave, carry the right checksum of nothing.
            raise CorruptionError(path, 4, f"the table of days makes no sense: {error!r}") from error

    @classmethod
    def rebuild(cls, fs: FileSystem, path: str, fine_until_ms: int, sealed: list[SealedDay]) -> DayTable:
        """Replace a lost table by what the files of the days tell. Durable when this returns."""
        table = cls(fs, path, fine_until_ms, {day.start_ms: day for day in sealed})
        table._save(table.fine_until_ms, table._sealed)
        return table

    def _save(self, fine_until_ms: int, sealed: dict[int, SealedDay]) -> None:
        """Durable first, then known: on a full disk (DiskFullError) the table stays as it was."""
        rows = [(day.start_ms, day.sequence, day.drained) for day in sealed.values()]
        payload: bytes = msgpack.packb(
            {"version": DAYS_VERSION, "fine_until_ms": fine_until_ms, "sealed": sorted(rows)}
        )
        write_atomically(self._fs, self._path, google_crc32c.value(payload).to_bytes(4, "little") + payload)
        self.fine_until_ms, self._sealed = fine_until_ms, sealed
        self.version += 1

    def coarse_rows(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_] | None:
        """True where a record of the message_log goes to its day file; None where no row does (the common case)."""
        # A day a day is sealed, and none is forgotten: a replay of what message_log has kept may need few of them.
        first = int(sequence.min())
        sealed = [day for day in self._sealed.values() if day.sequence >= first]
        if int(due_ms.max()) < self.fine_until_ms and not sealed:
            return None
        mask: NDArray[np.bool_] = due_ms >= self.fine_until_ms
        if sealed:
            days = day_starts(due_ms)
            for day in sealed:
                mask |= (days == day.start_ms) & (sequence <= day.sequence)
        return mask if bool(mask.any()) else None

    def is_coarse(self, due_ms: int) -> bool:
        """Whether the day of this due time is not sealed yet."""
        return due_ms >= self.fine_until_ms

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

    def seal(self, fine_until_ms: int, last_sequence: int, days_with_files: list[int]) -> None:
        """Move the fine tier on to `fine_until_ms`: the coarse days before it end with `last_sequence`. Durable."""
        if fine_until_ms <= self.fine_until_ms:
            return
        near = [start_ms for start_ms in days_with_files if self.fine_until_ms <= start_ms < fine_until_ms]
        sealed = {start_ms: SealedDay(start_ms, last_sequence, False) for start_ms in near}
        self._save(fine_until_ms, self._sealed | sealed)

    def drained(self, start_ms: int) -> None:
        """The minutes of this day have all its records, synced. Durable when this returns."""
        day = self._sealed[start_ms]
        self._save(self.fine_until_ms, self._sealed | {start_ms: SealedDay(day.start_ms, day.sequence, True)})

    def forget(self, start_ms: int) -> None:
        """No replay can meet a record of this day file any more: its entry may go."""
        if start_ms in self._sealed:
            self._save(self.fine_until_ms, {day: kept for day, kept in self._sealed.items() if day != start_ms})


def _sealed_day(start_ms: object, sequence: object, drained: object) -> SealedDay:
    """One row of the file. Raises ValueError, TypeError."""
    start = _number(start_ms)
    if start > TIME_MS_MAX or start % DAY_MS or type(drained) is not bool:
        raise ValueError(f"({start_ms!r}, {sequence!r}, {drained!r}) is no sealed day")
    return SealedDay(start, _number(sequence), drained)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no time and no sequence")
    return value
