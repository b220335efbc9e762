"""The stored records of each open schedule window. They show which messages of a repeated hand-off are duplicates.

Pure. A server hands off window by window. While a window is open, it may repeat an attempt whose result it does not
know. The keys (sequence, redelivery) of the window's records identify the messages that are stored already.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64

Window = tuple[int, int]
"""(server id, window_ms)"""


@dataclass(slots=True)
class Extent:
    """Records between two store offsets (`stop` not included) with the smallest and largest sequence in them."""

    start: int
    stop: int
    sequence_min: int
    sequence_max: int

    def merge(self, other: Extent) -> None:
        """Take in the extent behind this one."""
        self.stop = other.stop
        self.sequence_min = min(self.sequence_min, other.sequence_min)
        self.sequence_max = max(self.sequence_max, other.sequence_max)


def by_window(server_id: I64, window_ms: I64) -> list[tuple[Window, NDArray[np.intp] | None]]:
    """The windows of one record, each with its rows. Rows of None mean all of them, which is nearly always the case."""
    server = int(server_id[0])
    first = int(window_ms[0])
    if bool((window_ms == first).all()):
        return [((server, first), None)]
    order = np.argsort(window_ms, kind="stable")
    starts = window_ms[order]
    cuts = np.flatnonzero(starts[1:] != starts[:-1]) + 1
    return [((server, int(window_ms[rows[0]])), rows) for rows in np.split(order, cuts)]


@dataclass(slots=True)
class WindowTable:
    """The extents of each open window, ascending. Neighbours are merged when a list exceeds `extents_max`."""

    extents_max: int
    extents: dict[Window, list[Extent]] = field(default_factory=dict)

    def add_record(self, start: int, stop: int, server_id: I64, window_ms: I64, sequence: I64) -> None:
        """Note a stored record, which may have rows of several windows of one server."""
        for window, rows in by_window(server_id, window_ms):
            mine = sequence if rows is None else sequence[rows]
            self.add(window, Extent(start, stop, int(mine.min()), int(mine.max())))

    def add(self, window: Window, extent: Extent) -> None:
        """Note a stored record of a window."""
        places = self.extents.setdefault(window, [])
        assert not places or places[-1].stop <= extent.start, "store offsets only grow"
        if places and places[-1].stop == extent.start:
            # Back to back, as when only one window is being delivered: one extent as long as its keys are dense enough
            # is as good as many, because a check reads it once and remembers the keys.
            places[-1].merge(extent)
            return
        places.append(extent)
        if len(places) > self.extents_max:
            self.extents[window] = _merge_pairs(places)

    def of(self, window: Window) -> list[Extent]:
        """The extents of a window; an empty list if no record has messages of it."""
        return self.extents.get(window, [])

    def complete(self, window: Window) -> None:
        """Drop a window: its server will not hand off messages of it again."""
        self.extents.pop(window, None)

    def retire(self, below: int) -> None:
        """Drop extents below a store offset: retention removed their records."""
        for window in list(self.extents):
            kept = [extent for extent in self.extents[window] if extent.stop > below]
            if kept:
                self.extents[window] = kept
            else:
                del self.extents[window]

    def lowest(self) -> int | None:
        """The lowest store offset that an open window needs."""
        return min([places[0].start for places in self.extents.values()], default=None)


def _merge_pairs(places: list[Extent]) -> list[Extent]:
    for even, odd in zip(places[::2], places[1::2], strict=False):
        even.merge(odd)
    return places[::2]
