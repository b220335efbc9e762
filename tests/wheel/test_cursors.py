"""Facts of the loading and loaded cursors, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from wheel.cursors import LoadCursors
from wheel.keys import KEY_HIGHEST, KEY_LOWEST, Key
from wheel.window_cursor import CursorError

MINUTE_MS = 60_000


def owner(cursors: LoadCursors, offset: int, *keys: Key, source: str = "direct", window: int = 0) -> list[bool]:
    due_ms = np.array([key.due_ms for key in keys], np.int64)
    sequence = np.array([key.sequence for key in keys], np.int64)
    return [bool(mine) for mine in cursors.owner(window, source, offset, due_ms, sequence)]


def test_an_untouched_window_leaves_all_rows_to_a_later_load() -> None:
    assert owner(LoadCursors(MINUTE_MS), 4096, Key(5, 1), Key(9, 2)) == [False, False]


def test_the_record_at_the_captured_end_is_the_replayers_and_the_one_below_it_the_loaders() -> None:
    cursors = LoadCursors(MINUTE_MS)
    cursors.begin_load(0, {"direct": 100})
    assert owner(cursors, 99, Key(5, 1)) == [False]
    assert owner(cursors, 100, Key(5, 1)) == [True]


def test_each_source_has_its_own_end_and_one_without_a_file_ends_at_zero() -> None:
    cursors = LoadCursors(MINUTE_MS)
    ticket = cursors.begin_load(0, {"direct": 100})
    assert ticket.end_offsets.get("day", 0) == 0
    assert owner(cursors, 0, Key(5, 1), source="day") == [True]


def test_slices_keep_the_ends_of_the_moment_they_were_taken() -> None:
    cursors = LoadCursors(MINUTE_MS)
    cursors.finish_load(cursors.begin_load(0, {"direct": 100}, Key(10, 7)))
    ticket = cursors.begin_load(0, {"direct": 200}, Key(25, 3))
    assert (ticket.from_key, ticket.to_key) == (Key(10, 7), Key(25, 3))
    keys = Key(10, 7), Key(10, 8), Key(25, 3), Key(25, 4)
    assert owner(cursors, 150, *keys) == [True, False, False, False]
    assert owner(cursors, 200, *keys) == [True, True, True, False]
    cursors.finish_load(ticket)
    assert owner(cursors, 150, *keys) == [True, False, False, False], "loaded slices must not be joined over their ends"
    cursors.check_invariants()


def test_after_an_abandoned_load_the_first_captured_end_stands() -> None:
    cursors = LoadCursors(MINUTE_MS)
    cursors.abandon_load(cursors.begin_load(0, {"direct": 100}))
    assert owner(cursors, 100, Key(5, 1)) == [True], "it goes on to reach the wheel, so no load may bring it again"
    assert cursors.loaded_limit(0) == KEY_LOWEST
    assert cursors.windows() == [0] and not cursors.is_loaded(0)
    ticket = cursors.begin_load(0, {"direct": 300})
    assert ticket.end_offsets.get("direct", 0) == 100
    cursors.finish_load(ticket)
    assert cursors.is_loaded(0)


def test_an_abandoned_range_can_be_retried_in_smaller_slices() -> None:
    cursors = LoadCursors(MINUTE_MS)
    cursors.abandon_load(cursors.begin_load(0, {"direct": 100}, Key(50, 0)))
    first = cursors.begin_load(0, {"direct": 300}, Key(20, 0))
    cursors.finish_load(first)
    second = cursors.begin_load(0, {"direct": 300})
    cursors.finish_load(second)
    third = cursors.begin_load(0, {"direct": 300})
    assert [t.to_key for t in (first, second, third)] == [Key(20, 0), Key(50, 0), KEY_HIGHEST]
    assert [t.end_offsets.get("direct", 0) for t in (first, second, third)] == [100, 100, 300]


def test_a_later_load_owns_evicted_rows_at_any_offset() -> None:
    cursors = LoadCursors(MINUTE_MS)
    cursors.finish_load(cursors.begin_load(0, {"direct": 100}))
    cursors.evict(0, Key(30, 5))
    assert cursors.limit(0) == cursors.loaded_limit(0) == Key(30, 5)
    assert owner(cursors, 500, Key(30, 5), Key(30, 6)) == [True, False]
    again = cursors.begin_load(0, {"direct": 600})
    assert (again.from_key, again.end_offsets.get("direct", 0)) == (Key(30, 5), 600)


def test_a_load_in_flight_loses_the_part_that_is_evicted() -> None:
    cursors = LoadCursors(MINUTE_MS)
    ticket = cursors.begin_load(0, {"direct": 100})
    cursors.evict(0, Key(30, 5))
    covered = cursors.covers(ticket, np.array([30, 30, 40]), np.array([5, 6, 1]))
    assert covered.tolist() == [True, False, False]
    cursors.finish_load(ticket)
    assert cursors.loaded_limit(0) == Key(30, 5)


def test_a_load_whose_whole_range_is_evicted_covers_nothing_and_still_has_to_end() -> None:
    cursors = LoadCursors(MINUTE_MS)
    ticket = cursors.begin_load(0, {"direct": 100})
    cursors.evict(0, KEY_LOWEST)
    assert not cursors.covers(ticket, np.array([1]), np.array([1])).any()
    with pytest.raises(CursorError, match="in flight"):
        cursors.begin_load(0, {"direct": 100})
    cursors.finish_load(ticket)
    cursors.check_invariants()
    assert cursors.windows() == []


def test_evict_after_reaches_the_window_of_the_key_and_all_later_ones() -> None:
    cursors = LoadCursors(MINUTE_MS)
    for window in (0, MINUTE_MS, 2 * MINUTE_MS):
        cursors.finish_load(cursors.begin_load(window, {}))
    cursors.evict_after(Key(MINUTE_MS + 5, 9))
    assert cursors.is_loaded(0)
    assert cursors.loaded_limit(MINUTE_MS) == Key(MINUTE_MS + 5, 9)
    assert cursors.windows() == [0, MINUTE_MS]


def test_evict_between_leaves_the_windows_from_a_time_on() -> None:
    cursors = LoadCursors(MINUTE_MS)
    for window in (0, MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS):
        cursors.finish_load(cursors.begin_load(window, {}))
    cursors.evict_between(Key(MINUTE_MS + 5, 9), 3 * MINUTE_MS)
    assert cursors.is_loaded(0) and cursors.is_loaded(3 * MINUTE_MS)
    assert cursors.loaded_limit(MINUTE_MS) == Key(MINUTE_MS + 5, 9)
    assert cursors.windows() == [0, MINUTE_MS, 3 * MINUTE_MS]


def test_cursors_say_how_far_windows_are_taken_and_loaded() -> None:
    cursors = LoadCursors(MINUTE_MS)
    assert cursors.next_unloaded(MINUTE_MS + 5, 4 * MINUTE_MS) == MINUTE_MS
    tickets = [cursors.begin_load(window, {}) for window in (0, MINUTE_MS)]
    cursors.finish_load(tickets[0])
    assert [cursors.limit(window) == KEY_HIGHEST for window in (0, MINUTE_MS)] == [True, True]
    assert [cursors.is_loaded(window) for window in (0, MINUTE_MS)] == [True, False]
    assert cursors.next_unloaded(0, 4 * MINUTE_MS) == 2 * MINUTE_MS
    assert cursors.next_unloaded(0, 2 * MINUTE_MS) is None


def test_a_forgotten_window_is_as_if_never_taken() -> None:
    cursors = LoadCursors(MINUTE_MS)
    ticket = cursors.begin_load(0, {})
    with pytest.raises(CursorError, match="forgetting"):
        cursors.forget(0)
    cursors.finish_load(ticket)
    cursors.forget(0)
    assert cursors.windows() == [] and owner(cursors, 0, Key(1, 1)) == [False]


def slices(cursors: LoadCursors, window_start_ms: int) -> int:
    """How many stretches of keys the cursor of a window remembers. Its answers do not show it."""
    return len(cursors._windows[window_start_ms].slices)


def test_many_slices_with_the_same_ends_become_one() -> None:
    cursors = LoadCursors(MINUTE_MS)
    for due_ms in range(100):
        cursors.finish_load(cursors.begin_load(0, {"direct": 100}, Key(due_ms, 0)))
    assert slices(cursors, 0) == 1


def test_calls_out_of_turn_are_refused() -> None:
    cursors = LoadCursors(MINUTE_MS)
    with pytest.raises(CursorError, match="multiple"):
        cursors.begin_load(17, {})
    ticket = cursors.begin_load(0, {}, Key(10, 0))
    cursors.finish_load(ticket)
    with pytest.raises(CursorError, match="not in flight"):
        cursors.finish_load(ticket)
    with pytest.raises(CursorError, match="not in flight"):
        cursors.abandon_load(ticket)
    with pytest.raises(CursorError, match="loaded already"):
        cursors.begin_load(0, {}, Key(10, 0))
    with pytest.raises(ValueError, match="window_ms"):
        LoadCursors(0)


def test_an_eviction_within_a_long_window_takes_the_part_of_it_behind_the_key() -> None:
    hour_ms = 60 * MINUTE_MS
    cursors = LoadCursors(MINUTE_MS, lambda due_ms: 0 if due_ms < hour_ms else due_ms // MINUTE_MS * MINUTE_MS)
    for start in (0, hour_ms):
        cursors.finish_load(cursors.begin_load(start, {"day": 4096}))
    cursors.evict_after(Key(hour_ms + 5, 1))
    assert cursors.is_loaded(0) and not cursors.is_loaded(hour_ms)
    cursors.evict_after(Key(30 * MINUTE_MS, 9))
    assert cursors.loaded_limit(0) == Key(30 * MINUTE_MS, 9)
    assert cursors.is_taken_between(0, MINUTE_MS) and not cursors.is_taken_between(MINUTE_MS, 2 * hour_ms)
