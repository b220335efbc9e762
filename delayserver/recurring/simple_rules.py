"""The two rules without an expression: once at a wall time, and every so often."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.wall_time import wall_of

EVERY_MS_MAX: Final = 100 * 366 * 86_400_000
_WALL: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", re.ASCII)


@dataclass(frozen=True)
class Once:
    """One wall time, as a `WallRule`."""

    wall: int

    @classmethod
    def parse(cls, text: str) -> Once:
        """Of ``2027-03-28T09:00`` or with seconds; the zone is that of the recurrence. Raises `RecurrenceInvalid`."""
        word = text.strip()
        try:
            shown = datetime.fromisoformat(word) if _WALL.fullmatch(word) else None
        except ValueError:
            shown = None
        if shown is None:
            raise RecurrenceInvalid(
                "at", f"{text[:40]!r} is no wall time: write for example 2027-03-28T09:00; --zone says where"
            )
        return cls(wall_of(shown))

    def next_wall(self, wall: int) -> int | None:
        """The wall time, or None if it lies before `wall`."""
        return self.wall if self.wall >= wall else None


@dataclass(frozen=True)
class Every:
    """A distance in elapsed time, counted from a moment. Changes of the clock do not matter to it."""

    every_ms: int
    from_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.every_ms <= EVERY_MS_MAX:
            raise RecurrenceInvalid("every", "an interval is at least 1 ms and at most 100 years")

    def next_ms(self, after_ms: int) -> int:
        """The first moment behind `after_ms`."""
        return self.from_ms + max(0, (after_ms - self.from_ms) // self.every_ms + 1) * self.every_ms
