"""A process that stands still between two readings of its clocks has seen no step of the wall clock."""

from __future__ import annotations

import ast
from pathlib import Path

from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.clock import READINGS_MAX, SystemClock, read_both

BASE_US = 1_772_366_400_000_000


class StandingClock(SystemClock):
    """Time passes only where the process stands still: before the readings with these numbers, for so many microseconds."""

    def __init__(self, stands: dict[int, int]) -> None:
        super().__init__()
        self._stands = stands
        self._monotonic_us = self.readings = 0
        self.stepped_us = 0

    def _stand(self) -> None:
        self._monotonic_us += self._stands.get(self.readings, 0)
        self.readings += 1

    def now_us(self) -> int:
        self._stand()
        return BASE_US + self._monotonic_us + self.stepped_us

    def monotonic_us(self) -> int:
        self._stand()
        return self._monotonic_us

    def boot_us(self) -> int:
        return self.monotonic_us()


def test_time_that_passes_between_two_readings_is_no_step() -> None:
    for reading in range(6):
        clock = StandingClock({reading: 5_000_000})
        assert read_both(clock).apart_us == BASE_US, reading
        clock.stepped_us = 3_600_000_000
        assert read_both(clock).apart_us == BASE_US + 3_600_000_000


def test_a_machine_that_stands_still_again_and_again_gives_its_closest_readings() -> None:
    stands = {number: 2_000 + 1_000 * (number != 7) for number in range(3 * READINGS_MAX)}
    clock = StandingClock(stands)
    assert abs(read_both(clock).apart_us - BASE_US) <= 3_000
    assert clock.readings == 3 * READINGS_MAX


def test_a_stop_of_the_process_moves_no_believable_time() -> None:
    for reading in range(12):
        clock = StandingClock({reading: 60_000_000})
        believable = BelievableClock(clock, 1_000, BASE_US)
        for _ in range(3):
            assert believable.now_us() <= clock.now_us() and believable.latest_us() >= clock.now_us() - 60_000_000
            assert believable.latest_us() - believable.now_us() <= 60_000_000
        assert believable.latest_us() <= clock.now_us()


def test_the_two_clocks_are_subtracted_in_one_place() -> None:
    root = Path(__file__).parents[3] / "delayserver"
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                names = [_called(side) for side in (node.left, node.right)]
                if set(names) == {"now_us", "monotonic_us"}:
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not found


def _called(node: ast.expr) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
