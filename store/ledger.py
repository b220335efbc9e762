"""The ledger: counts per subject and due window, synced before any file of that window is deleted (rule 3).

One record holds all rows of one or more whole windows. A crash between writing a window and deleting its files has it
written again; the later record replaces the earlier one, so nothing is counted twice. In memory there are the totals
per subject and, for each window, where its record stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from store.batches import I64, LedgerBatch
from store.errors import CorruptionError
from store.filesystem import FileSystem
from store.segment import FILE_LEDGER, Damage, FileHeader, ScanReport, Segment, is_unfinished

FILE_NAME = "ledger.log"
COUNTERS = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered")
# Rows of the scan at a start that are added up at once: enough to be fast, 20 MB at the most.
_SCAN_ROWS = 1 << 18
# Codes of subjects count up from 1 and are bounded far below this: a higher one is none, and no table is made up to it.
_SUBJECT_MAX = 1 << 22
# Windows that wait in a dict before they are sorted into arrays.
_RECENT_MAX = 1 << 13


class Ledger:
    """Windows that are gone, and what was in them. One writer."""

    __slots__ = ("_segment", "_totals", "_windows", "damages")

    def __init__(self, segment: Segment | None) -> None:
        self._segment = segment
        self._windows = _WindowIndex()
        self._totals = np.zeros((1, len(COUNTERS)), np.int64)
        self.damages: list[Damage] = []

    @classmethod
    def open(cls, fs: FileSystem, directory: str, server_id: int, *, write: bool = True) -> Ledger:
        """Open or create `ledger.log`. With `write` a torn tail is cut; without, nothing is touched or created.

        Corruption goes to `damages`: the counts of the windows in it are missing, the rest stands. Raises FormatError
        (foreign, newer), CorruptionError (file header).
        """
        path = f"{directory}/{FILE_NAME}"
        if not fs.exists(path) or is_unfinished(fs, path):
            return cls(Segment.create(fs, path, FileHeader(FILE_LEDGER, server_id, 0)) if write else None)
        segment = Segment.open(fs, path, FILE_LEDGER, server_id, write=write)
        ledger = cls(segment)
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
        self._add(rows.take(np.flatnonzero(record == latest[inverse])), 1)
        for key, index in zip(keys.tolist(), latest.tolist(), strict=True):
            replaced = self._windows.get(key)
            if replaced:
                self._add(self._rows_at(replaced, key), -1)
            self._windows.set(key, offsets[index])

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

    def _rows_at(self, offset: int, key: int) -> LedgerBatch:
        assert self._segment is not None
        _, batch = self._segment.read(offset)
        assert isinstance(batch, LedgerBatch)
        return batch.take(np.flatnonzero(_keys(batch) == key))

    def append(self, rows: LedgerBatch) -> None:
        """Record whole windows, all subjects of each; durable on return. A window that is there already is replaced.

        Raises DiskFullError (nothing was recorded), SyncFailedError.
        """
        assert self._segment is not None, "a ledger opened for reading only"
        _assert_distinct(rows)
        place = self._segment.append(rows)
        self._segment.sync()
        self._adopt([rows], [place.start])

    def totals(self) -> LedgerBatch:
        """One row for each subject with any count, `start_ms` and `last_sequence` 0, ascending by subject."""
        subjects = np.flatnonzero(self._totals.any(axis=1))
        columns = {name: self._totals[subjects, index] for index, name in enumerate(COUNTERS)}
        return LedgerBatch.filled(len(subjects), subject=subjects.astype(np.uint32), **columns)

    def window(self, start_ms: int, *, coarse: bool = False) -> LedgerBatch:
        """The rows of a window, one for each subject; none if it is not recorded. Raises CorruptionError."""
        key = _key(start_ms, coarse)
        offset = self._windows.get(key)
        return self._rows_at(offset, key) if offset else LedgerBatch.filled(0)

    def has(self, start_ms: int, *, coarse: bool = False) -> bool:
        """Whether a window is recorded, and so its files may go."""
        return bool(self._windows.get(_key(start_ms, coarse)))

    def __len__(self) -> int:
        """Count of windows."""
        return len(self._windows)

    def windows(self) -> I64:
        """i64[n, 2]: start_ms and coarse (0 or 1) of every window, ascending."""
        keys = self._windows.keys()
        return np.stack([keys >> 1, keys & 1], axis=1)

    def close(self) -> None:
        """Close the file; everything recorded is durable already."""
        if self._segment is not None:
            self._segment.close()


class _WindowIndex:
    """Record offset by key. Recent ones in a dict, the others in sorted arrays: 16 bytes a window, 8 MB for a year."""

    __slots__ = ("_keys", "_offsets", "_recent")

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.int64)
        self._offsets = np.zeros(0, np.int64)
        self._recent: dict[int, int] = {}

    def __len__(self) -> int:
        self._merge()
        return len(self._keys)

    def get(self, key: int) -> int:
        """The offset, 0 if there is none."""
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        index = int(np.searchsorted(self._keys, key))
        return int(self._offsets[index]) if index < len(self._keys) and self._keys[index] == key else 0

    def set(self, key: int, offset: int) -> None:
        self._recent[key] = offset
        if len(self._recent) >= _RECENT_MAX:
            self._merge()

    def keys(self) -> I64:
        """Ascending."""
        self._merge()
        return self._keys

    def _merge(self) -> None:
        if not self._recent:
            return
        keys = np.concatenate([np.fromiter(self._recent, np.int64, len(self._recent)), self._keys])
        offsets = np.concatenate([np.fromiter(self._recent.values(), np.int64, len(self._recent)), self._offsets])
        self._keys, first = np.unique(keys, return_index=True)  # the first of equals: the recent one
        self._offsets = offsets[first]
        self._recent = {}


def _assert_distinct(rows: LedgerBatch) -> None:
    keys = _keys(rows)
    order = np.lexsort((rows.subject, keys))
    same = (np.diff(keys[order]) == 0) & (np.diff(rows.subject[order].astype(np.int64)) == 0)
    assert not same.any(), "a subject stands twice in a window"


def _key(start_ms: int, coarse: bool) -> int:
    return start_ms << 1 | int(coarse)


def _keys(rows: LedgerBatch) -> I64:
    return rows.start_ms << 1 | rows.coarse.astype(np.int64)
