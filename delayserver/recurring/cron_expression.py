"""Cron expressions: five fields, six with seconds in front, or a name such as ``@daily``. `cronsim` parses them."""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from cronsim import CronSim, CronSimError

from delayserver.recurring.recurrence_errors import NeverFires, RecurrenceInvalid
from delayserver.recurring.wall_time import DAY, SEARCH_YEARS, date_of

NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
CHARACTERS_MAX: Final = 400
_FIELDS: Final = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day-of-month": (1, 31),
    "month": (1, 12),
    "day-of-week": (0, 7),
}
_EXAMPLE: Final = "write for example '0 9 * * 1-5': minute, hour, day of month, month, day of week"
# `cronsim` checks texts when it makes an iterator, which wants to begin somewhere.
_ANYWHERE: Final = datetime(2000, 1, 1)  # noqa: DTZ001 a wall time has no zone


@dataclass(frozen=True)
class CronDays:
    """The days of a cron expression. Writers: none, after it is made."""

    days: frozenset[int]
    """Of the month. `CronSim.LAST` is the last day, `CronSim.LAST_WEEKDAY` the last one from Monday to Friday."""
    weekdays: frozenset[int | tuple[int, int]]
    """0 and 7 are Sunday. A pair is a weekday and which one of the month; `CronSim.LAST` is the last one."""
    months: frozenset[int]
    both: bool
    """A day must match both fields. As in Vixie's cron, one of them begins with a star then; else either is enough."""

    def next_day(self, day: int) -> int | None:
        """The first matching day at `day`, or after it, in days since 1970. None if none comes within 400 years."""
        begin = date_of(day * DAY)
        year, month = begin.year, begin.month
        start, hidden = day - begin.day + 1, (1 << (begin.day - 1)) - 1
        for _ in range(SEARCH_YEARS * 12 + 1):
            weekday, length = monthrange(year, month)
            if month in self.months:
                days = self._days_of(weekday, length) & ~hidden
                if days:
                    return start + (days & -days).bit_length() - 1
            start, hidden = start + length, 0
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > 9998:
                return None
        return None

    def _days_of(self, weekday: int, length: int) -> int:
        """The matching days of a month by its first weekday and its length. Bit n is the day n + 1."""
        key = weekday * 32 + length
        days = self._months_known.get(key)
        if days is None:
            matching = [n for n in range(1, length + 1) if self._matches(n, (weekday + n - 1) % 7 + 1, length)]
            days = self._months_known[key] = sum(1 << (n - 1) for n in matching)
        return days

    @cached_property
    def _months_known(self) -> dict[int, int]:
        """The 28 kinds of months, as far as somebody asked for them."""
        return {}

    def _matches(self, number: int, weekday: int, length: int) -> bool:
        by_number = number in self.days or (number >= 26 and self._is_last(number, weekday, length))
        if by_number is not self.both:
            return by_number
        names = (weekday, weekday % 7)
        which = (number + 6) // 7
        return any(
            name in self.weekdays
            or (name, which) in self.weekdays
            or (number + 7 > length and (name, CronSim.LAST) in self.weekdays)
            for name in names
        )

    def _is_last(self, number: int, weekday: int, length: int) -> bool:
        if CronSim.LAST in self.days and number == length:
            return True
        # A Friday is the last working day also where one or two days of a weekend follow.
        working = number == length or (weekday == 5 and number + 2 >= length)
        return CronSim.LAST_WEEKDAY in self.days and weekday <= 5 and working


@dataclass(frozen=True)
class Cron:
    """A cron expression as a `WallRule`."""

    text: str
    days: CronDays
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    fixed: bool
    """No field of seconds, minutes or hours begins with a star: the expression names times of a day."""

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Raises `RecurrenceInvalid` with the field that is wrong, and `NeverFires` for a day like 31 February."""
        fields = _split(text)
        for name, part in zip(_FIELDS, fields, strict=True):
            _check_step(name, part)
        parsed = _parse(fields)
        return cls(
            text,
            CronDays(
                frozenset(parsed.days), frozenset(parsed.weekdays), frozenset(parsed.months), bool(parsed.day_and)
            ),
            tuple(sorted(parsed.hours)),
            tuple(sorted(parsed.minutes)),
            tuple(sorted(parsed.seconds)),
            not any(part.startswith("*") for part in fields[:3]),
        )

    def next_wall(self, wall: int) -> int | None:
        """The first matching wall time at `wall` or after it."""
        day, second = divmod(wall, DAY)
        found = self.days.next_day(day)
        if found == day:
            time = self._next_time(second)
            if time is not None:
                return day * DAY + time
            found = self.days.next_day(day + 1)
        return None if found is None else found * DAY + self._time(0, 0, 0)

    def _time(self, hour: int, minute: int, second: int) -> int:
        return self.hours[hour] * 3600 + self.minutes[minute] * 60 + self.seconds[second]

    def _next_time(self, second: int) -> int | None:
        """The first time of a day at `second` or after it, in seconds since midnight."""
        hour, minute = second // 3600, second // 60 % 60
        at = bisect_left(self.hours, hour)
        if at < len(self.hours) and self.hours[at] == hour:
            inner = bisect_left(self.minutes, minute)
            if inner < len(self.minutes) and self.minutes[inner] == minute:
                last = bisect_left(self.seconds, second % 60)
                if last < len(self.seconds):
                    return self._time(at, inner, last)
                inner += 1
            if inner < len(self.minutes):
                return self._time(at, inner, 0)
            at += 1
        return self._time(at, 0, 0) if at < len(self.hours) else None


def _split(text: str) -> list[str]:
    """The six fields of an expression. Raises `RecurrenceInvalid`."""
    if len(text) > CHARACTERS_MAX or not text.isascii():
        raise RecurrenceInvalid(
            "cron", f"a cron expression has at most {CHARACTERS_MAX} characters of ASCII; {_EXAMPLE}"
        )
    word = text.strip().lower()
    if word.startswith("@"):
        if word not in NAMED:
            raise RecurrenceInvalid("cron", f"{text!r} is no name of a schedule: there are {', '.join(NAMED)}")
        return ["0", *NAMED[word].split()]
    fields = text.split()
    if len(fields) == 7:
        raise RecurrenceInvalid(
            "cron", f"{text!r} has 7 fields: a field of years is not known here; give an end instead"
        )
    if len(fields) not in (5, 6):
        raise RecurrenceInvalid(
            "cron", f"{text!r} has {len(fields)} fields, not 5, or 6 with seconds in front; {_EXAMPLE}"
        )
    if "?" in text:
        raise RecurrenceInvalid(
            "cron", f"{text!r} has the ? of Quartz: write *, and count days of the week from Sunday, 0, to Saturday, 6"
        )
    return fields if len(fields) == 6 else ["0", *fields]


def _check_step(name: str, part: str) -> None:
    """Refuses what `cronsim` reads in silence: a step beyond the field, and the step of a last day."""
    low, high = _FIELDS[name]
    for term in part.split(","):
        base, slash, step = term.partition("/")
        if slash and step.isdecimal() and int(step) > high - low + 1:
            advice = {"second": "s", "minute": "m", "hour": "h"}.get(name)
            every = f"; an interval of {step}{advice} is no cron expression" if advice else ""
            raise RecurrenceInvalid("cron", f"{name} {part!r}: a step of {step} leaves the field{every}")
        if slash and "L" in base.upper() and name in ("day-of-month", "day-of-week"):
            raise RecurrenceInvalid("cron", f"{name} {part!r}: a last day has no step")


def _parse(fields: list[str]) -> CronSim:
    try:
        return CronSim(" ".join(fields), _ANYWHERE)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        problem = error
    part = dict(zip(_FIELDS, fields, strict=True)).get(name)
    if part is None:
        raise RecurrenceInvalid("cron", f"{' '.join(fields)!r}: {problem}; {_EXAMPLE}")
    if name == "day-of-month" and _is_a_day(part):
        raise NeverFires("cron", f"day-of-month {part!r} never comes in month {fields[4]!r}")
    low, high = _FIELDS[name]
    raise RecurrenceInvalid(
        "cron", f"{name} {part!r}: expected {low} to {high}, *, a list like 1,15, a range like 2-5, or a step like */2"
    )


def _is_a_day(part: str) -> bool:
    """The field is well formed. `cronsim` calls it bad also where no month has such a day."""
    try:
        CronSim(f"0 0 0 {part} * *", _ANYWHERE)
    except CronSimError:
        return False
    return True
