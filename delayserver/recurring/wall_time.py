"""Wall times as whole numbers: the seconds that a clock on the wall shows, counted from 1970-01-01 00:00 on that wall.

A wall time is no moment: a change of the clock leaves some out and repeats others.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Final, Protocol

DAY: Final = 86_400
SEARCH_YEARS: Final = 400
"""The calendar repeats after 400 years. A day that does not come within them never comes."""
DAYS_OUT_YEARS: Final = 100
"""So long a search looks for a day that is not left out. 29 February is a given day of the week every 40 years."""
WALL_MAX: Final = 253_370_764_800
"""The first second of the year 9999, where every search ends."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 a wall time has no zone
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


class WallRule(Protocol):
    """A rule that gives wall times in their order."""

    def next_wall(self, wall: int) -> int | None:
        """The first wall time of the rule at `wall` or after it; None if there is none."""


def wall_of(shown: datetime) -> int:
    """The wall time that a datetime without a zone shows. Fractions of a second are cut off."""
    return (shown - _EPOCH) // timedelta(seconds=1)


def shown_at(wall: int) -> datetime:
    """The datetime without a zone of a wall time."""
    return _EPOCH + timedelta(seconds=wall)


def date_of(wall: int) -> date:
    """The date of a wall time."""
    return date.fromordinal(wall // DAY + _EPOCH_ORDINAL)


def midnight_of(day: date) -> int:
    """The wall time at which a date begins."""
    return (day.toordinal() - _EPOCH_ORDINAL) * DAY
