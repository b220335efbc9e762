"""A page of a list of pending messages that is being made."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.listing.list_place import ListPlace
from delayserver.operations.listing.list_scan import Scanned

Rows = NDArray[np.intp]


@dataclass(slots=True)
class ListPage:
    """A page that is being made. `next` is where the following one begins, None until that is known."""

    max: int
    counts: bool
    taken: list[tuple[Scanned, Rows]] = field(default_factory=list)
    rows: int = 0
    matching: int = 0
    unreadable: int = 0
    next: ListPlace | None = None

    @property
    def is_full(self) -> bool:
        return self.rows == self.max

    def note_damages(self, count: int) -> None:
        """Notes places that may hide messages."""
        self.unreadable += count

    def take(self, scanned: Scanned, rows: Rows) -> None:
        """Takes as many of some rows without an outcome as there is room for."""
        self.matching += len(rows)
        mine = rows[: self.max - self.rows]
        if not len(mine):
            return
        self.taken.append((scanned, mine))
        self.rows += len(mine)
        if self.is_full:
            self.next = scanned.place_behind(int(mine[-1]))
