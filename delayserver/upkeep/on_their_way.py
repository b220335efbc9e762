"""Finds the windows of unplaced messages: accepted or about to be, and not in their schedule file yet.

Retention keeps these windows. While the replay waits for free space, a window may be complete for long and still get
messages. Its files are the only proof that such a message is a duplicate of a delivered one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.positions import Positions
from store.logs.due_windows import window_starts
from store.logs.log_scan import LogScan
from store.logs.message_log import MessageLog
from store.records.batches import I64, MessageBatch
from store.records.message_rows import MessageRows


class OnTheirWay:
    """Reads the records that the replay still has to place."""

    def __init__(
        self, gathering: Gathering, log: MessageLog, positions: Positions, window_ms: int, runtime: Runtime
    ) -> None:
        self._gathering = gathering
        self._log = log
        self._positions = positions
        self._window_ms = window_ms
        self._workers = runtime.workers
        # The range of message_log that was read last, and its windows, so that a blocked replay is not read repeatedly.
        self._stretch = (0, 0)
        self._windows: set[int] = set()

    async def windows(self) -> set[int]:
        """Starts of the windows of everything that was taken before this call."""
        gathered = {start for due_ms in self._gathering.due_ms() for start in self._starts(due_ms)}
        position, stop = self._positions.replayed.value, self._positions.durable.value
        if position != self._stretch[0]:
            self._windows, self._stretch = set(), (position, position)
        if stop > self._stretch[1]:
            read = partial(self._read, self._stretch[1], stop)
            self._windows |= await self._workers.run(read)
            self._stretch = position, stop
        return gathered | self._windows

    def _starts(self, due_ms: I64) -> list[int]:
        starts: list[int] = np.unique(window_starts(due_ms, self._window_ms)).tolist()
        return starts

    def _read(self, position: int, stop: int) -> set[int]:
        windows: set[int] = set()
        for entry in LogScan(self._log, position, stop):
            if isinstance(entry.batch, MessageBatch | MessageRows):
                windows.update(self._starts(np.asarray(entry.batch.due_ms, np.int64)))
        return windows
