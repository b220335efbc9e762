"""Removes segments of message_log that no start needs any more."""

from __future__ import annotations

import trio

from delayserver.config.settings import StorageSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.positions import Positions
from store.logs.message_log import MessageLog

INTERVAL_MS = 5_000


class LogRetention:
    """Knows since when each segment is sealed."""

    def __init__(self, log: MessageLog, positions: Positions, settings: StorageSettings, runtime: Runtime) -> None:
        self._log = log
        self._positions = positions
        self._settings = settings
        self._clock = runtime.clock
        self._segments_seen: dict[int, int] = {}

    async def run(self) -> None:
        """Retire until cancelled."""
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            while self.retire():
                await trio.lowlevel.checkpoint()  # each removal costs milliseconds, and many segments may go at once

    def retire(self) -> bool:
        """Remove the first segment if a checkpoint has passed it and it was sealed longer ago than its retention. Returns
        whether it went."""
        now_ms = self._clock.monotonic_us() // 1000  # a wall clock that was set back would hold all of them for as long
        sealed = self._log.segments()[:-1]
        # All of them, not only the first: each has its own time.
        self._segments_seen = {base: self._segments_seen.get(base, now_ms) for base, _, _ in sealed}
        if not sealed:
            return False
        base, end, _ = sealed[0]
        if end > self._positions.checkpointed.value:
            return False
        if now_ms - self._segments_seen[base] < self._settings.message_log_retention_ms:
            return False
        return bool(self._log.retire(end))
