"""What progress.log must learn: acks with the next sync, and hand-outs at once."""

from __future__ import annotations

from delayserver.broker.files.progress_log import (
    ACKED,
    COUNTED,
    FROM,
    HANDED,
    IN_PLACE,
    KEPT,
    MOVED,
    REMOVED,
    RETURNING,
    TIMES_MAX,
    UNTIL,
    ProgressLog,
    ProgressRows,
)
from delayserver.broker.queues.group_cursors import Cursor, GroupKey
from delayserver.broker.queues.places import Place
from delayserver.broker.queues.ranges import Range
from delayserver.broker.queues.seen import Count
from store.errors import StoreError

# From so many ranges on, they become rows in one step.
_MANY = 16


class ProgressNotes:
    """The rows that are not in the progress log yet. `pending` has those that the next sync writes, in order. `counts` has
    those about hand-outs, which are written at once.

    `awaited`: the answer of a nack waits for a sync, even if all of its rows are written.
    `ahead`: the log has acks of positions that the store lost. It must be replaced before new messages get these
    positions.

    In a member of a cluster all rows go through its log, in the order in which they were made: those about hand-outs too."""

    def __init__(self, progress: ProgressLog, *, shared: bool = False) -> None:
        """`shared`: of a member of a cluster."""
        self._progress = progress
        self._shared = shared
        self.pending = ProgressRows()
        self.counts = ProgressRows()
        self.awaited = False
        self.ahead = False
        # Groups with a row in `pending`, or in the sync under way, that makes their earlier rows void. Rows of `counts`
        # that overtake it are written behind it once more. None: so are those of all groups.
        self._void: set[GroupKey | None] = set()
        self._void_syncing: set[GroupKey | None] = set()

    def take(self) -> ProgressRows:
        """Take the rows of the next sync, to be written."""
        rows, self.pending = self.pending, ProgressRows()
        self._void_syncing, self._void = self._void, set()
        self.awaited = False
        return rows

    def end_sync(self, *, written: bool) -> None:
        """Ends the sync that took the rows. If they were not `written`, they wait for another sync."""
        if not written:
            self._void |= self._void_syncing
            self.awaited = True
        self._void_syncing = set()

    @property
    def counts_synced(self) -> bool:
        """Whether a loss of power forgets no hand-out; in a member, whether the loss of its machine does not."""
        if self._shared:
            return not len(self.pending)
        return not len(self.counts) and self._progress.is_synced

    def write_counts(self) -> bool:
        """Write the rows about hand-outs, without a sync. Where the disk refuses them, the next sync writes them, and those
        that follow meanwhile. False if there were none."""
        if self._shared:
            return len(self.pending) > 0
        rows = self.counts
        if not len(rows):
            return False
        self.counts = ProgressRows()
        try:
            self._progress.write(rows)
        except StoreError:
            self.pending.extend(rows)
            self._void.add(None)
        return True

    def _counts_of(self, key: GroupKey) -> list[ProgressRows]:
        """Where a row about a hand-out of a group goes."""
        if self._shared:
            return [self.pending]
        void = self._void | self._void_syncing
        return [self.counts, self.pending] if void and (key in void or None in void) else [self.counts]

    def add_handed(self, key: GroupKey, retry: bool, start: int, stop: int, times: int) -> None:
        """Adds a row: these messages are handed out for the `times`th time."""
        for rows in self._counts_of(key):
            rows.add_next(HANDED, *key, retry, start, stop, min(times, TIMES_MAX))

    def add_group(self, key: GroupKey) -> None:
        """Adds a row: there is this group."""
        for rows in self._counts_of(key):
            rows.add(COUNTED, *key, False, 0, 0)

    def add_counted(self, key: GroupKey, retry: bool, start: int, stop: int, times: int) -> None:
        """Adds a row: these messages, which have no lease, were handed out so many `times`."""
        self.awaited = True
        for rows in self._counts_of(key):
            rows.add(COUNTED, *key, retry, start, stop, min(times, TIMES_MAX))

    def mark_ahead(self) -> None:
        """Sets `ahead`: the log has positions that the store does not have."""
        self.ahead = True

    def add_acked(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Adds an acked range."""
        self.pending.add(ACKED, *key, retry, start, stop)

    def add_all_acked(self, key: GroupKey, retry: bool, ranges: list[Range]) -> None:
        """Adds several acked ranges."""
        if len(ranges) < _MANY:
            for start, stop in ranges:
                self.add_acked(key, retry, start, stop)
        else:
            self.pending.add_all(ACKED, *key, retry, ranges)

    def add_expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Adds a range that is done for a group because its messages have expired."""
        self.pending.add(ACKED, *key, retry, start, stop, stop - start)

    def add_moved(self, key: GroupKey, retry: bool, cursor: Cursor, rows: ProgressRows | None = None) -> None:
        """Adds the position at which a group goes on, to the log or to `rows` of a snapshot."""
        if rows is None:
            rows = self.pending
            self._void.add(key)
        rows.add(MOVED, *key, retry, 0, cursor.acked_to_log()[0][1], cursor.moves & TIMES_MAX)

    def add_moved_up(self, key: GroupKey, retry: bool, cursor: Cursor) -> None:
        """Adds a row: the group gets nothing below its position."""
        self.pending.add(ACKED, *key, retry, 0, cursor.committed)

    def add_removed(self, key: GroupKey, retry_end: int, moves: int, rows: ProgressRows | None = None) -> None:
        """Adds a removed group and the end of its retry queue, to the log or to `rows` of a snapshot."""
        if rows is None:
            rows = self.pending
            self._void.add(key)
        rows.add(REMOVED, *key, False, 0, retry_end, moves & TIMES_MAX)

    def in_place(self, key: GroupKey, retry: bool, place: Place, rows: ProgressRows | None = None) -> None:
        """Note a range that is redelivered in its place, for the log (or a snapshot of it)."""
        self.awaited |= rows is None
        for to in self._counts_of(key) if rows is None else [rows]:
            if place.until_ms:
                to.add(UNTIL, *key, retry, 0, place.until_ms)
            to.add(IN_PLACE, *key, retry, place.start, place.stop, place.times)

    def count(self, key: GroupKey, retry: bool, count: Count, rows: ProgressRows) -> None:
        """Note how often messages were handed out, for a snapshot of the log."""
        start, stop, times, leased = count
        rows.add(HANDED if leased else COUNTED, *key, retry, start, stop, min(times, TIMES_MAX))

    def returning(self, key: GroupKey, retry: bool, place: Place, rows: ProgressRows | None = None) -> None:
        """Note messages of which a record may stand in message_log from the offset `until_ms` on, for the log (or a snapshot
        of it)."""
        self.awaited |= rows is None
        for to in self._counts_of(key) if rows is None else [rows]:
            to.add(FROM, *key, retry, 0, place.until_ms)
            to.add(RETURNING, *key, retry, place.start, place.stop, place.times)

    def add_redelivery_bytes(self, key: GroupKey, start_ms: int, count: int, rows: ProgressRows | None = None) -> None:
        """Adds bytes of durable redeliveries, to the log or to `rows` of a snapshot."""
        (self.pending if rows is None else rows).add(KEPT, *key, False, start_ms, count)
