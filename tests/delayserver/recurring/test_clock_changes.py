"""Moments around every kind of change of a clock, against an oracle that looks at each minute or second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayserver.recurring.clock_changes import (
    BY_THE_CLOCK,
    ONCE_A_DAY,
    ClockChoices,
    GapChoice,
    OverlapChoice,
    WallReading,
)
from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.recurrence import Recurrence, default_choices
from delayserver.recurring.simple_rules import Once
from delayserver.recurring.zones import Zone
from tests.delayserver.recurring.oracles import Matches, by_choices, by_the_clock, ms_of

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
ALL_CHOICES = [ClockChoices(gap, overlap) for gap, overlap in product(GapChoice, OverlapChoice)]

# A zone, and days in UTC around which its clock changes.
CHANGES = {
    "Berlin forward": ("Europe/Berlin", datetime(2027, 3, 28, 1, tzinfo=UTC)),
    "Berlin back": ("Europe/Berlin", datetime(2027, 10, 31, 1, tzinfo=UTC)),
    "New York forward": ("America/New_York", datetime(2027, 3, 14, 7, tzinfo=UTC)),
    "New York back": ("America/New_York", datetime(2027, 11, 7, 6, tzinfo=UTC)),
    "Lord Howe forward by 30 minutes": ("Australia/Lord_Howe", datetime(2027, 10, 2, 15, 30, tzinfo=UTC)),
    "Lord Howe back by 30 minutes": ("Australia/Lord_Howe", datetime(2027, 4, 3, 15, tzinfo=UTC)),
    "Kathmandu moves by 15 minutes in 1986": ("Asia/Kathmandu", datetime(1985, 12, 31, 18, 30, tzinfo=UTC)),
    "Apia loses a day": ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    "Casablanca back for Ramadan": ("Africa/Casablanca", datetime(2027, 2, 7, 2, tzinfo=UTC)),
    "Casablanca forward behind it": ("Africa/Casablanca", datetime(2027, 3, 14, 2, tzinfo=UTC)),
    "the Azores forward at midnight": ("Atlantic/Azores", datetime(2027, 3, 28, 1, tzinfo=UTC)),
    "the Azores back to the day before": ("Atlantic/Azores", datetime(2027, 10, 31, 1, tzinfo=UTC)),
}


def rule(text: str) -> tuple[str, Matches]:
    minutes, hours = text.split()[:2]
    wanted_minutes, wanted_hours = numbers(minutes, 60), numbers(hours, 24)
    return text, lambda shown: shown.second == 0 and shown.minute in wanted_minutes and shown.hour in wanted_hours


def numbers(field: str, below: int) -> set[int]:
    if field.startswith("*/"):
        return set(range(0, below, int(field[2:])))
    return set(range(below)) if field == "*" else {int(word) for word in field.split(",")}


def moments(text: str, zone: str, choices: ClockChoices, begin: datetime, end: datetime) -> list[int]:
    found: list[int] = []
    for moment in Recurrence(Cron.parse(text), Zone.named(zone), choices).moments(ms_of(begin) - 1):
        if moment.ms >= ms_of(end):
            return found
        found.append(moment.ms)
    return found


@pytest.mark.parametrize(("zone", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_each_choice_gives_the_moments_of_the_oracle_at_every_change(zone: str, change: datetime) -> None:
    begin, end = change - timedelta(hours=26), change + timedelta(hours=26)
    for text in ("0,20,45 * * * *", "30 0,1,2,3,23 * * *", "*/7 */5 * * *", "0 0 * * *", "15 2 * * *"):
        expression, matches = rule(text)
        for choices in ALL_CHOICES:
            expected = by_choices(matches, zone, choices, begin, end, MINUTE)
            assert moments(expression, zone, choices, begin, end) == expected, (text, choices)


@pytest.mark.parametrize(("zone", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_a_rule_of_every_minute_fires_each_minute_that_the_clock_has(zone: str, change: datetime) -> None:
    begin, end = change - timedelta(hours=30), change + timedelta(hours=30)
    expected = by_the_clock(lambda shown: shown.second == 0, zone, begin, end, MINUTE)
    assert moments("* * * * *", zone, BY_THE_CLOCK, begin, end) == expected
    assert len(expected) == 3600


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_seconds_of_a_change_come_as_the_oracle_says(zone: str) -> None:
    change = next(at for name, at in CHANGES.values() if name == zone)
    begin, end = change - timedelta(hours=2), change + timedelta(hours=2)
    for choices in ALL_CHOICES:
        expected = by_choices(lambda shown: shown.second % 20 == 7, zone, choices, begin, end, SECOND)
        assert moments("7-59/20 * * * * *", zone, choices, begin, end) == expected, choices


@pytest.mark.parametrize("zone", sorted({zone for zone, _ in CHANGES.values()}))
def test_a_whole_year_of_every_zone_agrees_minute_by_minute(zone: str) -> None:
    begin, end = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    choices = default_choices(Cron.parse("30 2 * * *"))
    expected = by_choices(
        lambda shown: (shown.hour, shown.minute) == (2, 30), zone, choices, begin, end, timedelta(minutes=30)
    )
    assert moments("30 2 * * *", zone, choices, begin, end) == expected
    assert len(expected) == 365
    # Every hour of the clock in a zone whose offset is not whole hours.
    expected = by_the_clock(lambda shown: shown.minute == 0, zone, begin, end, timedelta(minutes=15))
    assert moments("0 * * * *", zone, BY_THE_CLOCK, begin, end) == expected


def test_expressions_of_times_come_once_a_day_and_the_others_go_by_the_clock() -> None:
    by_clock = ("* * * * *", "*/5 * * * *", "0 * * * *", "@hourly", "* 2 * * *", "30 */2 * * *", "*/2 0 0 * * *")
    once = (
        "30 2 * * *",
        "0,30 2,3 * * *",
        "0 30 2 * * *",
        "0-59 0-23 * * *",
        "@daily",
        "@weekly",
        "@monthly",
        "@yearly",
    )
    assert [default_choices(Cron.parse(text)) for text in by_clock] == [BY_THE_CLOCK] * len(by_clock)
    assert [default_choices(Cron.parse(text)) for text in once] == [ONCE_A_DAY] * len(once)
    assert default_choices(Once(0)) == ONCE_A_DAY


@pytest.mark.parametrize(
    ("text", "choices", "expected"),
    [
        ("2027-03-28T02:30", ClockChoices(GapChoice.LATER, OverlapChoice.EARLIER), ("01:30", WallReading.GAP)),
        ("2027-03-28T02:30", ClockChoices(GapChoice.EARLIER, OverlapChoice.EARLIER), ("00:30", WallReading.GAP)),
        ("2027-03-28T02:30", ClockChoices(GapChoice.SKIP, OverlapChoice.EARLIER), None),
        ("2027-03-28T03:00", ClockChoices(GapChoice.SKIP, OverlapChoice.SKIP), ("01:00", WallReading.PLAIN)),
        ("2027-03-28T01:59:59", ClockChoices(GapChoice.SKIP, OverlapChoice.SKIP), ("00:59", WallReading.PLAIN)),
        ("2027-10-31T02:30", ClockChoices(GapChoice.SKIP, OverlapChoice.EARLIER), ("00:30", WallReading.FIRST)),
        ("2027-10-31T02:30", ClockChoices(GapChoice.SKIP, OverlapChoice.LATER), ("01:30", WallReading.SECOND)),
        ("2027-10-31T02:30", ClockChoices(GapChoice.SKIP, OverlapChoice.SKIP), None),
        ("2027-10-31T03:00", ClockChoices(GapChoice.SKIP, OverlapChoice.SKIP), ("02:00", WallReading.PLAIN)),
    ],
)
def test_a_wall_time_says_how_it_was_read(
    text: str, choices: ClockChoices, expected: tuple[str, WallReading] | None
) -> None:
    recurrence = Recurrence(Once.parse(text), Zone.named("Europe/Berlin"), choices)
    found = recurrence.next_moment(ms_of(datetime(2027, 1, 1, tzinfo=UTC)))
    shown = found and (datetime.fromtimestamp(found.ms / 1000, UTC).strftime("%H:%M"), found.reading)
    assert shown == expected


def test_what_a_choice_leaves_out_is_named_with_its_change() -> None:
    begin, end = ms_of(datetime(2027, 1, 1, tzinfo=UTC)), ms_of(datetime(2031, 1, 1, tzinfo=UTC))
    cron = Cron.parse("30 2 * * *")
    skipping = Recurrence(cron, Zone.named("Europe/Berlin"), ClockChoices(GapChoice.SKIP, OverlapChoice.SKIP))
    found = [(change.is_gap, wall % 86_400) for change, wall in skipping.left_out(begin, end)]
    assert found == [(True, 9000), (False, 9000)] * 4
    later = Recurrence(cron, Zone.named("Europe/Berlin"), ONCE_A_DAY)
    assert list(later.left_out(begin, end)) == []
    elsewhere = Recurrence(Cron.parse("30 4 * * *"), skipping.zone, skipping.choices)
    assert list(elsewhere.left_out(begin, end)) == []


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from(sorted(CHANGES)),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=4),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=5) | st.sets(st.sampled_from([0, 1, 2, 3, 23]), min_size=1),
    choices=st.sampled_from(ALL_CHOICES),
    ahead=st.integers(-100_000, 100_000),
)
def test_any_expression_gives_the_moments_of_the_oracle(
    place: str, minutes: set[int], hours: set[int], choices: ClockChoices, ahead: int
) -> None:
    zone, change = CHANGES[place]
    text = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    begin = change + timedelta(seconds=ahead)
    end = begin + timedelta(hours=30)

    def matches(shown: datetime) -> bool:
        return shown.second == 0 and shown.minute in minutes and shown.hour in hours

    expected = by_choices(matches, zone, choices, begin, end, MINUTE)
    assert moments(text, zone, choices, begin, end) == expected
    # A search from anywhere in between finds the next of them: there is no state.
    recurrence = Recurrence(Cron.parse(text), Zone.named(zone), choices)
    for before, after in pairwise(expected):
        for between in (before, before + 1, (before + after) // 2, after - 1):
            found = recurrence.next_moment(between)
            assert found is not None and found.ms == after
