"""Bounds, days left out, intervals, and rules that never end or never begin."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.days_out import DaysOut
from delayserver.recurring.recurrence import Recurrence, Rule, Span, default_choices
from delayserver.recurring.recurrence_errors import NeverFires, RecurrenceInvalid
from delayserver.recurring.simple_rules import Every, Once
from delayserver.recurring.zones import Zone

DAY_MS = 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def recurrence(rule: Rule, zone: str = "UTC", span: Span | None = None, *days: str) -> Recurrence:
    return Recurrence(rule, Zone.named(zone), default_choices(rule), span or Span(), DaysOut.parse(days))


def found(recurring: Recurrence, after: str, count: int = 10) -> list[str]:
    moments = recurring.next_moments(ms(after), count)
    return [datetime.fromtimestamp(each.ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for each in moments]


DAILY = Cron.parse("0 9 * * *")


def test_the_start_belongs_to_a_recurrence_and_the_end_does_not() -> None:
    span = Span(ms("2027-01-02 09:00"), ms("2027-01-04 09:00"))
    assert found(recurrence(DAILY, "UTC", span), "2020-01-01") == ["2027-01-02 09:00", "2027-01-03 09:00"]


def test_moments_lie_behind_the_time_that_was_asked_for() -> None:
    recurring = recurrence(DAILY)
    at = ms("2027-01-02 09:00")
    assert [recurring.next_moments(at + ahead, 1)[0].ms - at for ahead in (-1001, -1, 0, 1)] == [0, 0, DAY_MS, DAY_MS]


def test_times_are_counted_from_the_start_wherever_one_looks() -> None:
    span = Span(ms("2027-01-01 12:00"), None, 3)
    recurring = recurrence(DAILY, "UTC", span, "2027-01-03")
    expected = ["2027-01-02 09:00", "2027-01-04 09:00", "2027-01-05 09:00"]
    assert found(recurring, "2020-01-01") == expected
    assert found(recurring, "2027-01-04 00:00") == expected[1:]
    assert found(recurring, "2027-01-05 09:00") == []


def test_the_earlier_of_end_and_times_ends_a_recurrence() -> None:
    start = ms("2027-01-01")
    assert len(found(recurrence(DAILY, "UTC", Span(start, ms("2027-01-03"), 5)), "2020-01-01")) == 2
    assert len(found(recurrence(DAILY, "UTC", Span(start, ms("2028-01-03"), 5)), "2020-01-01")) == 5
    assert len(found(recurrence(Once.parse("2027-01-03T00:00"), "UTC", Span(start, None, 5)), "2020-01-01")) == 1


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (("sat", "sunday"), ["12-24", "12-27", "12-28"]),
        (("12-25,12-26",), ["12-24", "12-27", "12-28"]),
        (("2027-12-24", "2028-12-25"), ["12-25", "12-26", "12-27"]),
        (("02-29",), ["12-24", "12-25", "12-26"]),
    ],
)
def test_days_are_left_out(days: tuple[str, ...], expected: list[str]) -> None:
    for rule in (DAILY, Every(DAY_MS, ms("2027-01-01 09:00"))):
        moments = found(recurrence(rule, "UTC", None, *days), "2027-12-24", 3)
        assert moments == [f"2027-{day} 09:00" for day in expected]


def test_a_day_left_out_is_one_of_the_zone() -> None:
    # 23:30 in New York is the next day in UTC.
    cron = Cron.parse("30 23 * * *")
    assert found(recurrence(cron, "America/New_York", None, "2027-07-04"), "2027-07-04 12:00", 1) == [
        "2027-07-06 03:30"
    ]
    every = Every(3_600_000, ms("2027-01-01"))
    shown = found(recurrence(every, "America/New_York", None, "2027-07-04"), "2027-07-04 02:30", 3)
    assert shown == ["2027-07-04 03:00", "2027-07-05 04:00", "2027-07-05 05:00"]


@pytest.mark.parametrize("word", ["", "13-01", "02-30", "2027-02-29", "someday", "monkey", "2027", "1-1"])
def test_what_is_no_day_is_refused(word: str) -> None:
    with pytest.raises(RecurrenceInvalid, match="is no day") as refused:
        DaysOut.parse([word])
    assert refused.value.field == "except"


def test_a_week_without_days_is_refused() -> None:
    with pytest.raises(RecurrenceInvalid, match="all days of the week"):
        DaysOut.parse(["mon,tue,wed,thu,fri,sat,sun"])


@pytest.mark.parametrize(
    ("rule", "days", "span"),
    [
        (Cron.parse("0 9 * * mon"), ("mon",), Span()),
        (Cron.parse("0 0 25 12 *"), ("12-25",), Span()),
        (Cron.parse("* * * * * sun"), ("sun",), Span()),
        (Once.parse("2027-03-28T09:00"), ("2027-03-28",), Span()),
        (DAILY, (), Span(ms("2027-01-01 10:00"), ms("2027-01-01 11:00"))),
        (Once.parse("2026-03-28T09:00"), (), Span(ms("2027-01-01"))),
        (Every(7 * DAY_MS, ms("2027-01-04")), ("mon",), Span()),
    ],
)
def test_what_never_fires_is_named_and_what_has_ended_is_not(rule: Rule, days: tuple[str, ...], span: Span) -> None:
    with pytest.raises(NeverFires, match="no moment fits"):
        recurrence(rule, "UTC", span, *days).next_moments(ms("2027-01-01"), 1)
    assert recurrence(Once.parse("2026-03-28T09:00")).next_moments(ms("2027-01-01"), 1) == []


def test_a_gap_that_is_skipped_makes_a_single_time_never_fire() -> None:
    with pytest.raises(NeverFires):
        once = recurrence(Once.parse("2027-03-28T02:30"), "Europe/Berlin")
        Recurrence(once.rule, once.zone, default_choices(Cron.parse("* * * * *"))).check()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((2, 2, None), "end"),
        ((2, 1, None), "end"),
        ((None, None, 3), "times"),
        ((1, None, 0), "times"),
        ((1, None, 10**6), "times"),
    ],
)
def test_wrong_bounds_are_refused(values: tuple[int | None, int | None, int | None], field: str) -> None:
    with pytest.raises(RecurrenceInvalid) as refused:
        Span(*values)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2027-03-28", "2027-03-28T09:00Z", "2027-02-29T09:00", "2027-03-28T24:01"]
)
def test_what_is_no_wall_time_is_refused(text: str) -> None:
    with pytest.raises(RecurrenceInvalid, match="is no wall time"):
        Once.parse(text)


@given(
    every=st.integers(1, 10**9),
    start=st.integers(-(10**12), 2 * 10**12),
    after=st.integers(-(10**12), 2 * 10**12),
)
def test_an_interval_is_the_first_multiple_behind_a_time(every: int, start: int, after: int) -> None:
    moment = Every(every, start).next_ms(after)
    assert moment >= start
    assert moment > after
    assert (moment - start) % every == 0
    assert moment == start or moment - every <= after


@pytest.mark.parametrize("every", [0, -1, 10**16])
def test_an_interval_without_length_is_refused(every: int) -> None:
    with pytest.raises(RecurrenceInvalid, match="at least 1 ms"):
        Every(every, 0)


def test_a_rule_that_fires_each_second_for_ever_takes_no_memory() -> None:
    recurring = recurrence(Cron.parse("* * * * * *"), "Europe/Berlin")
    # An hour before a change of the clock.
    first = ms("2027-03-28 00:00")
    moments = recurring.moments(first)
    assert next(moments).ms == first + 1000
    tracemalloc.start()
    try:
        for number, moment in enumerate(islice(moments, 4_000), 2):
            assert moment.ms == first + number * 1000
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "after", [-(1 << 62), -62_200_000_000_000, 0, 253_370_764_799_000, 253_402_300_799_999, 1 << 62]
)
def test_the_ends_of_the_calendar_are_bounds(after: int) -> None:
    for rule in (
        DAILY,
        Cron.parse("* * * * * *"),
        Every(1, 0),
        Every(DAY_MS, -(1 << 60)),
        Once.parse("2027-01-01T00:00"),
    ):
        for zone in ("UTC", "Pacific/Apia", "America/New_York"):
            for moment in recurrence(rule, zone).next_moments(after, 3):
                assert after < moment.ms < 253_370_764_800_000 + 2 * DAY_MS
