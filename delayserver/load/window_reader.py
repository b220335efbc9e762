"""Reads the rows of a window from its schedule files. Damage is reported, and the rows around it are read (rule 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.rows import make_rows
from delayserver.state.windows.window_book import WindowBook
from store.errors import FormatError
from store.failed_reads import READ_TRIES, FailedReads
from store.logs.schedule_log import ScheduleIndex, ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import FLAG_PREPARED
from store.records.column_batch import has_any
from store.records.scan import Damage
from wheel.keys import KEY_HIGHEST, Key

# Windows whose failed reads are counted. A window waits for these tries; after that the rows around the bytes are loaded.
FAILED_WINDOWS_MAX = 1024


@dataclass(frozen=True, slots=True)
class WindowRows:
    """The result of one read of a window."""

    loaded: LoadedRows
    copies: ScheduleIndex
    """Duplicates of messages: never delivered."""


class WindowReader:
    """Reads for the loader and for `Refill`, in any thread."""

    def __init__(self, schedule: ScheduleLog, book: WindowBook, attempted: Attempted, runtime: Runtime) -> None:
        self._schedule = schedule
        self._book = book
        self._attempted = attempted
        self._damage = runtime.damage
        self._clock = runtime.clock
        # Of windows, since their last load.
        self._failed_reads = FailedReads[int](FAILED_WINDOWS_MAX)

    def ends(self, window_ms: int) -> dict[str, int]:
        """Where the files of a window end now, by source."""
        return {file.source.name: self._schedule.end(file) for file in self._book.files(window_ms)}

    def read(
        self, window_ms: int, ends: Mapping[str, int], from_key: Key, to_key: Key, rows_max: int | None = None
    ) -> WindowRows:
        """Read the rows of a window's files below `ends` with keys in (from_key, to_key]; of each file about `rows_max`.

        Raises CorruptionError and DiskError of a file. Raises UnreadableError the first times that the disk cannot read
        some of the rows, since it may read them soon. After that, and where bytes are wrong, the rows around them are read.
        """
        now_us = self._clock.now_us()
        limit = KEY_HIGHEST
        parts, copies = [], []
        for name, end in ends.items():
            if not end:
                continue
            source = ScheduleSource[name]
            index = self._index(ScheduleKey(window_ms, source), end, from_key, to_key, rows_max)
            if rows_max is not None and len(index) >= rows_max:
                last = np.lexsort((index.sequence, index.due_ms))[-1]
                limit = min(limit, Key(int(index.due_ms[last]), int(index.sequence[last])))
            original = index.duplicate_of == 0
            if not original.all():
                copies.append(index.take(np.flatnonzero(~original)))
                index = index.take(np.flatnonzero(original))
            if has_any(index.flags):  # prepared transactions are invisible, so they stay on disk
                index = index.take(np.flatnonzero(index.flags & FLAG_PREPARED == 0))
            rows = make_rows(index, window_ms, source, now_us)
            rows["uncertain"] = self._attempted.maybe(index.sequence, index.due_ms)
            parts.append(LoadedRows(index.due_ms, index.sequence, rows, limit))
        if len(parts) == 1:
            return WindowRows(parts[0], ScheduleIndex.concatenate(copies))
        whole = LoadedRows.concatenate(parts)
        return WindowRows(
            LoadedRows(whole.due_ms, whole.sequence, whole.rows, limit), ScheduleIndex.concatenate(copies)
        )

    def forget_failures(self, window_ms: int) -> None:
        """Forgets the failed reads of a window, because it is loaded."""
        self._failed_reads.forget(window_ms)

    def _index(self, key: ScheduleKey, end: int, from_key: Key, to_key: Key, rows_max: int | None) -> ScheduleIndex:
        damages: list[Damage] = []
        try:
            index = self._schedule.index(
                key, None, end, from_key=_plain(from_key), to_key=_plain(to_key), rows_max=rows_max, damages=damages
            )
        except FormatError as error:
            raise error.as_damage() from error
        for damage in damages:
            if damage.errno and self._failed_reads.count(key.start_ms) < READ_TRIES:
                raise damage.error(self._schedule.path(key))
            self._damage.report(damage.error(self._schedule.path(key)))
        return index


def _plain(key: Key) -> tuple[int, int]:
    return key.due_ms, key.sequence
