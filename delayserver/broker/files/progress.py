"""The progress log: the acks of consumer groups, durable before the client gets its answer.

One file of `ProgressBatch` records. A row never reaches the disk before its messages are durable: rows wait in memory
until the sync that covers them has synced the store. A snapshot replaces the file when it is long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from store.disk.filesystem import FileSystem
from store.records.batches import ProgressBatch
from store.records.segment import (
    FILE_HEADER_BYTES,
    FILE_PROGRESS,
    Damage,
    FileHeader,
    ScanReport,
    Segment,
    is_unfinished,
)

ACKED, SEEN, UNTIL, IN_PLACE, KEPT, MOVED, REMOVED = 0, 1, 2, 3, 4, 5, 6
# A row in memory.
PROGRESS_ROW_BYTES = 56
# The largest `times` of a row.
TIMES_MAX = (1 << 32) - 1
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

    def add_all(self, change: int, subject: int, group: int, retry: bool, ranges: list[tuple[int, int]]) -> None:
        """Add a row for each range [start, stop)."""
        rows = np.zeros((len(ranges), 7), np.int64)
        rows[:, :2] = ranges
        rows[:, 2:] = (subject, group, 0, retry, change)
        self._values.frombytes(rows.tobytes())

    def put_before(self, rows: ProgressRows) -> None:
        """Put back, in front, rows that could not be written."""
        self._values = rows._values + self._values

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
        elif len(self.rows):
            self.log.append(self.rows)


class ProgressLog:
    """Append rows durably, replace the file, read all rows. One call at a time."""

    def __init__(self, fs: FileSystem, path: str, server_id: int, segment: Segment) -> None:
        self._fs = fs
        self._path = path
        self._header = FileHeader(FILE_PROGRESS, server_id, 0)
        self._segment = segment
        self.snapshot_bytes = segment.end
        self.damages: list[Damage] = []

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

    @property
    def length_bytes(self) -> int:
        """Length of the file."""
        return self._segment.end

    def rows(self) -> Iterator[ProgressRow]:
        """All rows in order."""
        for _, batch in self._segment.records(report=ScanReport(FILE_HEADER_BYTES)):
            if isinstance(batch, ProgressBatch):
                yield from _rows(batch)

    def append(self, rows: ProgressRows) -> None:
        """Write and sync. Raises DiskFullError (nothing written), SyncFailedError (final)."""
        self._segment.append_all(rows.batches())
        self._segment.sync()

    def replace(self, rows: ProgressRows) -> None:
        """Replace the file by a snapshot. A crash leaves the old file or the new one, whole."""
        temporary = self._path + ".tmp"
        self._fs.remove(temporary)  # an earlier attempt may have left it in a crash
        segment = Segment.create(self._fs, temporary, self._header)
        try:
            if len(rows):
                segment.append_all(rows.batches())
                segment.sync()
            self._fs.replace(temporary, self._path)
            self._fs.sync_directory(self._path.rsplit("/", 1)[0])
        except BaseException:
            segment.close()
            raise
        self._segment.close()
        segment.path = self._path
        self._segment = segment
        self.snapshot_bytes = segment.end

    def close(self) -> None:
        """Close the file."""
        self._segment.close()


def _rows(batch: ProgressBatch) -> Iterator[ProgressRow]:
    columns = (batch.change, batch.subject, batch.consumer_group, batch.retry, batch.start, batch.stop, batch.times)
    for change, subject, group, retry, start, stop, times in zip(*[c.tolist() for c in columns], strict=True):
        yield ProgressRow(change, subject, group, bool(retry), start, stop, times)
