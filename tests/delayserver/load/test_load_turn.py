"""Whose turn it is to be loaded where memory is short, as tables."""

from __future__ import annotations

import pytest

from delayserver.load.load_turn import NearFuture, overdue_room, room_beside_near, room_beside_overdue
from delayserver.state.memory.overflow import low_room

NOW_MS = 1_000_000
SHARE = 500


@pytest.mark.parametrize(
    ("loaded_ahead_ms", "rows", "waits"),
    [
        pytest.param(-50_000, 0, False, id="nothing is loaded"),
        pytest.param(999, 10_000, False, id="what is due within a second is not loaded yet"),
        pytest.param(1_000, 250, True, id="half of its share is in memory"),
        pytest.param(1_000, 249, False, id="less than half of its share"),
        pytest.param(9_999, 0, False, id="few rows, and more may be due within ten seconds"),
        pytest.param(10_000, 0, True, id="few rows are due within ten seconds"),
    ],
)
def test_the_rest_of_a_near_window_waits_behind_overdue_ones_when_enough_is_loaded(
    loaded_ahead_ms: int, rows: int, waits: bool
) -> None:
    assert NearFuture(NOW_MS + loaded_ahead_ms, rows).may_wait(NOW_MS, SHARE) is waits


def test_the_near_future_waits_with_a_second_loaded_where_queues_hold_its_share() -> None:
    assert NearFuture(NOW_MS + 1_000, 0).may_wait(NOW_MS, -100)
    assert not NearFuture(NOW_MS + 999, 0).may_wait(NOW_MS, -100)


@pytest.mark.parametrize("rows_max", [4, 24, 1_000, 1_500_000])
def test_near_and_overdue_loads_find_the_room_that_the_other_leaves(rows_max: int) -> None:
    assert room_beside_overdue(rows_max, rows_max) > overdue_room(rows_max)
    assert room_beside_near(rows_max) > low_room(rows_max)
    for room in range(low_room(rows_max) + 1, rows_max + 1, max(rows_max // 20, 1)):
        assert room - room_beside_overdue(rows_max, room) >= low_room(rows_max), "it takes what it waited for"
