"""`delayserver schedule next`: what programs and people read, and what it says of bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
BERLIN = ("schedule", "next", "--zone", "Europe/Berlin")


def test_a_program_reads_due_times_a_line(delayserver: Run) -> None:
    done = delayserver(*BERLIN, "--cron", "0 9 * * 1-5", "--after", "2027-01-01T12:00Z", "--count", "2", "--json")
    assert done.code == 0
    assert done.rows == [
        {"due_ms": 1_799_049_600_000, "local": "2027-01-04T09:00:00+01:00"},
        {"due_ms": 1_799_136_000_000, "local": "2027-01-05T09:00:00+01:00"},
    ]


def test_a_program_reads_how_a_change_of_the_clock_decided(delayserver: Run) -> None:
    done = delayserver(*BERLIN, "--cron", "*/30 * * * *", "--after", "2027-10-31T00:00Z", "--count", "4", "--json")
    shown = [(row["local"][11:], row.get("reading")) for row in done.rows]
    assert shown == [
        ("02:30:00+02:00", "first"),
        ("02:00:00+01:00", "second"),
        ("02:30:00+01:00", "second"),
        ("03:00:00+01:00", None),
    ]


def test_people_read_local_time_offset_and_why(delayserver: Run) -> None:
    done = delayserver(*BERLIN, "--cron", "30 2 * * *", "--after", "2027-03-27T00:00Z", "--count", "3")
    header, first, gap, third, empty, choices = done.out.splitlines()
    assert header.split() == ["local", "time", "offset", "from", "now"]
    assert first.startswith("Sat 2027-03-27 02:30:00      +01:00  ")
    assert gap.startswith("Sun 2027-03-28 03:30:00      +02:00  ")
    assert gap.endswith("later: the clock goes from 02:00 to 03:00, without 02:30")
    assert third.startswith("Mon 2027-03-29 02:30:00      +02:00  ")
    assert (empty, "(--gap later)" in choices, "(--overlap earlier)" in choices) == ("", True, True)


def test_people_read_what_a_choice_leaves_out(delayserver: Run) -> None:
    done = delayserver(*BERLIN, "--cron", "30 2 * * *", "--gap", "skip", "--after", "2027-03-27T12:00Z", "--count", "1")
    _, left_out, moment, *_ = done.out.splitlines()
    assert left_out.startswith("Sun 2027-03-28 02:30:00")
    assert "left out" in left_out and left_out.endswith("the clock goes from 02:00 to 03:00, without 02:30")
    assert moment.startswith("Mon 2027-03-29 02:30:00")


def test_a_zone_without_changes_and_an_interval_have_no_choices(delayserver: Run) -> None:
    for rule in (("--cron", "0 9 * * *"), ("--every", "1500ms", "--zone", "Europe/Berlin")):
        done = delayserver("schedule", "next", *rule, "--count", "2")
        assert (done.code, len(done.out.splitlines())) == (0, 3)
        assert "--gap" not in done.out


def test_bounds_and_days_out_reach_the_rule(delayserver: Run) -> None:
    bounds = ("--start", "2027-12-24T00:00Z", "--times", "3", "--except", "12-25", "--except", "sun")
    done = delayserver("schedule", "next", "--every", "1d", *bounds, "--json")
    assert [row["local"][:10] for row in done.rows] == ["2027-12-24", "2027-12-27", "2027-12-28"]
    ended = delayserver("schedule", "next", "--cron", "@daily", "--end", "2026-01-01T00:00Z")
    assert (ended.code, ended.out.startswith("nothing fires after ")) == (1, True)
    assert delayserver("schedule", "next", "--at", "2026-01-01T00:00", "--json").out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say when: --cron"),
        (["--cron", "@daily", "--every", "1h"], "give only one of --cron and --every"),
        (["--cron", "0 25 * * *"], "Invalid value for --cron: hour '25': expected 0 to 23"),
        (["--cron", "0 0 31 2 *"], "Invalid value for --cron: day-of-month '31' never comes in month '2'"),
        (["--cron", "0 0 * * mon", "--except", "mon"], "Invalid value for --cron: no moment fits"),
        (["--cron", "@daily", "--zone", "Europe/Berln"], "'Europe/Berln' is no zone: did you mean Europe/Berlin?"),
        (["--cron", "@daily", "--except", "someday"], "Invalid value for --except: 'someday' is no day"),
        (["--cron", "@daily", "--times", "3"], "Invalid value for --times: times are counted from a start"),
        (["--cron", "@daily", "--start", "2027-01-01T00:00Z", "--end", "2026-01-01T00:00Z"], "Invalid value for --end"),
        (["--at", "tomorrow"], "Invalid value for --at: 'tomorrow' is no wall time"),
        (["--every", "0s"], "Invalid value for --every: an interval is at least 1 ms"),
        (["--cron", "@daily", "--gap", "both"], "Invalid value for '--gap'"),
        (["--cron", "@daily", "--count", "0"], "Invalid value for '--count'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_that_names_the_option(delayserver: Run, arguments: list[str], words: str) -> None:
    done = delayserver("schedule", "next", *arguments)
    assert done.code == 2
    assert words in done.err.splitlines()[-1]
