"""Whose turn it is where memory is short: the rest of a near window, or overdue windows. Pure: no clock, no files.

A window with more rows than memory may hold is loaded in parts, and its rest wants room all the time. Overdue messages must
not wait behind that rest, and fresh messages must not wait behind the backlog. So the near future has a share of memory
first. Beyond it overdue windows have their turns, and leave enough room for the next part of the near future.
"""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.state.memory.overflow import low_room

# The share of memory that the near future has before overdue windows.
NEAR_SHARE = 0.5
# A near window is loaded in the next part when memory is not short (`low_room`), overdue windows when more than this share
# of it is free.
OVERDUE_ROOM_SHARE = 0.375
# Of the near future this much is loaded before overdue windows have their turn, as far as its share of memory holds it.
NEAR_MS = 10_000
# And this much in any case: what becomes due so soon is not dropped from memory, and is loaded before anything overdue.
SOON_MS = 1_000


@dataclass(frozen=True, slots=True)
class NearFuture:
    """The near future that memory holds."""

    loaded_to_ms: int
    """All rows that are due before this time are in memory."""
    rows: int
    """Rows in memory that are not due yet."""

    def may_wait(self, now_ms: int, share_rows: int) -> bool:
        """Whether its next rows may wait for overdue windows. `share_rows`: the rows of its share of memory. Half of them
        suffice: an overdue window makes room down to the share, and the time that passes does not undo that at once."""
        ahead_ms = self.loaded_to_ms - now_ms
        return ahead_ms >= NEAR_MS or (ahead_ms >= SOON_MS and 2 * self.rows >= share_rows)


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """How much of memory one load may take."""

    leave_rows: int = 0
    """Rows of room that stay free."""
    until_ms: int | None = None
    """Where the load ends in the middle, the rows behind its end leave memory: those that are due before this time; None:
    all of them, since memory holds the earliest rows."""


def near_share(rows_max: int) -> int:
    """Rows of memory that the near future has first."""
    return int(rows_max * NEAR_SHARE)


def overdue_room(rows_max: int) -> int:
    """Overdue windows are loaded while there is room for more rows than these."""
    return int(rows_max * OVERDUE_ROOM_SHARE)


def room_beside_overdue(rows_max: int, room: int) -> int:
    """Rows of room that a near window leaves free while overdue windows wait: what is beyond its share of memory. But the
    near window takes the room that it waited for."""
    return max(min(room - low_room(rows_max), rows_max - near_share(rows_max)), 0)


def room_beside_near(rows_max: int) -> int:
    """Rows of room that overdue windows leave free while a near window is loaded in part."""
    return low_room(rows_max) + 1
