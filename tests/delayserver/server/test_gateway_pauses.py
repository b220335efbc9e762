"""How long clients of HTTP wait for the next child of the gateway."""

from __future__ import annotations

from itertools import accumulate

from delayserver.server.http_gateway import PAUSE_S, PAUSE_S_MAX, STEADY_S, next_pause_s


def pauses_s(*ran_s: float) -> list[float]:
    return list(accumulate(ran_s, next_pause_s, initial=0.0))[1:]


def test_a_gateway_that_serves_and_is_killed_again_and_again_comes_back_at_once() -> None:
    assert pauses_s(*[STEADY_S] * 20) == [PAUSE_S] * 20


def test_a_gateway_that_cannot_start_is_tried_less_and_less_often() -> None:
    assert pauses_s(*[0.3] * 9) == [PAUSE_S, 1, 2, 4, 8, 16, PAUSE_S_MAX, PAUSE_S_MAX, PAUSE_S_MAX]


def test_the_pause_begins_anew_behind_a_gateway_that_served() -> None:
    assert pauses_s(0.3, 0.3, 0.3, STEADY_S, 0.3) == [PAUSE_S, 1, 2, PAUSE_S, 1]
