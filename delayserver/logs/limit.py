"""How many lines of one event the log gets. Pure: the caller gives the time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

LINES_MAX: Final = 20
"""Lines of one event in `PERIOD_S`. An operator sees from them what goes on. A thousand more would say nothing new, and
would cost the disk and the event loop."""
PERIOD_S: Final = 60.0
KINDS_MAX: Final = 512
"""Events that are remembered. The program has some dozens, and its libraries some loggers."""


class LineLimit:
    """Counts the lines of each event, in periods that begin with its first line."""

    def __init__(self) -> None:
        # event → (begin of its period, lines in it, lines left out in it), oldest period first.
        self._periods: OrderedDict[str, tuple[float, int, int]] = OrderedDict()

    def admits(self, event: str, now_s: float) -> bool:
        """Counts a line of the event. False: leave it out. Call `take_ended` before."""
        began_s, lines, left_out = self._periods.get(event, (now_s, 0, 0))
        if lines >= LINES_MAX:
            self._periods[event] = began_s, lines, left_out + 1
            return False
        self._periods[event] = began_s, lines + 1, left_out
        if len(self._periods) > KINDS_MAX:
            self._periods.popitem(last=False)
        return True

    def take_ended(self, now_s: float) -> dict[str, int]:
        """Takes out the events whose period has ended. Returns the number of lines that were left out of each."""
        told = {}
        while self._periods:
            event, (began_s, _, left_out) = next(iter(self._periods.items()))
            if now_s - began_s < PERIOD_S:
                break
            del self._periods[event]
            if left_out:
                told[event] = left_out
        return told

    def check_invariants(self) -> None:
        """All bounds hold, and the oldest period is first."""
        begins = [began_s for began_s, _, _ in self._periods.values()]
        assert begins == sorted(begins) and len(begins) <= KINDS_MAX
        assert all(1 <= lines <= LINES_MAX for _, lines, _ in self._periods.values())
