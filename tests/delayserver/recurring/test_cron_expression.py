"""Cron expressions: what they mean, the known faults of other libraries, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from delayserver.recurring.clock_changes import BY_THE_CLOCK
from delayserver.recurring.cron_expression import NAMED, Cron
from delayserver.recurring.recurrence import Recurrence, default_choices
from delayserver.recurring.recurrence_errors import NeverFires, RecurrenceInvalid
from delayserver.recurring.wall_time import shown_at, wall_of
from delayserver.recurring.zones import Zone


def walls(text: str, begin: str, count: int) -> list[str]:
    """The first wall times of an expression, without their seconds where these are 0."""
    cron, wall, found = Cron.parse(text), wall_of(datetime.fromisoformat(begin)), []
    for _ in range(count):
        next_wall = cron.next_wall(wall)
        assert next_wall is not None
        found.append(shown_at(next_wall).isoformat(" ").removesuffix(":00"))
        wall = next_wall + 1
    return found


def moments(text: str, zone: str, after: str, count: int) -> list[str]:
    """The first moments behind a time, in local time."""
    place, cron = Zone.named(zone), Cron.parse(text)
    after_ms = int(datetime.fromisoformat(after).astimezone(place.info).timestamp() * 1000)
    found = Recurrence(cron, place, default_choices(cron)).next_moments(after_ms, count)
    return [datetime.fromtimestamp(each.ms / 1000, place.info).isoformat(timespec="minutes") for each in found]


@pytest.mark.parametrize(
    ("text", "begin", "expected"),
    [
        ("0 9 * * 1-5", "2027-01-01 09:00", ["2027-01-01 09:00", "2027-01-04 09:00", "2027-01-05 09:00"]),
        ("59 23 31 12 *", "2027-01-01", ["2027-12-31 23:59", "2028-12-31 23:59"]),
        ("0 0 29 2 *", "2027-01-01", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29 00:00"]),
        ("0 0 29 2 */7", "2033-01-01", ["2060-02-29 00:00"]),
        ("0 0 L * *", "2027-01-01", ["2027-01-31 00:00", "2027-02-28 00:00", "2027-03-31 00:00"]),
        ("0 0 LW * *", "2027-01-01", ["2027-01-29 00:00", "2027-02-26 00:00", "2027-03-31 00:00"]),
        ("0 0 * * 5L", "2027-01-01", ["2027-01-29 00:00", "2027-02-26 00:00"]),
        ("0 0 * * mon#2", "2027-01-01", ["2027-01-11 00:00", "2027-02-08 00:00"]),
        ("0 0 * * 7", "2027-01-01", ["2027-01-03 00:00", "2027-01-10 00:00"]),
        ("0 0 * jan,jul sun", "2027-06-01", ["2027-07-04 00:00"]),
        ("15 30 9 * * *", "2027-01-01", ["2027-01-01 09:30:15", "2027-01-02 09:30:15"]),
        ("*/20 * * * * *", "2027-01-01 00:00:41", ["2027-01-01 00:01", "2027-01-01 00:01:20"]),
        ("5/20 * * * *", "2027-01-01", ["2027-01-01 00:05", "2027-01-01 00:25", "2027-01-01 00:45"]),
        ("@hourly", "2027-01-01 00:00:01", ["2027-01-01 01:00"]),
        ("@daily", "2027-01-01 00:00:01", ["2027-01-02 00:00"]),
        ("@midnight", "2027-01-01 00:00:01", ["2027-01-02 00:00"]),
        ("@weekly", "2027-01-01", ["2027-01-03 00:00"]),
        ("@monthly", "2027-01-02", ["2027-02-01 00:00"]),
        ("@yearly", "2027-01-02", ["2028-01-01 00:00"]),
        (" @Annually ", "2027-01-02", ["2028-01-01 00:00"]),
    ],
)
def test_an_expression_means_these_times(text: str, begin: str, expected: list[str]) -> None:
    assert walls(text, begin, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "begin", "expected"),
    [
        # taichino/croniter#177: the 8th and the 9th were lost.
        (
            "0 0 8-9 * 0#2",
            "2021-01-01",
            ["2021-01-08 00:00", "2021-01-09 00:00", "2021-01-10 00:00", "2021-02-08 00:00"],
        ),
        # pallets-eco/croniter#41: a field of days that begins with a star asks for both, as in Vixie's cron.
        ("0 16 1,2,3 * */5", "2023-05-01", ["2023-06-02 16:00", "2023-07-02 16:00"]),
        (
            "0 16 1,2,3 * 5",
            "2023-05-01",
            ["2023-05-01 16:00", "2023-05-02 16:00", "2023-05-03 16:00", "2023-05-05 16:00"],
        ),
        # taichino/croniter#142: a day that no month has, beside one of the week.
        ("48 14 31 jun sun", "2020-01-01", ["2020-06-07 14:48", "2020-06-14 14:48"]),
        # harrisiirak/cron-parser#410: the same for February.
        ("0 0 31 2 1-5", "2027-02-01", ["2027-02-01 00:00", "2027-02-02 00:00"]),
        # taichino/croniter#49: the last days of months.
        ("0 0 l * *", "2015-09-30", ["2015-09-30 00:00", "2015-10-31 00:00", "2015-11-30 00:00", "2015-12-31 00:00"]),
        # taichino/croniter#31: either field of days.
        ("15 16 12 12 3", "2014-12-01", ["2014-12-03 16:15", "2014-12-10 16:15", "2014-12-12 16:15"]),
        # Hexagon/croner#54: a Sunday.
        ("0 0 * * sun", "2022-02-17", ["2022-02-20 00:00"]),
        # kelektiv/node-cron#430: a Sunday by the number 7.
        ("0 2 21 * * 1,2,3,4,5,6,7", "2019-06-23 09:00", ["2019-06-23 21:02"]),
        # RFEphemeration/crontab_parser#2: a week that ends in the next month.
        ("0 18 * * 3", "2016-08-31 20:01", ["2016-09-07 18:00"]),
        # jmrozanec/cron-utils#215: the last working day of a month.
        ("0 0 8 * * mon-fri", "2017-06-30 10:00", ["2017-07-03 08:00"]),
    ],
)
def test_faults_that_other_libraries_had_are_not_here(text: str, begin: str, expected: list[str]) -> None:
    assert walls(text, begin, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # pallets-eco/croniter#25: 20:00 became 21:00 behind the end of summer time.
        (
            "00 20 * * *", "Europe/Paris", "2022-10-30T00:00+02:00",
            ["2022-10-30T20:00+01:00", "2022-10-31T20:00+01:00", "2022-11-01T20:00+01:00"],
        ),
        # taichino/croniter#48: an hour too early as well.
        (
            "0 8 * * 1", "Europe/Amsterdam", "2017-10-16T09:00+02:00",
            ["2017-10-23T08:00+02:00", "2017-10-30T08:00+01:00", "2017-11-06T08:00+01:00"],
        ),
        # taichino/croniter#90: the answer depended on where the search began.
        ("1 2 * * *", "Europe/Berlin", "2020-03-29T01:59:55+01:00", ["2020-03-29T03:01+02:00", "2020-03-30T02:01+02:00"]),
        ("1 2 * * *", "Europe/Berlin", "2020-03-29T01:58:55+01:00", ["2020-03-29T03:01+02:00", "2020-03-30T02:01+02:00"]),
        # taichino/croniter#19: the hour that comes twice was missing.
        (
            "*/30 * * * *", "Europe/Athens", "2013-10-27T03:00+03:00",
            ["2013-10-27T03:30+03:00", "2013-10-27T03:00+02:00", "2013-10-27T03:30+02:00", "2013-10-27T04:00+02:00"],
        ),
        # cronie-crond/cronie#218: a week was skipped on a day of 23 hours.
        ("0 12 * * 0", "Europe/Berlin", "2022-03-24T12:00+01:00", ["2022-03-27T12:00+02:00"]),
        # cronie-crond/cronie#217: an hour late where the next month has summer time.
        ("* * * */3 *", "America/New_York", "2015-02-15T00:00-05:00", ["2015-04-01T00:00-04:00"]),
        # node-cron/node-cron#517: a time before the one where the search began.
        ("*/5 * * * *", "America/New_York", "2026-03-08T06:59+00:00", ["2026-03-08T03:00-04:00"]),
        # cronsim: an expression of six fields lost its day in a gap, and came twice in an overlap.
        ("0 30 2 * * *", "Europe/Berlin", "2027-03-27T12:00+01:00", ["2027-03-28T03:30+02:00", "2027-03-29T02:30+02:00"]),
        ("0 30 2 * * *", "Europe/Berlin", "2027-10-31T00:00+02:00", ["2027-10-31T02:30+02:00", "2027-11-01T02:30+01:00"]),
        # Hexagon/croner#284: UTC has no changes.
        ("0 0 * * * *", "UTC", "2025-10-05T02:00Z", ["2025-10-05T03:00+00:00"]),
    ],
)  # fmt: skip
def test_faults_at_changes_of_a_clock_are_not_here(text: str, zone: str, after: str, expected: list[str]) -> None:
    assert moments(text, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 12 * * mon 2027", "a field of years is not known"),
        ("60 * * * *", "minute '60': expected 0 to 59"),
        ("0 24 * * *", "hour '24': expected 0 to 23"),
        ("0 0 0 1 0", "day-of-month '0'"),
        ("0 0 32 * *", "day-of-month '32'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * * 8", "day-of-week '8'"),
        ("0 0 * * monday", "day-of-week 'monday'"),
        ("5-1 * * * *", "minute '5-1'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("*/90 * * * *", "a step of 90 leaves the field; an interval of 90m is no cron expression"),
        ("*/61 * * * * *", "an interval of 61s"),
        ("0 */25 * * *", "an interval of 25h"),
        ("0 0 */32 * *", "a step of 32 leaves the field"),
        ("0 0 L/2 * *", "a last day has no step"),
        ("0 0 * * 1#6", "day-of-week '1#6'"),
        ("0 0 12 ? * 2", "count days of the week from Sunday, 0"),
        ("H * * * *", "minute 'H'"),
        ("@reboot", "is no name of a schedule"),
        ("-1 * * * *", "minute '-1'"),
        ("٣ * * * *", "characters of ASCII"),
        ("1," * 200 + "1 * * * *", "at most 400 characters"),
        ("0 9 * * 1-5 && true", "has 7 fields"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_field(text: str, words: str) -> None:
    with pytest.raises(RecurrenceInvalid) as found:
        Cron.parse(text)
    assert words in str(found.value)
    assert found.value.field == "cron"


@pytest.mark.parametrize("text", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30,31 feb */7"])
def test_a_day_that_no_month_has_never_fires(text: str) -> None:
    with pytest.raises(NeverFires, match="never comes in month"):
        Cron.parse(text)


def test_every_name_is_a_schedule() -> None:
    for name in NAMED:
        assert Cron.parse(name).next_wall(0) is not None


FIELD = st.one_of(
    st.just("*"),
    st.integers(2, 9).map("*/{}".format),
    st.integers(0, 23).map(str),
    st.tuples(st.integers(0, 9), st.integers(10, 23)).map("{0[0]}-{0[1]}".format),
    st.sets(st.integers(0, 23), min_size=2, max_size=3).map(lambda chosen: ",".join(map(str, sorted(chosen)))),
)
DAY = st.one_of(st.just("*"), st.just("L"), st.just("LW"), st.integers(1, 31).map(str), st.just("*/10"), st.just("8-9"))
MONTH = st.one_of(st.just("*"), st.integers(1, 12).map(str), st.just("*/3"))
WEEKDAY = st.one_of(
    st.just("*"), st.integers(0, 7).map(str), st.sampled_from(["1-5", "*/2", "5L", "2#1", "2#3", "2#5"])
)


@settings(max_examples=100, deadline=None)
@given(
    fields=st.tuples(FIELD, FIELD, FIELD, DAY, MONTH, WEEKDAY),
    begin_s=st.integers(0, 4_000_000_000),
)
def test_without_changes_of_a_clock_the_times_are_those_of_cronsim(fields: tuple[str, ...], begin_s: int) -> None:
    """Its iterator is right in UTC, and shares nothing with ours but the parser."""
    text = " ".join(fields)
    try:
        cron = Cron.parse(text)
    except NeverFires:
        return
    theirs = CronSim(text, datetime.fromtimestamp(begin_s, UTC))
    moments = list(islice(Recurrence(cron, Zone.named("UTC"), BY_THE_CLOCK).moments(begin_s * 1000), 4))
    # It gives up after 50 years.
    assert [each.ms for each in moments][:4] == [int(each.timestamp() * 1000) for each in islice(theirs, len(moments))]
    assert moments or next(theirs, None) is None


@given(text=st.text(max_size=40) | st.text(alphabet="0123456789*/,-LW# @?", max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        Cron.parse(text)
    except RecurrenceInvalid as error:
        assert error.field == "cron"
