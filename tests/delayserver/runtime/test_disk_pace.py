"""When a sync may hold the event loop: while syncs are quick, whatever a single one of them took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayserver.runtime.disk_pace import INLINE_SYNC_US_MAX, DiskPace

quick_us = st.integers(0, INLINE_SYNC_US_MAX // 2)
slow_us = st.integers(2 * INLINE_SYNC_US_MAX, 1 << 40)
any_us = st.integers(0, 1 << 40)


def pace_after(*durations_us: int) -> DiskPace:
    pace = DiskPace()
    for duration_us in durations_us:
        pace.add_sync(duration_us)
    return pace


def test_a_disk_that_was_never_asked_counts_as_quick() -> None:
    assert DiskPace().quick


@given(st.lists(quick_us, max_size=40), st.integers(0, 1 << 62))
def test_one_pause_of_the_machine_does_not_make_a_quick_disk_slow(before_us: list[int], pause_us: int) -> None:
    assert pace_after(*before_us, pause_us).quick


@given(st.lists(any_us, max_size=20), st.lists(slow_us, min_size=40, max_size=40))
def test_a_disk_that_stays_slow_is_not_waited_for(before_us: list[int], slow: list[int]) -> None:
    pace = pace_after(*before_us, *slow)
    assert not pace.quick


@given(st.lists(any_us, max_size=40), st.lists(quick_us, min_size=24, max_size=24))
def test_a_slow_minute_is_forgotten_after_some_quick_syncs(before_us: list[int], quick: list[int]) -> None:
    assert pace_after(*before_us, *quick).quick


@given(st.lists(st.integers(0, INLINE_SYNC_US_MAX - 1), max_size=200))
def test_a_disk_within_the_bound_is_quick_at_every_moment(durations_us: list[int]) -> None:
    pace = DiskPace()
    for duration_us in durations_us:
        pace.add_sync(duration_us)
        assert pace.quick
