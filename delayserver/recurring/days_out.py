"""Calendars of days to leave out: dates, days of each year, and days of the week."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final

from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.wall_time import DAY, DAYS_OUT_YEARS, WallRule, date_of, midnight_of

WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_OF_EACH_YEAR: Final = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
_LEAP_YEAR: Final = 2000


@dataclass(frozen=True)
class DaysOut:
    """Days on which nothing fires, by the wall time that a rule names."""

    dates: frozenset[date] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    """(month, day)."""
    weekdays: frozenset[int] = frozenset()
    """0 is Monday."""

    @classmethod
    def parse(cls, words: Iterable[str]) -> DaysOut:
        """Of words like ``2027-12-24``, ``12-25`` (each year) and ``sun``. Raises `RecurrenceInvalid`."""
        dates, yearly, weekdays = set(), set(), set()
        for word in [word.strip().lower() for text in words for word in text.split(",")]:
            each_year = _OF_EACH_YEAR.fullmatch(word)
            try:
                if word[:3] in WEEKDAYS and word in (word[:3], _NAMES[word[:3]]):
                    weekdays.add(WEEKDAYS.index(word[:3]))
                elif each_year:
                    day = date(_LEAP_YEAR, int(each_year[1]), int(each_year[2]))
                    yearly.add((day.month, day.day))
                else:
                    dates.add(date.fromisoformat(word))
            except ValueError:
                raise RecurrenceInvalid(
                    "except", f"{word[:40]!r} is no day: write a date like 2027-12-24, 12-25 for each year, or sun"
                ) from None
        if len(weekdays) == len(WEEKDAYS):
            raise RecurrenceInvalid("except", "all days of the week are left out: nothing would fire")
        return cls(frozenset(dates), frozenset(yearly), frozenset(weekdays))

    def __bool__(self) -> bool:
        return bool(self.dates or self.yearly or self.weekdays)

    def __contains__(self, day: date) -> bool:
        return day.weekday() in self.weekdays or (day.month, day.day) in self.yearly or day in self.dates


_NAMES: Final = {
    name[:3]: name for name in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
}


@dataclass(frozen=True)
class WithoutDays:
    """A `WallRule` without the times of some days."""

    rule: WallRule
    out: DaysOut

    def next_wall(self, wall: int) -> int | None:
        """The first wall time of the rule at `wall` or after it, on a day that is not left out."""
        last = wall + DAYS_OUT_YEARS * 366 * DAY
        found = self.rule.next_wall(wall)
        while found is not None and date_of(found) in self.out:
            if found > last:
                return None
            found = self.rule.next_wall(midnight_of(date_of(found)) + DAY)
        return found
