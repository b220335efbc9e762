"""Where the timer of each schedule lies, by the name of the schedule: all that memory has of a schedule, some 400 bytes.

The checkpoint keeps it, so that a start reads no file for it. The replay goes on from there.
"""

from __future__ import annotations

from typing import NamedTuple

from sortedcontainers import SortedDict


class ScheduleTimerPlace(NamedTuple):
    """The pending timer of a schedule."""

    due_ms: int
    sequence: int


class ScheduleTimers:
    """Timers by name, in the order of the names. Writers: the start, then the replay. For the event loop."""

    __slots__ = ("_names", "_places")

    def __init__(self) -> None:
        self._places: SortedDict[str, ScheduleTimerPlace] = SortedDict()
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._places)

    def get(self, name: str) -> ScheduleTimerPlace | None:
        """The timer of a schedule; None if there is no schedule of this name."""
        place: ScheduleTimerPlace | None = self._places.get(name)
        return place

    def place(self, name: str, place: ScheduleTimerPlace) -> None:
        """This is the timer of a schedule, unless a later one is known."""
        known = self._places.get(name)
        if known is not None:
            if known.sequence > place.sequence:
                return
            del self._names[known.sequence]
        self._places[name] = place
        self._names[place.sequence] = name

    def end(self, sequence: int) -> None:
        """A record has an outcome. If it is the timer of a schedule, the schedule is gone: a next one was placed before."""
        name = self._names.pop(sequence, None)
        if name is not None:
            del self._places[name]

    def behind(self, name: str, count: int) -> list[tuple[str, ScheduleTimerPlace]]:
        """The first schedules behind a name, in the order of the names."""
        first = self._places.bisect_right(name) if name else 0
        names = self._places.keys()[first : first + count]
        return [(each, self._places[each]) for each in names]

    def all(self) -> dict[str, ScheduleTimerPlace]:
        """All of them, as they are in this step."""
        return dict(self._places)

    def check_invariants(self) -> None:
        """Both directions say the same."""
        assert self._names == {place.sequence: name for name, place in self._places.items()}
