"""How often earlier processes handed out the positions of a queue to a group. Pure.

Steps (stop, times): positions below the first stop count `times`, those from it on to the next stop count the `times` of the
next step, and so on. A restart adds one to all steps, and one step for what the process handed out for the first time.
"""

from __future__ import annotations

from store.records.batches import I64

# A message that is never acked keeps a step for each restart. Beyond so many steps the oldest ones become one, with the
# higher count.
_STEPS_MAX = 8


class Seen:
    """The steps of one cursor."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def restore(self, start: int, stop: int, times: int) -> None:
        """Add a step from the progress log. One that starts at 0 makes all before it void."""
        if not start:
            self._steps = []
        self._steps.append((stop, times))

    def restart(self, committed: int, end: int) -> None:
        """The process that handed these positions out has ended. The queue ends at `end`."""
        steps = [(min(stop, end), times + 1) for stop, times in self._steps if stop > committed]
        while len(steps) > _STEPS_MAX:
            (_, oldest), (stop, times) = steps[:2]
            steps[:2] = [(stop, max(oldest, times))]
        self._steps = steps

    def to_log(self, committed: int, following: int) -> list[tuple[int, int, int]]:
        """(start, stop, times) of each step, for the progress log. Positions below `following` have been handed out."""
        steps = [step for step in self._steps if step[0] > committed]
        if not steps or steps[-1][0] < following:
            steps.append((following, 0))
        starts = [0, *[stop for stop, _ in steps]]
        return [(start, stop, times) for start, (stop, times) in zip(starts, steps, strict=False)]

    def overlay(self, start: int, times: I64) -> None:
        """Set `times` i64[n], for positions from `start` on, where they were handed out."""
        for stop, number in reversed(self._steps):
            times[: max(0, stop - start)] = number

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The parts (start, stop, times) of a range that were handed out equally often."""
        found: list[tuple[int, int, int]] = []
        for edge, times in (*self._steps, (stop, 0)):
            if start < min(edge, stop):
                found.append((start, min(edge, stop), times))
                start = min(edge, stop)
        return found
