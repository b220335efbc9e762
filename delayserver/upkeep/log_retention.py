"""Removes segments of message_log that no start needs any more."""

from __future__ import annotations

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
            self.retire()

    def retire(self) -> None:
        """Remove segments that a checkpoint has passed and that were sealed longer ago than their retention."""
        now_ms = self._clock.monotonic_us() // 1000  # a wall clock that was set back would hold all of them for as long
        limit = self._positions.checkpointed.value
        below = 0
        for base, end, _ in self._log.segments()[:-1]:
            sealed_ms = self._segments_seen.setdefault(base, now_ms)
            if end > limit or now_ms - sealed_ms < self._settings.message_log_retention_ms:
                break
            below = end
        if below:
            self._log.retire(below)
            self._segments_seen = {base: seen for base, seen in self._segments_seen.items() if base >= below}
