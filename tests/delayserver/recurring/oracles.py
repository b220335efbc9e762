"""What a cron expression means, written down a second time: no parser, no search, every step of the clock looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from delayserver.recurring.clock_changes import ClockChoices, GapChoice, OverlapChoice

Matches = Callable[[datetime], bool]


def by_the_clock(matches: Matches, zone: str, begin: datetime, end: datetime, step: timedelta) -> list[int]:
    """The milliseconds of all moments whose wall time matches, by looking at each of them."""
    info, found, moment = ZoneInfo(zone), [], begin.astimezone(UTC)
    while moment < end:
        if matches(moment.astimezone(info).replace(tzinfo=None)):
            found.append(ms_of(moment))
        moment += step
    return found


def by_choices(
    matches: Matches, zone: str, choices: ClockChoices, begin: datetime, end: datetime, step: timedelta
) -> list[int]:
    """The same for wall times: each one is read with both folds of PEP 495, and the choices take what they want."""
    info, found = ZoneInfo(zone), set()
    around = timedelta(days=2) if zone == "Pacific/Apia" else timedelta(hours=3)
    wall = begin.astimezone(info).replace(tzinfo=None, minute=0, second=0) - around
    last = end.astimezone(info).replace(tzinfo=None) + around
    while wall < last:
        if matches(wall):
            found |= {moment for moment in _moments(wall, info, choices) if begin <= moment < end}
        wall += step
    return [ms_of(moment) for moment in sorted(found)]


def ms_of(moment: datetime) -> int:
    """Milliseconds since 1970 UTC."""
    return int(moment.timestamp()) * 1000


def _moments(wall: datetime, info: ZoneInfo, choices: ClockChoices) -> Iterator[datetime]:
    first, second = (wall.replace(tzinfo=info, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        yield first
    elif first.astimezone(info).replace(tzinfo=None) != wall:
        if choices.gap is not GapChoice.SKIP:
            yield first if choices.gap is GapChoice.LATER else second
    else:
        if choices.overlap in (OverlapChoice.EARLIER, OverlapChoice.BOTH):
            yield first
        if choices.overlap in (OverlapChoice.LATER, OverlapChoice.BOTH):
            yield second
