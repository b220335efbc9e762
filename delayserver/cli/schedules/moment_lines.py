"""The moments of a recurrence, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from delayserver.config.units import format_duration
from delayserver.recurring.clock_changes import GapChoice, Moment, OverlapChoice, WallReading
from delayserver.recurring.recurrence import Recurrence
from delayserver.recurring.simple_rules import Every
from delayserver.recurring.wall_time import shown_at
from delayserver.recurring.zones import ClockChange


def moment_record(moment: Moment, recurrence: Recurrence) -> dict[str, Any]:
    """The record of a moment. `reading` says how a change of the clock decided, and is left out where none did."""
    local = _local(moment, recurrence)
    record = {"due_ms": moment.ms, "local": local.isoformat(timespec="milliseconds" if moment.ms % 1000 else "seconds")}
    return record if moment.reading is WallReading.PLAIN else record | {"reading": moment.reading.value}


def moment_lines(recurrence: Recurrence, moments: Iterator[Moment], after_ms: int, now_ms: int) -> Iterator[str]:
    """A line for each moment, and one for each change of the clock that leaves one out."""
    yield _line("local time", "offset", "from now", "")
    for moment in moments:
        for change, wall in recurrence.left_out(after_ms, moment.ms):
            yield _line(_day_time(shown_at(wall)), "", "left out", _why_left_out(change, wall))
        after_ms = moment.ms
        local = _local(moment, recurrence)
        time = f"{_day_time(local)}.{moment.ms % 1000:03d}" if moment.ms % 1000 else _day_time(local)
        yield _line(
            time, str(local.tzinfo).removeprefix("UTC") or "+00:00", _from_now(moment.ms - now_ms), _note(moment)
        )


def _line(time: str, offset: str, distance: str, note: str) -> str:
    return f"{time:<27}  {offset:<6}  {distance:<13}  {note}".rstrip()


def has_choices(recurrence: Recurrence, after_ms: int) -> bool:
    """Whether the choices can matter: the clock of the zone changes, and the rule names times of it."""
    before, _, after, _ = recurrence.zone.changes_around(after_ms // 1000)
    return not isinstance(recurrence.rule, Every) and (before is not None or after is not None)


def choices_line(recurrence: Recurrence) -> str:
    """What changes of the clock do, in words."""
    gap = {
        GapChoice.SKIP: "is left out",
        GapChoice.EARLIER: "comes earlier",
        GapChoice.LATER: "comes later",
    }[recurrence.choices.gap]
    overlap = {
        OverlapChoice.SKIP: "is left out",
        OverlapChoice.EARLIER: "comes the first time",
        OverlapChoice.LATER: "comes the second time",
        OverlapChoice.BOTH: "comes both times",
    }[recurrence.choices.overlap]
    return (
        f"A time that the clock skips {gap} (--gap {recurrence.choices.gap}), "
        f"one that it shows twice {overlap} (--overlap {recurrence.choices.overlap})."
    )


def _local(moment: Moment, recurrence: Recurrence) -> datetime:
    offset = timedelta(seconds=recurrence.zone.offset_at(moment.ms // 1000))
    return datetime.fromtimestamp(moment.ms // 1000, timezone(offset)) + timedelta(milliseconds=moment.ms % 1000)


def _day_time(shown: datetime) -> str:
    return f"{shown:%a %Y-%m-%d %H:%M:%S}"


def _from_now(distance_ms: int) -> str:
    # To the second: a clock that runs on makes anything finer useless.
    seconds_ms = round(distance_ms / 1000) * 1000
    if seconds_ms == 0:
        return "now"
    return f"in {format_duration(seconds_ms)}" if seconds_ms > 0 else f"{format_duration(-seconds_ms)} ago"


def _note(moment: Moment) -> str:
    if moment.change is None:
        return ""
    wall = f"{shown_at(moment.wall):%H:%M:%S}".removesuffix(":00")
    if moment.reading is WallReading.GAP:
        side = "later" if moment.ms >= moment.change.at * 1000 else "earlier"
        return f"{side}: {_jump(moment.change)}, without {wall}"
    which = "first" if moment.reading is WallReading.FIRST else "second"
    return f"the {which} {wall}: {_jump(moment.change)}"


def _why_left_out(change: ClockChange, wall: int) -> str:
    if change.is_gap:
        return f"{_jump(change)}, without {shown_at(wall):%H:%M}"
    return f"{_jump(change)}, and shows {shown_at(wall):%H:%M} twice"


def _jump(change: ClockChange) -> str:
    before, after = shown_at(change.at + change.before), shown_at(change.at + change.after)
    same_day = before.date() == after.date()
    forms = "%H:%M" if same_day else "%a %H:%M"
    back = "" if change.is_gap else " back"
    return f"the clock goes from {before:{forms}}{back} to {after:{forms}}"
