"""From wall times to moments: what a change of the clock does to a rule is a choice with a name.

A moment belongs to exactly one stretch between two changes. So each stretch says which wall times fall into it, and the
moments come in order also where the times of a gap lie between others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from delayserver.recurring.wall_time import WallRule
from delayserver.recurring.zones import REACH, ClockChange, Zone


class GapChoice(StrEnum):
    """What becomes of a wall time that the clock leaves out, such as 02:30 where it goes from 02:00 to 03:00."""

    SKIP = "skip"
    EARLIER = "earlier"
    """As far before the change as it lies in the gap from its end: 01:30."""
    LATER = "later"
    """As far behind the change as it lies in the gap: 03:30. RFC 5545 reads a time with a zone so."""


class OverlapChoice(StrEnum):
    """What becomes of a wall time that the clock shows twice, such as 02:30 where it goes from 03:00 back to 02:00."""

    SKIP = "skip"
    EARLIER = "earlier"
    LATER = "later"
    BOTH = "both"


@dataclass(frozen=True)
class ClockChoices:
    """The choices of one recurrence."""

    gap: GapChoice
    overlap: OverlapChoice


BY_THE_CLOCK: Final = ClockChoices(GapChoice.SKIP, OverlapChoice.BOTH)
"""Each moment whose wall time fits: for rules that repeat within an hour. A gap leaves nothing out that time has."""
ONCE_A_DAY: Final = ClockChoices(GapChoice.LATER, OverlapChoice.EARLIER)
"""Each wall time once: for rules that name times of a day."""


class WallReading(StrEnum):
    """How a change of the clock decided about a moment."""

    PLAIN = "plain"
    GAP = "gap"
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a rule in milliseconds since 1970 UTC, the wall time that the rule named, and how both belong together."""

    ms: int
    wall: int
    reading: WallReading = WallReading.PLAIN
    change: ClockChange | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """Wall times of a stretch are its seconds plus `offset`."""

    offset: int
    reading: WallReading
    change: ClockChange | None


def next_moment(rule: WallRule, zone: Zone, choices: ClockChoices, second: int) -> Moment | None:
    """The first moment of a rule at `second` or after it; None if there is none."""
    while True:
        end, sources = _stretch(zone, choices, second)
        found: Moment | None = None
        for source in sources:
            wall = rule.next_wall(second + source.offset)
            if wall is not None and wall - source.offset < (end if found is None else found.ms // 1000):
                found = Moment((wall - source.offset) * 1000, wall, source.reading, source.change)
        if found is not None:
            return found
        # No moment before this wall time, which may be years away, can be one of the rule.
        wall = rule.next_wall(second - REACH)
        if wall is None:
            return None
        second = max(end, wall - REACH)


def left_out(
    rule: WallRule, zone: Zone, choices: ClockChoices, begin: int, end: int
) -> Iterator[tuple[ClockChange, int]]:
    """The changes behind `begin` and up to `end` at which a choice leaves out wall times of a rule, each with its first."""
    while True:
        _, _, change, known = zone.changes_around(begin)
        if change is None or change.at > end:
            if known > end or change is not None:
                return
            begin = known
            continue
        skips = choices.gap is GapChoice.SKIP if change.is_gap else choices.overlap is OverlapChoice.SKIP
        low, high = sorted((change.at + change.before, change.at + change.after))
        wall = rule.next_wall(low)
        if skips and wall is not None and wall < high:
            yield change, wall
        begin = change.at


def _stretch(zone: Zone, choices: ClockChoices, second: int) -> tuple[int, list[_Source]]:
    """How far a stretch goes that contains `second`, and the sources of its wall times."""
    before, offset, after, end = zone.changes_around(second)
    plain, extra = _Source(offset, WallReading.PLAIN, None), []
    wanted = True
    if before is not None and second < before.at + before.length:
        end = min(end, before.at + before.length)
        if not before.is_gap:
            plain = _Source(offset, WallReading.SECOND, before)
            wanted = choices.overlap in (OverlapChoice.LATER, OverlapChoice.BOTH)
        elif choices.gap is GapChoice.LATER:
            extra.append(_Source(before.before, WallReading.GAP, before))
    if after is not None and second < after.at:
        near = after.at - after.length
        if second < near:
            end = min(end, near)
        else:
            end = min(end, after.at)
            if not after.is_gap:
                plain = _Source(offset, WallReading.FIRST, after)
                wanted = wanted and choices.overlap in (OverlapChoice.EARLIER, OverlapChoice.BOTH)
            elif choices.gap is GapChoice.EARLIER:
                extra.append(_Source(after.after, WallReading.GAP, after))
    return end, [plain, *extra] if wanted else extra
