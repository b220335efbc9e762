"""Makes the key index where it is missing, and merges its runs: all beside the loop, in one task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.keys.key_index import YOUNG_ROWS_MAX, KeyIndex
from delayserver.keys.stored_keys import StoredKeys
from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.windows.windows import Windows
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, DiskFullError, StoreError
from store.keys.key_merge import KeyMerge
from store.keys.key_rows import KeyRows
from store.keys.key_run import KeyRun
from store.keys.key_table import KeyTable, new_table
from store.logs.due_windows import window_starts

# A full disk is tried again after this time.
PAUSE_MS = 1_000
# Rows that are read before they become a run: 24 MB.
MADE_ROWS = 1 << 20


class KeyUpkeep:
    """What the key index needs besides rounds and checkpoints."""

    def __init__(
        self, index: KeyIndex, files: Files, windows: Windows, fs: FileSystem, directory: str, runtime: Runtime
    ) -> None:
        """`directory`: that of the index."""
        self._index = index
        self._files = files
        self._windows = windows
        self._fs = fs
        self._directory = directory
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._damage = runtime.damage

    async def run(self) -> None:
        """Work until cancelled. What a disk refuses goes on after a pause: the index never ends the server."""
        while True:
            self._index.work.hush()
            try:
                await self._step()
            except StoreError as error:
                if not isinstance(error, DiskFullError):
                    self._damage.report(error, own=False)
                await self._clock.sleep_ms(PAUSE_MS)
                continue
            await self._index.work.rung()

    async def _step(self) -> None:
        if self._index.table is None:
            begin = partial(new_table, self._fs, self._directory, self._files.server_id, complete=False)
            await self._index.use(begin)
        table = self._index.table
        if table is not None and not table.complete:
            await self._make(table)
        if table is not None and table.young_rows > YOUNG_ROWS_MAX:
            await self._index.make_durable()
        await self._merge_all()

    async def _make(self, table: KeyTable) -> None:
        """Read all that lies in schedule_log. Rounds add what comes meanwhile."""
        stored = StoredKeys(self._files.schedule, self._damage)
        parts = stored.parts()
        try:
            while await self._workers.run(partial(_write_some, table, parts)):
                if table is not self._index.table:
                    return
                await self._merge_all()
            await self._workers.run(partial(table.end_making, gaps=stored.met_damage))
        except StoreError:
            self._index.start_over()
            raise

    async def _merge_all(self) -> None:
        while (table := self._index.table) is not None:
            merge = await self._workers.run(partial(table.begin_merge, self._kept))
            if merge is None:
                return
            try:
                run = await self._merged(merge)
            except CorruptionError as error:
                self._index.give_up(table, error)
                return
            await self._workers.run(partial(table.end_merge, merge, run))

    async def _merged(self, merge: KeyMerge) -> KeyRun:
        try:
            while (run := await self._workers.run(merge.step)) is None:
                pass
        except BaseException:
            merge.abandon()
            raise
        return run

    def _kept(self, rows: KeyRows) -> NDArray[np.bool_]:
        """Leaves out messages that went with their window."""
        kept = np.ones(len(rows), np.bool_)
        past = np.flatnonzero(rows["due_ms"] < self._clock.now_ms())
        starts = window_starts(rows["due_ms"][past], self._windows.book.window_ms)
        retired = self._windows.retired
        for start in np.unique(starts).tolist():
            if retired.has(start):
                mine = past[starts == start]
                kept[mine] = ~retired.are(start, rows["sequence"][mine])
        return kept


def _write_some(table: KeyTable, parts: Iterator[KeyRows]) -> bool:
    """Write the next rows to a run. Whether there were any."""
    rows, some = 0, []
    for part in parts:
        some.append(part)
        rows += len(part)
        if rows >= MADE_ROWS:
            break
    if rows:
        table.write_older(some)
    return bool(some)
