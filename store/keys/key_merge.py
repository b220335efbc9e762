"""Merges runs of the key index into one, some megabytes at a step, in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from store.keys.key_rows import KeyRows, joined, no_rows
from store.keys.key_run import KeyRun, RunWriter

# Runs of one level are merged when there are so many of them. A level has about eight times the rows of the one below.
RUNS_OF_LEVEL = 8
_LEVEL_BITS = 3
# Runs below 8,192 rows are of the lowest level: to write one again costs 200 KB.
_LOWEST_BITS = 14
# A writer syncs after so many rows (6 MB): one large sync would hold up those of message_log.
_SYNC_ROWS = 1 << 18

KeepRows = Callable[[KeyRows], NDArray[np.bool_]]
"""True for rows that a merge keeps, bool[n]."""


def level(rows: int) -> int:
    """The level of a run."""
    return max(rows.bit_length() - _LOWEST_BITS + _LEVEL_BITS, 0) // _LEVEL_BITS


def runs_to_merge(runs: Sequence[KeyRun]) -> list[KeyRun]:
    """The runs of the lowest level that has enough of them; empty where there is nothing to do."""
    levels: dict[int, list[KeyRun]] = {}
    for run in runs:
        levels.setdefault(level(run.name.rows), []).append(run)
    full = [key for key, theirs in levels.items() if len(theirs) >= RUNS_OF_LEVEL]
    return levels[min(full)] if full else []


class KeyMerge:
    """Some runs → one."""

    def __init__(self, runs: list[KeyRun], writer: RunWriter, keep: KeepRows) -> None:
        self.runs = runs
        self._writer = writer
        self._keep = keep
        self._merged = merged([run.parts() for run in runs])
        self._unsynced = 0

    def step(self) -> KeyRun | None:
        """Merge some rows; the new run when all are merged. Raises CorruptionError, DiskFullError, DiskError,
        SyncFailedError."""
        rows = next(self._merged, None)
        if rows is None:
            return self._writer.finish()
        self._writer.add(rows[self._keep(rows)])
        self._unsynced += len(rows)
        if self._unsynced >= _SYNC_ROWS:
            self._writer.sync()
            self._unsynced = 0
        return None

    def abandon(self) -> None:
        """Nothing has changed."""
        self._writer.abandon()


def merged(sources: list[Iterator[KeyRows]]) -> Iterator[KeyRows]:
    """The rows of sources that are each in order, in the order of all."""
    held = [no_rows() for _ in sources]
    open_sources = set(range(len(sources)))
    while True:
        for place in sorted(open_sources):
            while not len(held[place]):
                part = next(sources[place], None)
                if part is None:
                    open_sources.discard(place)
                    break
                held[place] = part
        # Up to the least of the last rows of those that go on, all rows are here.
        bound = min([(int(held[p][-1]["key"]), int(held[p][-1]["sequence"])) for p in open_sources], default=None)
        counts = [len(rows) if bound is None else _up_to(rows, *bound) for rows in held]
        if any(counts):
            yield joined([rows[:count] for rows, count in zip(held, counts, strict=True)])
        held = [rows[count:] for rows, count in zip(held, counts, strict=True)]
        if not open_sources:
            return


def _up_to(rows: KeyRows, key: int, sequence: int) -> int:
    """How many rows in order are not behind (key, sequence)."""
    first = int(np.searchsorted(rows["key"], np.uint64(key)))
    last = int(np.searchsorted(rows["key"], np.uint64(key), side="right"))
    return first + int(np.searchsorted(rows["sequence"][first:last], sequence, side="right"))
