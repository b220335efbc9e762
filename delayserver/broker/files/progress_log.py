"""The progress log: the acks of consumer groups, durable before the client gets its answer; and how often each message was
handed out.

One file of `ProgressBatch` records. An ack never reaches the disk before its messages are durable: its row waits in memory
until the sync that covers it has synced the store. A row of a hand-out is written at once, without a sync, so that a kill
of the process does not lose it. A snapshot replaces the file when it is long.

A member of a cluster has the rows in message_log already. It writes them here later, and behind them how far it came.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from store.disk.filesystem import FileSystem
from store.records.batches import ProgressBatch
from store.records.progress_row import SingleProgressRow
from store.records.segment import (
    FILE_HEADER_BYTES,
    FILE_PROGRESS,
    Appendable,
    Damage,
    FileHeader,
    ScanReport,
    Segment,
    is_unfinished,
)

ACKED, SEEN, UNTIL, IN_PLACE, KEPT, MOVED, REMOVED, HANDED, COUNTED, FROM, RETURNING, APPLIED, GIVEN_UP = range(13)
# A row in memory.
PROGRESS_ROW_BYTES = 56
# The largest `times` of a row.
TIMES_MAX = (1 << 32) - 1
# So many rows are written faster one by one than as columns.
_SINGLE_MAX = 3
# Rows of one record of a snapshot, to bound its memory.
_SNAPSHOT_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """One row; `ProgressBatch` explains the fields."""

    change: int
    subject: int
    group: int
    retry: bool
    start: int
    stop: int
    times: int = 0


@dataclass(frozen=True, slots=True)
class AppliedTo:
    """How far the broker of a member has followed its message_log: all records below `log_offset` are in its files, and no
    others, if the store ends at `store_end`. All their sequences are below `next_sequence`."""

    log_offset: int
    store_end: int
    next_sequence: int

    def batch(self) -> ProgressBatch:
        """As a record of the progress log, which stands behind the rows of these records."""
        return ProgressBatch.filled(
            1, start=self.store_end, stop=self.log_offset, change=APPLIED, next_sequence=self.next_sequence
        )


class ProgressRows:
    """Rows gathered as fixed-width numbers (56 bytes each)."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // 7

    def add(self, change: int, subject: int, group: int, retry: bool, start: int, stop: int, times: int = 0) -> None:
        """Add a row at the end."""
        self._values.extend((start, stop, subject, group, times, retry, change))

    def add_next(self, change: int, subject: int, group: int, retry: bool, start: int, stop: int, times: int) -> None:
        """Add a row at the end; one that goes on where the last one ends, and says the same, becomes one with it."""
        values = self._values
        if values and values[-6] == start and tuple(values[-5:]) == (subject, group, times, retry, change):
            values[-6] = stop
        else:
            self.add(change, subject, group, retry, start, stop, times)

    def add_all(self, change: int, subject: int, group: int, retry: bool, ranges: list[tuple[int, int]]) -> None:
        """Add a row for each range [start, stop)."""
        rows = np.zeros((len(ranges), 7), np.int64)
        rows[:, :2] = ranges
        rows[:, 2:] = (subject, group, 0, retry, change)
        self._values.frombytes(rows.tobytes())

    def add_row(self, row: ProgressRow) -> None:
        """Add a row that another process made."""
        self.add(row.change, row.subject, row.group, row.retry, row.start, row.stop, row.times)

    def put_before(self, rows: ProgressRows) -> None:
        """Put back, in front, rows that could not be written."""
        self._values = rows._values + self._values

    def extend(self, rows: ProgressRows) -> None:
        """Add rows at the end."""
        self._values.extend(rows._values)

    def records(self) -> Sequence[Appendable]:
        """The rows as parts of records: a few of them, as a pull makes them, without columns."""
        if len(self._values) > 7 * _SINGLE_MAX:
            return self.batches()
        return [SingleProgressRow(self._values[at : at + 7]) for at in range(0, len(self._values), 7)]

    def batches(self) -> list[ProgressBatch]:
        """The rows as batches of bounded length."""
        values = np.array(self._values, np.int64).reshape(-1, 7)
        names = ("start", "stop", "subject", "consumer_group", "times", "retry", "change")
        return [
            ProgressBatch.filled(
                len(part),
                **{name: part[:, index] for index, name in enumerate(names)},
                anew=(part[:, 6] == MOVED) | (part[:, 6] == REMOVED),
            )
            for part in (values[at : at + _SNAPSHOT_ROWS] for at in range(0, len(values), _SNAPSHOT_ROWS))
        ]


@dataclass(slots=True)
class ProgressSync:
    """Rows of one sync. With `snapshot` they replace the file. Call `run` after the store's sync, in any thread."""

    log: ProgressLog
    rows: ProgressRows
    snapshot: bool

    def run(self) -> None:
        """Write and sync the rows. Raises DiskFullError (the rows may be put back), SyncFailedError (final)."""
        if self.snapshot:
            self.log.replace(self.rows)
        else:
            self.log.append(self.rows)


class ProgressLog:
    """Append rows durably, replace the file, read all rows. One call at a time; only `write` may run beside another one, in
    the thread that captures the snapshots."""

    def __init__(self, fs: FileSystem, path: str, server_id: int, segment: Segment) -> None:
        self._fs = fs
        self._path = path
        self._header = FileHeader(FILE_PROGRESS, server_id, 0)
        self._segment = segment
        self.snapshot_bytes = segment.end
        self.damages: list[Damage] = []
        self.applied: AppliedTo | None = None
        # Held while rows are written, not while they are synced.
        self._writing = Lock()
        # Rows that were written since the last snapshot was captured, while it is not in place.
        self._since: ProgressRows | None = None

    @classmethod
    def open(cls, fs: FileSystem, path: str, server_id: int) -> ProgressLog:
        """Open or create the log. Cuts a torn tail off."""
        damages: list[Damage] = []
        if not fs.exists(path) or is_unfinished(fs, path):
            segment = Segment.create(fs, path, FileHeader(FILE_PROGRESS, server_id, 0))
        else:
            segment = Segment.open(fs, path, FILE_PROGRESS, server_id)
            segment.recover(damages=damages)
        log = cls(fs, path, server_id, segment)
        log.damages = damages
        return log

    def cut_to_mark(self) -> None:
        """Cut off what stands behind the last mark of a member: message_log has it. Nothing, if there is no mark."""
        segment = self._segment
        end = segment.end
        for header, batch in segment.records(report=ScanReport(FILE_HEADER_BYTES)):
            if isinstance(batch, ProgressBatch) and batch.change.item(-1) == APPLIED:
                end = header.end
                self.applied = AppliedTo(*[int(c.item(-1)) for c in (batch.stop, batch.start, batch.next_sequence)])
        segment.cut(end)
        self.snapshot_bytes = end

    @property
    def length_bytes(self) -> int:
        """Length of the file."""
        return self._segment.end

    def rows(self) -> Iterator[ProgressRow]:
        """All rows in order."""
        for _, batch in self._segment.records(report=ScanReport(FILE_HEADER_BYTES)):
            if isinstance(batch, ProgressBatch):
                yield from rows_of(batch)

    @property
    def is_synced(self) -> bool:
        """Whether all rows of the file are durable."""
        return self._segment.synced == self._segment.end

    def write(self, rows: ProgressRows) -> None:
        """Write rows that a kill of this process must not lose, without a sync. Raises DiskFullError (nothing written),
        StoreError."""
        with self._writing:
            self._segment.append_all(rows.records())
            if self._since is not None:
                self._since.extend(rows)

    def append(self, rows: ProgressRows) -> None:
        """Write and sync, also what `write` has written. Raises DiskFullError (nothing written), SyncFailedError (final)."""
        if len(rows):
            with self._writing:
                self._segment.append_all(rows.batches())
        self._segment.sync()

    def write_applied(self, rows: ProgressRows, applied: AppliedTo, *, anew: bool) -> None:
        """Write the rows of a member and a mark, and sync. `anew`: they replace the file. Raises DiskFullError (nothing
        written), SyncFailedError (final)."""
        batches = [*rows.batches(), applied.batch()]
        if anew:
            self._replace(batches)
        else:
            self._segment.append_all(batches)
            self._segment.sync()
        self.applied = applied

    def begin_snapshot(self) -> ProgressRows:
        """A snapshot is captured now. Returns the rows that were written since the one before, if that is not in place."""
        before, self._since = self._since or ProgressRows(), ProgressRows()
        return before

    def replace(self, rows: ProgressRows) -> None:
        """Replace the file by a snapshot, and what was written since it was captured. A crash leaves the old file or the new
        one, whole."""
        self._replace(rows.batches())

    def _replace(self, batches: Sequence[ProgressBatch]) -> None:
        temporary = self._path + ".tmp"
        self._fs.remove(temporary)  # an earlier attempt may have left it in a crash
        segment = Segment.create(self._fs, temporary, self._header)
        try:
            if batches:
                segment.append_all(batches)
                segment.sync()
            with self._writing:
                if self._since is not None and len(self._since):
                    segment.append_all(self._since.batches())
                self._fs.replace(temporary, self._path)
                segment.path = self._path
                before, self._segment, self._since = self._segment, segment, None
        except BaseException:
            segment.close()
            raise
        before.close()
        self.snapshot_bytes = segment.end
        self._fs.sync_directory(self._path.rsplit("/", 1)[0])

    def close(self) -> None:
        """Close the file."""
        self._segment.close()


def rows_of(batch: ProgressBatch) -> Iterator[ProgressRow]:
    """The rows of a record, without marks of members."""
    columns = (batch.change, batch.subject, batch.consumer_group, batch.retry, batch.start, batch.stop, batch.times)
    for change, subject, group, retry, start, stop, times in zip(*[c.tolist() for c in columns], strict=True):
        if change != APPLIED:
            yield ProgressRow(change, subject, group, bool(retry), start, stop, times)
