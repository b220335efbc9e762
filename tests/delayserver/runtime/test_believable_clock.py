"""Since when a clock is to be believed, against a brute-force history."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.runtime.believable_clock import PARTS, BelievableClock
from delayserver.runtime.clock import LOOK_AGAIN_MS

HOUR_US = 3_600_000_000
HOLD_MS = 60_000
HOLD_US = HOLD_MS * 1000
PART_US = HOLD_US // PARTS
BASE_US = 1_772_323_200_000_000


class TwoClocks:
    """A `Clock` whose two times a test sets."""

    def __init__(self) -> None:
        self.wall_us = BASE_US
        self.monotonic = 0

    def now_us(self) -> int:
        return self.wall_us

    def now_ms(self) -> int:
        return self.wall_us // 1000

    def monotonic_us(self) -> int:
        return self.monotonic

    def boot_us(self) -> int:
        return self.monotonic

    def wait_s(self, wall_us: int) -> float:
        return LOOK_AGAIN_MS / 1000

    async def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError("it never waits")

    async def sleep_until_us(self, wall_us: int) -> None:
        raise AssertionError("it never waits")

    def go(self, duration_us: int) -> None:
        self.wall_us += duration_us
        self.monotonic += duration_us


def test_a_step_forward_counts_when_it_has_held_and_a_step_back_at_once() -> None:
    clock = TwoClocks()
    believable = BelievableClock(clock, HOLD_MS, clock.wall_us)
    clock.go(HOUR_US)
    assert believable.now_us() == clock.wall_us == believable.latest_us()
    clock.wall_us += 10 * HOUR_US
    for _ in range(50):
        clock.go(HOLD_US // 50)
        assert believable.now_us() == clock.wall_us - 10 * HOUR_US
        assert believable.latest_us() == clock.wall_us
    clock.go(2 * PART_US)
    assert believable.now_us() == clock.wall_us
    clock.wall_us -= 3 * HOUR_US
    assert believable.now_us() == clock.wall_us
    assert believable.latest_us() == clock.wall_us + 3 * HOUR_US
    believable.check_invariants()


def test_a_step_in_a_time_without_readings_counts_from_the_reading_that_saw_it() -> None:
    clock = TwoClocks()
    believable = BelievableClock(clock, HOLD_MS, clock.wall_us)
    clock.go(HOUR_US)
    clock.wall_us += 10 * HOUR_US
    assert believable.now_us() == clock.wall_us - 10 * HOUR_US
    clock.go(HOLD_US // 2)
    assert believable.now_us() == clock.wall_us - 10 * HOUR_US
    clock.go(HOLD_US)
    assert believable.now_us() == clock.wall_us


@pytest.mark.parametrize("known_us", [0, BASE_US - HOUR_US, BASE_US, BASE_US + HOUR_US])
def test_the_believable_time_of_a_start_is_that_of_the_last_life_and_never_past_the_clock(known_us: int) -> None:
    clock = TwoClocks()
    clock.monotonic = 7 * HOUR_US
    believable = BelievableClock(clock, HOLD_MS, known_us)
    assert believable.now_us() == min(known_us, BASE_US)
    clock.go(HOLD_US // 2)
    assert believable.now_us() == min(known_us, BASE_US) + HOLD_US // 2
    clock.go(HOLD_US)
    assert believable.now_us() == clock.wall_us


@pytest.mark.parametrize("seed", range(20))
def test_the_believable_time_agrees_with_a_history_of_all_readings(seed: int) -> None:
    chance = Random(seed)
    clock = TwoClocks()
    believable = BelievableClock(clock, HOLD_MS, clock.wall_us)
    # (until when it may have stood so, the difference): each reading lasts until the next.
    history: list[tuple[int, int]] = [(0, clock.wall_us)]
    for _ in range(400):
        clock.go(chance.choice([0, 1, 250_000, PART_US, HOLD_US // 3, 2 * HOLD_US]))
        if chance.random() < 0.2:
            clock.wall_us += chance.choice([-1, 1]) * int(10 ** (chance.random() * 11))
        now = clock.monotonic
        history[-1] = (now, history[-1][1])
        history.append((now, clock.wall_us - now))
        held = [difference for until, difference in history if until >= now - HOLD_US]
        longer = [difference for until, difference in history if until >= now - HOLD_US - PART_US]
        assert max(now + min(longer), 0) <= believable.now_us() <= max(now + min(held), 0)
        assert now + max(held) <= believable.latest_us() <= now + max(longer)
        assert believable.now_us() <= max(clock.wall_us, 0) and clock.wall_us <= believable.latest_us()
        believable.check_invariants()
