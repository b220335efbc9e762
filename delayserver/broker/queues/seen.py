"""How often earlier processes handed out the positions of a queue to a group, and which of them it had leased at the end.
Pure, in positions.

The progress log has it exactly. A row of each hand-out sets the count of its positions, and so does a row of each count
that was taken back. What the present process adds is in the cursor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.queues.places import LEASED, READY, Place, Places
from delayserver.broker.queues.ranges import Range
from store.records.batches import I64

Count = tuple[int, int, int, bool]
"""(start, stop, times, leased): positions that were handed out `times` times. `leased`: a consumer has them."""


class Seen:
    """Counts of hand-outs by position, as ranges. At most one for each range that the group has not acked."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # Most cursors never need it. LEASED: a consumer had the positions when their process ended.
        self._places: Places | None = None

    def __bool__(self) -> bool:
        """Whether any position was handed out."""
        return self._places is not None

    def set(self, start: int, stop: int, times: int, *, leased: bool) -> None:
        """Set how often positions were handed out, and whether they are leased."""
        if self._places is None:
            self._places = Places()
        if times:
            self._places.put(Place(start, stop, times, LEASED if leased else READY))
        else:
            self._places.remove(start, stop)

    def restore_step(self, start: int, stop: int, times: int) -> None:
        """Restore a row of an older program, which counted all positions that it had looked at. Its own hand-outs are not
        in `times`. A row that starts at 0 makes all before it void."""
        if not start:
            self._places = None
        self.set(start, stop, times + 1, leased=False)

    def forget_below(self, position: int) -> None:
        """Forgets positions below this one, which are done."""
        if self._places is not None:
            self._places.remove(0, position)

    def restart(self, unacked: list[Range]) -> None:
        """Begins after the progress log was read. Only positions in these ranges, which ascend, may come again."""
        if self._places is None:
            return
        kept = [part for span in unacked for part in self._places.parts(*span)]
        self._places = None
        for start, stop, times, state, *_ in kept:
            self.set(start, stop, times, leased=state == LEASED)

    def overlay(self, start: int, times: I64) -> None:
        """Set `times` i64[n], for positions from `start` on, where they were handed out."""
        for place in () if self._places is None else self._places.parts(start, start + len(times)):
            times[place.start - start : place.stop - start] = place.times

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The parts (start, stop, times) of a range that were handed out equally often."""
        found: list[tuple[int, int, int]] = []
        for place in () if self._places is None else self._places.parts(start, stop):
            if start < place.start:
                found.append((start, place.start, 0))
            found.append(place[:3])
            start = place.stop
        return [*found, (start, stop, 0)] if start < stop else found

    def counts(self, start: int, stop: int) -> list[Count]:
        """The counts of a range, without positions that were never handed out."""
        places = () if self._places is None else self._places.parts(start, stop)
        return [(place.start, place.stop, place.times, place.state == LEASED) for place in places]

    def were_leased(self, start: int, count: int) -> NDArray[np.bool_] | None:
        """Which of the positions from `start` on were leased when their process ended, bool[count]; None for none."""
        leased: NDArray[np.bool_] | None = None
        for place in () if self._places is None else self._places.parts(start, start + count):
            if place.state == LEASED:
                leased = np.zeros(count, bool) if leased is None else leased
                leased[place.start - start : place.stop - start] = True
        return leased

    def end_leases(self, start: int, stop: int) -> None:
        """Ends the leases of these positions, which an earlier process gave."""
        for place in () if self._places is None else self._places.parts(start, stop):
            if place.state == LEASED:
                self.set(place.start, place.stop, place.times, leased=False)

    @property
    def stop(self) -> int:
        """The position behind the last one that was handed out; 0 for none."""
        return 0 if self._places is None else self._places.stop
