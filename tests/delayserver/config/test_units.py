"""Durations, sizes, instants and addresses: what people write, and what is refused with advice."""

from __future__ import annotations

import pytest

from delayserver.config.units import (
    format_duration,
    format_instant,
    format_size,
    format_utc,
    parse_duration_ms,
    parse_instant_ms,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("0s", 0),
        ("1.5s", 1_500),
        ("0.1ms", 1),
        (" 7D ", 604_800_000),
        ("250MS", 250),
    ],
)
def test_durations_are_read(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "10", "s", "-5s", "10 s 5", "5 minutes", "1e3s", "٣s", "10s extra"])
def test_a_text_that_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="10s, 5m, 2h or 3d"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["3M", "1h30M", " 2M"])
def test_a_unit_that_could_be_minutes_or_months_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="minutes or months"):
        parse_duration_ms(text)


def test_sizes_are_read_and_refused() -> None:
    assert parse_size_bytes("64MiB") == 64 << 20
    assert parse_size_bytes("16 KiB") == 16 << 10
    assert parse_size_bytes("1.5GB") == 1_500_000_000
    with pytest.raises(ValueError, match="64MiB"):
        parse_size_bytes("64")
    with pytest.raises(ValueError, match="64MiB"):
        parse_size_bytes("5 apples")


def test_an_instant_needs_a_zone_and_the_error_shows_how_to_write_one() -> None:
    assert parse_instant_ms("1970-01-01T00:00:01Z") == 1_000
    assert parse_instant_ms("2026-03-03T09:00:00+01:00") == parse_instant_ms("2026-03-03T08:00:00Z")
    with pytest.raises(ValueError, match=r"has no zone: write 2026-03-03T09:00:00Z for UTC, or 2026-03-03T09:00:00\+"):
        parse_instant_ms("2026-03-03 09:00")
    with pytest.raises(ValueError, match="is no ISO 8601 time"):
        parse_instant_ms("tomorrow")


def test_an_instant_is_rounded_up_so_that_nothing_is_early() -> None:
    assert parse_instant_ms("1970-01-01T00:00:00.000001Z") == 1


def test_figures_for_people_use_at_most_two_units() -> None:
    assert format_duration(250) == "250 ms"
    assert format_duration(1_500) == "1.5 s"
    assert format_duration(7_500_000) == "2 h 5 m"
    assert format_duration(3 * 86_400_000) == "3 d"
    assert format_size(64 << 20) == "64MiB"
    assert format_size(1001) == "1001B"


def test_an_instant_in_utc_is_read_back_the_same_and_one_beyond_the_calendar_is_said_to_be() -> None:
    assert format_utc(1_772_524_800_123) == "2026-03-03T08:00:00.123Z"
    assert parse_instant_ms(format_utc(1_772_524_800_123)) == 1_772_524_800_123
    assert format_utc(-1) == "1969-12-31T23:59:59.999Z"
    assert format_utc(1 << 62) == format_utc(-1 << 62) == "a time beyond the calendar"


def test_an_instant_for_people_is_read_back_the_same() -> None:
    assert parse_instant_ms(format_instant(1_772_524_800_123)) == 1_772_524_800_123
