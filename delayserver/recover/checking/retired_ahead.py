"""Retired windows that lie in the future: a clock that was ahead had them delivered, and they stay closed for sends."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.recover.reading.capture import Capture

# Windows that are named one by one: two days of minutes.
NAMED_MAX = 2_880


@dataclass(frozen=True, slots=True)
class RetiredAhead:
    """How many there are, and the starts of the first `NAMED_MAX`, ascending."""

    count: int
    starts_ms: list[int]
    last_ms: int


def retired_ahead(taken: Capture, now_ms: int) -> RetiredAhead:
    """Windows in the ledger that end behind `now_ms`."""
    if taken.tables.ledger is None:
        return RetiredAhead(0, [], 0)
    windows = taken.tables.ledger.windows()
    starts = windows[(windows[:, 1] == 0) & (windows[:, 0] + taken.files.window_ms > now_ms), 0]
    return RetiredAhead(len(starts), starts[:NAMED_MAX].tolist(), int(starts[-1]) if len(starts) else 0)
