from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.logs.due_windows import (
    DAY_MS,
    TIME_MS_MAX,
    check_window_ms,
    day_name,
    day_of,
    parse_day_name,
    parse_time_name,
    time_name,
    window_of,
    window_starts,
)

WINDOWS = [1_000, 5_000, 60_000, 300_000, 3_600_000, DAY_MS]
NINE_FIFTEEN = 1_795_252_500_000  # 2026-11-21 09:15 UTC


def window_name(start_ms: int, window_ms: int) -> str:
    return f"{day_name(day_of(start_ms))}/{time_name(start_ms, window_ms)}"


def parse_window_name(name: str, window_ms: int) -> int:
    day, _, time = name.partition("/")
    return parse_day_name(day) + parse_time_name(time, window_ms)


def test_a_minute_is_named_by_day_and_time_in_utc() -> None:
    assert window_name(NINE_FIFTEEN, 60_000) == "2026-11-21/0915"


def test_a_window_below_a_minute_has_seconds_in_its_name() -> None:
    assert window_name(NINE_FIFTEEN + 30_000, 30_000) == "2026-11-21/091530"
    assert window_name(NINE_FIFTEEN, 30_000) == "2026-11-21/091500"


def test_a_leap_day_has_a_name() -> None:
    assert day_name(parse_day_name("2028-02-29")) == "2028-02-29"


@given(st.integers(0, TIME_MS_MAX), st.sampled_from(WINDOWS))
def test_names_and_starts_are_inverse(due_ms: int, window_ms: int) -> None:
    start_ms = window_of(due_ms, window_ms)
    assert start_ms <= due_ms < start_ms + window_ms
    assert parse_window_name(window_name(start_ms, window_ms), window_ms) == start_ms


@given(st.integers(0, TIME_MS_MAX), st.sampled_from(WINDOWS))
def test_a_window_never_crosses_a_day(due_ms: int, window_ms: int) -> None:
    start_ms = window_of(due_ms, window_ms)
    assert day_of(start_ms) == day_of(start_ms + window_ms - 1) == day_of(due_ms)
    assert parse_day_name(day_name(day_of(due_ms))) == day_of(due_ms)


@given(st.lists(st.integers(0, TIME_MS_MAX), max_size=50), st.sampled_from(WINDOWS))
def test_columns_agree_with_single_times(due_ms: list[int], window_ms: int) -> None:
    column = np.array(due_ms, np.int64)
    assert window_starts(column, window_ms).tolist() == [window_of(due, window_ms) for due in due_ms]


@pytest.mark.parametrize("window_ms", [0, -60_000, 1, 500, 1_500, 7_000, 7 * 60_000, 2 * DAY_MS])
def test_a_window_that_does_not_tile_the_day_is_refused(window_ms: int) -> None:
    with pytest.raises(ValueError, match="window_ms"):
        check_window_ms(window_ms)


@pytest.mark.parametrize("start_ms", [-60_000, NINE_FIFTEEN + 1, TIME_MS_MAX + 1])
def test_a_time_that_is_no_start_of_a_window_has_no_name(start_ms: int) -> None:
    with pytest.raises(ValueError, match="not the start"):
        window_name(start_ms, 60_000)


@pytest.mark.parametrize(
    "name",
    ["", "2026-11-21", "2026-11-21/", "2026-11-21/9999", "2026-11-21/0960", "2026-11-21/2400", "2026-11-21/09:1",
     "2026-11-21/091500", "2026-13-01/0000", "2026-2-03/0000", "1969-12-31/0000", "2026-11-21/+915", "x/0915"],
)  # fmt: skip
def test_nonsense_is_no_name_of_a_minute(name: str) -> None:
    with pytest.raises(ValueError):
        parse_window_name(name, 60_000)


def test_a_time_between_windows_is_no_name() -> None:
    with pytest.raises(ValueError, match="no window"):
        parse_window_name("2026-11-21/0916", 300_000)
