"""Coarse days on their way to minutes, between rounds of the replayer: days that come near are sealed, and then drained.

Runs in the replayer's task, so it is the only writer of schedule_log too. Outcomes that messages got while they lay in
the coarse file (cancels, suppressed copies) move to the minutes when the day is drained.
"""

from __future__ import annotations

from delayserver.replay.day_drain import CHECK_INTERVAL_MS, DayDrain
from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.replay.day_sealing import DaySealing
from delayserver.runtime.clock import Clock
from delayserver.runtime.marks import Bell
from delayserver.state.windows.drains import Drains
from store.errors import DiskFullError


class DayTier:
    """Says when the replayer is to take a step for the days, and takes it."""

    def __init__(
        self, drains: Drains, outcomes: DayOutcomes, sealing: DaySealing, drain: DayDrain, arrived: Bell, clock: Clock
    ) -> None:
        """A ring of `arrived` wakes the replayer, which takes the steps."""
        self._drains = drains
        self._outcomes = outcomes
        self._sealing = sealing
        self._drain = drain
        self._arrived = arrived
        self._clock = clock
        # Whether the replayer is to take a step of this between its rounds.
        self.is_due = False

    async def run(self) -> None:
        """Look now and then whether a day comes near; cancelled from outside."""
        while True:
            await self._outcomes.take_refused()
            if self._drains.retry() or self._sealing.is_due:
                self.is_due = True
                self._arrived.ring()
            await self._clock.sleep_ms(CHECK_INTERVAL_MS)

    async def bring_near(self, until_ms: int) -> None:
        """Return when the days that begin before a time are drained, or held back. The primary of a shard retires their
        minutes, and its clock may be hours ahead of this one."""
        self._sealing.bring_near(until_ms)
        while self._sealing.is_due or any(day.start_ms < until_ms for day in self._drains.drainable()):
            await self.step()

    async def step(self) -> None:
        """Seal what is near, drain a slice of the earliest sealed day; nothing is due when nothing is left."""
        try:
            if self._sealing.is_due:
                await self._sealing.seal()
            draining = self._drains.drainable()
            if draining:
                await self._drain.step(draining[0].start_ms)
            else:
                self.is_due = False
        except DiskFullError:
            # Sealing and draining wait for room; each of their steps can be made again.
            await self._clock.sleep_ms(200)
