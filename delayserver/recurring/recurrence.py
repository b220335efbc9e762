"""A recurrence: a rule in a zone, within bounds. It gives the moments at which something fires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Final

from delayserver.recurring.clock_changes import BY_THE_CLOCK, ONCE_A_DAY, ClockChoices, Moment, left_out, next_moment
from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.days_out import DaysOut, WithoutDays
from delayserver.recurring.recurrence_errors import NeverFires, RecurrenceInvalid
from delayserver.recurring.simple_rules import Every, Once
from delayserver.recurring.wall_time import DAY, DAYS_OUT_YEARS, WALL_MAX, WallRule, date_of, midnight_of
from delayserver.recurring.zones import ClockChange, Zone

TIMES_MAX: Final = 100_000
"""The last of so many moments is looked for once, which takes about a second."""

Rule = Cron | Once | Every


def default_choices(rule: Rule) -> ClockChoices:
    """What changes of the clock do to a rule, where nobody chose.

    A cron expression whose minutes or hours begin with a star goes by the clock, as in Vixie's cron. Other expressions name
    times of a day: each comes once. Quartz, systemd and EventBridge skip such a time in a gap, so that a daily report is
    missing on one day of the year.
    """
    return BY_THE_CLOCK if isinstance(rule, Cron) and not rule.fixed else ONCE_A_DAY


@dataclass(frozen=True)
class Span:
    """Bounds of a recurrence: moments from `start_ms` on and before `end_ms`, and at most so many `times` from the start."""

    start_ms: int | None = None
    end_ms: int | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        if self.start_ms is not None and self.end_ms is not None and self.end_ms <= self.start_ms:
            raise RecurrenceInvalid("end", "the end is not behind the start: nothing would fire")
        if self.times is not None and not 1 <= self.times <= TIMES_MAX:
            raise RecurrenceInvalid(
                "times", f"a recurrence fires 1 to {TIMES_MAX:,} times; without a number it has no end"
            )
        if self.times is not None and self.start_ms is None:
            raise RecurrenceInvalid("times", "times are counted from a start: give one")


@dataclass(frozen=True)
class Recurrence:
    """What fires when. It is a value: two equal ones give the same moments."""

    rule: Rule
    zone: Zone
    choices: ClockChoices
    span: Span = field(default_factory=Span)
    days_out: DaysOut = field(default_factory=DaysOut)

    def next_moments(self, after_ms: int, count: int) -> list[Moment]:
        """The first `count` moments behind `after_ms`; fewer if the recurrence ends before.

        Raises `NeverFires` if there is none, and none before either.
        """
        found = []
        for moment in self.moments(after_ms):
            found.append(moment)
            if len(found) == count:
                break
        if not found:
            self.check()
        return found

    def moments(self, after_ms: int) -> Iterator[Moment]:
        """All moments behind `after_ms`, one by one. There may be no last one."""
        while True:
            moment = self.next_moment(after_ms)
            if moment is None:
                return
            yield moment
            after_ms = moment.ms

    def next_moment(self, after_ms: int) -> Moment | None:
        """The first moment behind `after_ms` within the bounds; None if there is none."""
        moment = self._next_unbounded(after_ms)
        if moment is None or self._end_ms is None or moment.ms < self._end_ms:
            return moment
        return None

    def left_out(self, after_ms: int, until_ms: int) -> Iterator[tuple[ClockChange, int]]:
        """The changes of the clock in between that leave out times of the rule, each with the first one."""
        if isinstance(self.rule, Every):
            return
        yield from left_out(self._rule, self.zone, self.choices, after_ms // 1000, until_ms // 1000)

    def check(self) -> None:
        """Raises `NeverFires` if there is no moment at all."""
        if self.next_moment(-(1 << 62)) is None:
            raise NeverFires("rule", "no moment fits: within 400 years, and between start and end, there is none")

    @cached_property
    def _end_ms(self) -> int | None:
        """The moment before which all moments lie, also because of the number of times."""
        end_ms, times, start_ms = self.span.end_ms, self.span.times, self.span.start_ms
        if times is None or start_ms is None:
            return end_ms
        after_ms = start_ms - 1
        for _ in range(times):
            moment = self._next_unbounded(after_ms)
            if moment is None:
                return end_ms
            after_ms = moment.ms
        return after_ms + 1 if end_ms is None else min(end_ms, after_ms + 1)

    def _next_unbounded(self, after_ms: int) -> Moment | None:
        """The first moment from the start on, whatever the end is."""
        if after_ms >= WALL_MAX * 1000:
            return None
        after_ms = max(after_ms, _EARLIEST_MS if self.span.start_ms is None else self.span.start_ms - 1)
        if isinstance(self.rule, Every):
            return self._next_of(self.rule, after_ms)
        return next_moment(self._rule, self.zone, self.choices, after_ms // 1000 + 1)

    @cached_property
    def _rule(self) -> WallRule:
        assert not isinstance(self.rule, Every)
        return WithoutDays(self.rule, self.days_out) if self.days_out else self.rule

    def _next_of(self, rule: Every, after_ms: int) -> Moment | None:
        last_ms = min(rule.next_ms(after_ms) + DAYS_OUT_YEARS * 366 * DAY * 1000, WALL_MAX * 1000)
        while True:
            moment_ms = rule.next_ms(after_ms)
            if moment_ms >= last_ms:
                return None
            moment = Moment(moment_ms, moment_ms // 1000 + self.zone.offset_at(moment_ms // 1000))
            if not self.days_out or date_of(moment.wall) not in self.days_out:
                return moment
            after_ms = max(moment_ms, self._begin_after(date_of(moment.wall)) - 1)

    def _begin_after(self, day: date) -> int:
        """The moment at which the day behind a date begins in the zone."""
        begin = next_moment(Once(midnight_of(day) + DAY), self.zone, ONCE_A_DAY, midnight_of(day) - DAY)
        assert begin is not None
        return begin.ms


_EARLIEST_MS: Final = -62_135_000_000_000
