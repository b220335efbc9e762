"""The ledger: counts per subject and due window, synced before any file of that window is deleted (rule 3).

One record holds all rows of one or more whole windows. A crash between writing a window and deleting its files has it
written again; the later record replaces the earlier one, so nothing is counted twice. In memory there are the totals
per subject and, for each window, where its record stands and the last sequence that it counts. So the replay, which asks
for that sequence, meets no disk.

A window a minute makes half a million records a year, and a start reads them all. So now and then the file is written
anew, with many windows in each record: then a year is some hundred records.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from store.disk.filesystem import FileSystem, directory_of
from store.errors import CorruptionError, StoreError, UnreadableError
from store.records.batches import I64, LedgerBatch
from store.records.segment import FILE_LEDGER, Damage, FileHeader, ScanReport, Segment, is_unfinished

FILE_NAME = "ledger.log"
_NEW = ".tmp"
COUNTERS = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back")
# Rows of the scan at a start that are added up at once: enough to be fast, 20 MB at the most.
_SCAN_ROWS = 1 << 18
# Codes of subjects count up from 1 and are bounded far below this: a higher one is none, and no table is made up to it.
_SUBJECT_MAX = 1 << 22
# Windows that wait in a dict before they are sorted into arrays.
_RECENT_MAX = 1 << 13
# Rows in a record of a file that was written anew: few enough that one window is read in a fraction of a millisecond.
MERGED_ROWS = 1 << 12
# Records more than that takes, from which on the file is written anew; reading them takes a start 0.15 s.
SPARE_RECORDS_MAX = 1 << 11


class Ledger:
    """Windows that are gone, and what was in them. One writer; another task may compact beside it."""

    __slots__ = (
        "_changing",
        "_file",
        "_fs",
        "_listed",
        "_previous",
        "_records",
        "_rows",
        "_totals",
        "damages",
        "highest_sequence",
    )

    def __init__(self, fs: FileSystem, segment: Segment | None) -> None:
        self._fs = fs
        self._changing = threading.Lock()
        # One attribute, so that readers in other threads never meet the offsets of one file beside the other file.
        self._file = (segment, _WindowIndex())
        self._previous: Segment | None = None
        # Whether the directory was synced since a compaction gave the file its name. Before that no record is durable.
        self._listed = True
        self._records = 0
        self._rows = 0
        self._totals = np.zeros((1, len(COUNTERS)), np.int64)
        self.damages: list[Damage] = []
        # The highest sequence in any record.
        self.highest_sequence = 0

    @classmethod
    def open(cls, fs: FileSystem, directory: str, server_id: int, *, write: bool = True) -> Ledger:
        """Open or create `ledger.log`. With `write` a torn tail is cut; without, nothing is touched or created.

        Corruption goes to `damages`: the counts of the windows in it are missing, the rest stands. Raises FormatError
        (foreign, newer), CorruptionError (file header).
        """
        path = f"{directory}/{FILE_NAME}"
        if write and fs.exists(path + _NEW):
            fs.remove(path + _NEW)  # a crash came before it took the place of the file
        if not fs.exists(path) or is_unfinished(fs, path):
            return cls(fs, Segment.create(fs, path, FileHeader(FILE_LEDGER, server_id, 0)) if write else None)
        segment = Segment.open(fs, path, FILE_LEDGER, server_id, write=write)
        ledger = cls(fs, segment)
        try:
            if write:
                segment.recover(damages=[])
            ledger._load(segment)
        except BaseException:
            segment.close()
            raise
        return ledger

    def _load(self, segment: Segment) -> None:
        waiting: list[LedgerBatch] = []
        offsets: list[int] = []
        rows = 0
        report = ScanReport(0)
        for header, batch in segment.records(report=report):
            if not isinstance(batch, LedgerBatch):
                raise CorruptionError(segment.path, header.offset, f"record kind {header.kind} in a ledger")
            if int(batch.subject.max()) > _SUBJECT_MAX:
                detail = f"no subject has code {int(batch.subject.max())}"
                report.damages.append(Damage(header.offset, header.end, detail))
                continue
            self._count(batch)
            waiting.append(batch)
            offsets.append(header.offset)
            rows += len(batch)
            if rows >= _SCAN_ROWS:
                self._adopt(waiting, offsets)
                waiting, offsets, rows = [], [], 0
        if waiting:
            self._adopt(waiting, offsets)
        self.damages = report.damages

    def _adopt(self, batches: Sequence[LedgerBatch], offsets: Sequence[int]) -> None:
        """Take records over in their order: a later one replaces the windows it holds."""
        rows = LedgerBatch.concatenate(batches)
        record = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
        keys, inverse = np.unique(_keys(rows), return_inverse=True)
        latest = np.zeros(len(keys), np.intp)
        np.maximum.at(latest, inverse, record)
        standing = np.flatnonzero(record == latest[inverse])
        self._add(rows.take(standing), 1)
        segment, windows = self._file
        replaced = windows.offsets(keys)
        for place in np.flatnonzero(replaced).tolist():
            self._add(_rows_at(segment, int(replaced[place]), int(keys[place])), -1)
        last = np.zeros(len(keys), np.int64)
        np.maximum.at(last, inverse[standing], rows.last_sequence[standing])
        windows.put(keys, np.array(offsets, np.int64)[latest], last)

    def _count(self, batch: LedgerBatch) -> None:
        self.highest_sequence = max(self.highest_sequence, int(batch.last_sequence.max(initial=0)))
        self._records += 1
        self._rows += len(batch)

    def _add(self, rows: LedgerBatch, sign: int) -> None:
        if not len(rows):
            return
        highest = int(rows.subject.max())
        if highest >= len(self._totals):
            grown = np.zeros((max(highest + 1, 2 * len(self._totals)), len(COUNTERS)), np.int64)
            grown[: len(self._totals)] = self._totals
            self._totals = grown
        for index, name in enumerate(COUNTERS):
            np.add.at(self._totals[:, index], rows.subject, sign * getattr(rows, name))

    def append(self, rows: LedgerBatch) -> None:
        """Record whole windows, all subjects of each; durable on return. A window that is there already is replaced.

        Raises DiskFullError (nothing was recorded), SyncFailedError.
        """
        _assert_distinct(rows)
        with self._changing:
            segment, _ = self._file
            assert segment is not None, "a ledger opened for reading only"
            self._list()
            place = segment.append(rows)
            segment.sync()
            self._count(rows)
            self._adopt([rows], [place.start])

    @property
    def wants_compaction(self) -> bool:
        """Whether the file has so many small records that a start would notice. Never with damage in it: that stays
        where it is until an operator repairs it."""
        return self._records > SPARE_RECORDS_MAX + 2 * self._rows // MERGED_ROWS and not self.damages

    def compact(self) -> None:
        """Write the file anew, with many windows in each record and without those that were replaced; a crash leaves the
        old or the new one. May run in a thread beside readers; an `append` meanwhile waits for it.

        Raises DiskFullError (the old file stands), CorruptionError (nothing is changed), StoreError, SyncFailedError.
        """
        with self._changing:
            self._compact()

    def _compact(self) -> None:
        old, windows = self._file
        assert old is not None, "a ledger opened for reading only"
        path, temporary = old.path, old.path + _NEW
        if self._fs.exists(temporary):
            self._fs.remove(temporary)
        made = Segment.create(self._fs, temporary, old.header, listed=False)
        keys, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        rows = 0
        try:
            for batch in _merged(old, windows):
                place = made.append(batch)
                keys.append(np.unique(_keys(batch)))
                offsets.append(np.full(len(keys[-1]), place.start))
                rows += len(batch)
            made.sync()
            self._fs.replace(temporary, path)
        except StoreError:
            made.close()
            self._fs.remove(temporary)
            raise
        # The same open file: what is refused from here on must not leave the ledger with the file that lost its name.
        made.follow_rename(path)
        if self._previous is not None:
            self._previous.close()
        moved = _WindowIndex()
        every = np.concatenate(keys)
        moved.put(every, np.concatenate(offsets), windows.last_sequences(every))
        # Somebody may still be reading the old file: it is closed when the next one takes this one's place.
        self._file, self._previous, self._listed = (made, moved), old, False
        self._records, self._rows = len(keys) - 1, rows
        self._list()

    def _list(self) -> None:
        segment, _ = self._file
        if not self._listed and segment is not None:
            self._fs.sync_directory(directory_of(segment.path))
            self._listed = True

    def totals(self) -> LedgerBatch:
        """One row for each subject with any count, `start_ms` and `last_sequence` 0, ascending by subject."""
        subjects = np.flatnonzero(self._totals.any(axis=1))
        columns = {name: self._totals[subjects, index] for index, name in enumerate(COUNTERS)}
        return LedgerBatch.filled(len(subjects), subject=subjects.astype(np.uint32), **columns)

    def window(self, start_ms: int, *, coarse: bool = False) -> LedgerBatch:
        """The rows of a window, one for each subject; none if it is not recorded. Raises CorruptionError."""
        key = _key(start_ms, coarse)
        segment, windows = self._file
        offset = windows.offset(key)
        return _rows_at(segment, offset, key) if offset else LedgerBatch.filled(0)

    def last_sequence(self, start_ms: int) -> int:
        """The last sequence that is counted for a window, 0 if it is not recorded: only rows behind it count beside the
        ledger."""
        return self._file[1].last_sequence(_key(start_ms, False))

    def last_sequence_between(self, start_ms: int, stop_ms: int) -> int:
        """The highest `last_sequence` of the windows that start in [start_ms, stop_ms), 0 if none is recorded."""
        windows = self._file[1]
        return int(
            windows.last_sequences(windows.keys_between(_key(start_ms, False), _key(stop_ms, False))).max(initial=0)
        )

    def has_between(self, start_ms: int, stop_ms: int) -> bool:
        """Whether any window that starts in [start_ms, stop_ms) is recorded."""
        return bool(len(self._file[1].keys_between(_key(start_ms, False), _key(stop_ms, False))))

    def has(self, start_ms: int, *, coarse: bool = False) -> bool:
        """Whether a window is recorded, and so its files may go."""
        return bool(self._file[1].offset(_key(start_ms, coarse)))

    def __len__(self) -> int:
        """Count of windows."""
        return len(self._file[1])

    def windows(self) -> I64:
        """i64[n, 2]: start_ms and coarse (0 or 1) of every window, ascending."""
        keys = self._file[1].keys()
        return np.stack([keys >> 1, keys & 1], axis=1)

    def close(self) -> None:
        """Close the file; everything recorded is durable already."""
        for segment in (self._file[0], self._previous):
            if segment is not None:
                segment.close()


def _read_twice(segment: Segment | None, offset: int) -> LedgerBatch:
    """The record at an offset. A disk that fails for a moment gets a second chance, because no other file has the counts."""
    assert segment is not None
    try:
        _, batch = segment.read(offset)
    except UnreadableError:
        _, batch = segment.read(offset)
    assert isinstance(batch, LedgerBatch)
    return batch


def _rows_at(segment: Segment | None, offset: int, key: int) -> LedgerBatch:
    batch = _read_twice(segment, offset)
    return batch.take(np.flatnonzero(_keys(batch) == key))


def _merged(segment: Segment, windows: _WindowIndex) -> Iterator[LedgerBatch]:
    """All rows that stand, in the order of the file, whole windows together. Raises CorruptionError."""
    waiting: list[LedgerBatch] = []
    rows = 0
    for header, batch in segment.records():
        assert isinstance(batch, LedgerBatch)
        keys, inverse = np.unique(_keys(batch), return_inverse=True)
        stands = np.flatnonzero((windows.offsets(keys) == header.offset)[inverse])
        waiting.append(batch.take(stands))
        rows += len(stands)
        if rows >= MERGED_ROWS:
            yield LedgerBatch.concatenate(waiting)
            waiting, rows = [], 0
    if rows:
        yield LedgerBatch.concatenate(waiting)


class _WindowIndex:
    """Record offset and last sequence by key. Recent ones in a dict, the others in sorted arrays: 24 bytes a window, 12 MB
    for a year.

    One writer; readers in other threads look into the dict first, and find in the arrays what has left it.
    """

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        # Keys, ascending, and for each its offset and its last sequence.
        self._sorted = (np.zeros(0, np.int64), np.zeros((2, 0), np.int64))
        self._recent: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.keys())

    def offset(self, key: int) -> int:
        """Where its record stands, 0 if there is none."""
        return self._get(key)[0]

    def last_sequence(self, key: int) -> int:
        """The last sequence that its record counts, 0 if there is none."""
        return self._get(key)[1]

    def offsets(self, wanted: I64) -> I64:
        """The offset of each, 0 where there is none."""
        return self._get_many(wanted, 0)

    def last_sequences(self, wanted: I64) -> I64:
        """The last sequence of each, 0 where there is none."""
        return self._get_many(wanted, 1)

    def _get(self, key: int) -> tuple[int, int]:
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        keys, values = self._sorted
        index = int(np.searchsorted(keys, key))
        return (int(values[0, index]), int(values[1, index])) if index < len(keys) and keys[index] == key else (0, 0)

    def _get_many(self, wanted: I64, column: int) -> I64:
        of_recent = [self._recent.get(key, (0, 0))[column] for key in wanted.tolist()] if self._recent else 0
        recent = np.array(of_recent, np.int64)
        keys, values = self._sorted
        if not len(keys):
            return np.broadcast_to(recent, wanted.shape)
        index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found: I64 = np.where(recent, recent, np.where(keys[index] == wanted, values[column, index], 0))
        return found

    def put(self, keys: I64, offsets: I64, last_sequences: I64) -> None:
        """Store the offset and the last sequence of each key. Large batches go straight to the arrays."""
        if len(keys) < _RECENT_MAX:
            pairs = zip(offsets.tolist(), last_sequences.tolist(), strict=True)
            self._recent |= zip(keys.tolist(), pairs, strict=True)
        if len(self._recent) >= _RECENT_MAX or len(keys) >= _RECENT_MAX:
            self.keys()
        if len(keys) >= _RECENT_MAX:
            self._sort_in(keys, np.stack([offsets, last_sequences]))

    def keys(self) -> I64:
        """Ascending."""
        if self._recent:
            recent = np.array([(key, *values) for key, values in self._recent.items()], np.int64).T
            self._sort_in(recent[0], recent[1:])
            self._recent = {}
        return self._sorted[0]

    def keys_between(self, low: int, high: int) -> I64:
        """Keys in [low, high), ascending."""
        recent = [key for key in list(self._recent) if low <= key < high]
        keys = self._sorted[0]
        older = keys[np.searchsorted(keys, low) : np.searchsorted(keys, high)]
        return np.union1d(older, np.array(recent, np.int64)) if recent else older

    def _sort_in(self, keys: I64, values: I64) -> None:
        values = np.concatenate([values, self._sorted[1]], axis=1)
        keys, first = np.unique(np.concatenate([keys, self._sorted[0]]), return_index=True)
        self._sorted = (keys, values[:, first])  # the first of equals: the recent one


def _assert_distinct(rows: LedgerBatch) -> None:
    keys = _keys(rows)
    order = np.lexsort((rows.subject, keys))
    same = (np.diff(keys[order]) == 0) & (np.diff(rows.subject[order].astype(np.int64)) == 0)
    assert not same.any(), "a subject stands twice in a window"


def _key(start_ms: int, coarse: bool) -> int:
    return start_ms << 1 | int(coarse)


def _keys(rows: LedgerBatch) -> I64:
    return rows.start_ms << 1 | rows.coarse.astype(np.int64)
