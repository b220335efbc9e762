"""Looks at the shared log now and then, for the figures of a member. It decides nothing."""

from __future__ import annotations

from delayserver.runtime.clock import Clock
from delayserver.runtime.shared_log import LogUnavailable, LogUnusable, SharedLog
from delayserver.state.shard.log_health import LogHealth

LOOK_MS = 5_000
"""Monitors look four times a minute. More would cost the log's engine for nothing."""
DESCRIBED_EACH = 12
"""Copies and settings change rarely, and take several requests: each minute."""


class LogWatch:
    """Asks the log for its end, and each minute for its copies and settings."""

    def __init__(self, log: SharedLog, health: LogHealth, clock: Clock) -> None:
        self._log = log
        self._health = health
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        looks = 0
        while True:
            try:
                self._health.answer(await self._log.ask())
                if looks % DESCRIBED_EACH == 0:
                    self._health.describe(await self._log.describe())
                looks += 1
            except (LogUnavailable, LogUnusable):  # who reads the log ends where it is unusable
                self._health.miss()
            await self._clock.sleep_ms(LOOK_MS)
