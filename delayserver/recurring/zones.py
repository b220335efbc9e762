"""Zones, and the changes of their clocks. The rules of a zone are those of `zoneinfo`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.wall_time import DAY, WALL_MAX

REACH: Final = 2 * DAY
"""No wall time is farther from its moment in UTC, not even one that a change of a whole day moves."""
_CHUNK: Final = 366 * DAY
# Two changes of a zone are days apart, also where Morocco's clock goes back for Ramadan. A test asks all zones.
_PROBE: Final = DAY
_CHUNKS_KEPT: Final = 4096
_EARLIEST: Final = -62_135_596_800 + REACH


@dataclass(frozen=True, slots=True)
class ClockChange:
    """At second `at`, counted from 1970 UTC, the offset from UTC changes."""

    at: int
    before: int
    after: int

    @property
    def length(self) -> int:
        """How many seconds of wall time the change leaves out or repeats."""
        return abs(self.after - self.before)

    @property
    def is_gap(self) -> bool:
        """The clock goes forward and leaves wall times out; else it goes back and repeats some."""
        return self.after > self.before


@dataclass(frozen=True)
class Zone:
    """A zone by its name."""

    name: str
    info: ZoneInfo

    @classmethod
    def named(cls, name: str) -> Zone:
        """Raises `RecurrenceInvalid` with the nearest name."""
        try:
            return cls(name, ZoneInfo(name))
        except (KeyError, ValueError, OSError):
            known = {each.lower(): each for each in sorted(available_timezones())}
        nearest = get_close_matches(name.lower()[:64], known, n=1)
        hint = (
            f"did you mean {known[nearest[0]]}?" if nearest else "write a name of the IANA list, such as Europe/Berlin"
        )
        raise RecurrenceInvalid("zone", f"{name[:64]!r} is no zone: {hint}")

    def changes_around(self, second: int) -> tuple[ClockChange | None, int, ClockChange | None, int]:
        """The last change at `second` or before, the offset, the next change, and the second up to which that is known.

        A change that is more than a year away may be missing.
        """
        changes, first = _around(self.info, second // _CHUNK)
        end = (second // _CHUNK + 2) * _CHUNK - REACH
        at = bisect_right(changes, second, key=_at)
        before = changes[at - 1] if at else None
        after = changes[at] if at < len(changes) else None
        return before, before.after if before else first, after, end

    def offset_at(self, second: int) -> int:
        """The offset from UTC, in seconds."""
        return _offset(self.info, second)


def _at(change: ClockChange) -> int:
    return change.at


@lru_cache(_CHUNKS_KEPT)
def _around(info: ZoneInfo, chunk: int) -> tuple[tuple[ClockChange, ...], int]:
    """The changes of a chunk and of those beside it, and the offset before them."""
    changes = [each for number in (chunk - 1, chunk, chunk + 1) for each in _changes(info, number)]
    return tuple(changes), _offset(info, (chunk - 1) * _CHUNK)


@lru_cache(_CHUNKS_KEPT)
def _changes(info: ZoneInfo, chunk: int) -> tuple[ClockChange, ...]:
    """The changes behind the first second of a chunk, up to the first one of the next."""
    found, before = [], _offset(info, chunk * _CHUNK)
    for second in range(chunk * _CHUNK + _PROBE, (chunk + 1) * _CHUNK + 1, _PROBE):
        after = _offset(info, second)
        if after != before:
            found.append(ClockChange(_first_after(info, second - _PROBE, second, after), before, after))
            before = after
    return tuple(found)


def _first_after(info: ZoneInfo, low: int, high: int, after: int) -> int:
    """The first second behind `low` with the offset `after`, which `high` has."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(info, middle) == after else (middle, high)
    return high


def _offset(info: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(min(max(second, _EARLIEST), WALL_MAX), info).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds
