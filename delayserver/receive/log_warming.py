"""Keeps the space ahead of message_log's end zeroed. A sync of an overwrite costs half of a sync of a growing file."""

from __future__ import annotations

from functools import partial

from delayserver.config.settings import StorageSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.positions.gathering import Gathering
from delayserver.state.positions.positions import Positions
from store.errors import DiskFullError
from store.logs.message_log import MessageLog

# The pause between two steps of zeros ahead of the log's end.
WARM_PAUSE_MS = 20


class LogWarming:
    """Works while there is nothing to commit."""

    def __init__(
        self, log: MessageLog, gathering: Gathering, positions: Positions, settings: StorageSettings, runtime: Runtime
    ) -> None:
        self._log = log
        self._gathering = gathering
        self._durable = positions.durable
        self._settings = settings
        self._workers = runtime.workers
        self._clock = runtime.clock

    async def run(self) -> None:
        """Overwrites space ahead of the tail until cancelled. Raises SyncFailedError."""
        while self._settings.warm_ahead_bytes:
            following = self._durable.value + 1
            step = None
            if self._gathering.is_idle:
                try:
                    step = self._log.warm_ahead(self._settings.warm_ahead_bytes)
                except DiskFullError:
                    await self._clock.sleep_ms(1000)
            if step is not None:
                await self._workers.run(partial(self._log.sync_warm, step))
                self._log.use_warm(step)
            else:
                await self._durable.reached(following)  # an idle server does not poll
            await self._clock.sleep_ms(WARM_PAUSE_MS)
