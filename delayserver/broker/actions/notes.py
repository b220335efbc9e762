"""What progress.log must learn with the next sync."""

from __future__ import annotations

from delayserver.broker.files.progress import (
    ACKED,
    IN_PLACE,
    KEPT,
    MOVED,
    REMOVED,
    TIMES_MAX,
    UNTIL,
    ProgressRows,
)
from delayserver.broker.queues.groups import Cursor, GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.ranges import Range

# From so many ranges on, they become rows in one step.
_MANY = 16


class ProgressNotes:
    """The rows that are not in the progress log yet. `pending` has them in order.

    `ahead`: the log has acks of positions that the store lost. It must be replaced before new messages get these
    positions."""

    def __init__(self) -> None:
        self.pending = ProgressRows()
        self.ahead = False

    def take(self) -> ProgressRows:
        """Take the rows, to be written."""
        rows, self.pending = self.pending, ProgressRows()
        return rows

    def found_ahead(self) -> None:
        """The log speaks of positions that the store does not have."""
        self.ahead = True

    def acked(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note an acked range."""
        self.pending.add(ACKED, *key, retry, start, stop)

    def acked_all(self, key: GroupKey, retry: bool, ranges: list[Range]) -> None:
        """`acked` for several ranges."""
        if len(ranges) < _MANY:
            for start, stop in ranges:
                self.acked(key, retry, start, stop)
        else:
            self.pending.add_all(ACKED, *key, retry, ranges)

    def expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note a range that is done for a group because its messages have expired."""
        self.pending.add(ACKED, *key, retry, start, stop, stop - start)

    def moved(self, key: GroupKey, retry: bool, cursor: Cursor, rows: ProgressRows | None = None) -> None:
        """Note where a group goes on, for the log (or a snapshot of it)."""
        rows = self.pending if rows is None else rows
        rows.add(MOVED, *key, retry, 0, cursor.acked_to_log()[0][1], cursor.moves & TIMES_MAX)

    def moved_up(self, key: GroupKey, retry: bool, cursor: Cursor) -> None:
        """Note that a group has nothing to get below its position."""
        self.pending.add(ACKED, *key, retry, 0, cursor.committed)

    def removed(self, key: GroupKey, retry_end: int, moves: int, rows: ProgressRows | None = None) -> None:
        """Note that a group is gone, with what its retry queue had below its end, for the log (or a snapshot of it)."""
        (self.pending if rows is None else rows).add(REMOVED, *key, False, 0, retry_end, moves & TIMES_MAX)

    def in_place(self, key: GroupKey, retry: bool, place: Place, rows: ProgressRows | None = None) -> None:
        """Note a range that is redelivered in its place, for the log (or a snapshot of it)."""
        rows = self.pending if rows is None else rows
        if place.until_ms:
            rows.add(UNTIL, *key, retry, 0, place.until_ms)
        rows.add(IN_PLACE, *key, retry, place.start, place.stop, place.times)

    def wrote_redeliveries(self, key: GroupKey, start_ms: int, count: int, rows: ProgressRows | None = None) -> None:
        """Note bytes of durable redeliveries, for the log (or a snapshot of it)."""
        (self.pending if rows is None else rows).add(KEPT, *key, False, start_ms, count)
