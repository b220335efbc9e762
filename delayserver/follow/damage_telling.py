"""A member that finds damage in its directory says so in the map: then no primary chooses it, and the others' figures name
it, also while nobody asks it.
"""

from __future__ import annotations

from typing import Final

from delayserver.runtime.clock import Clock
from delayserver.runtime.damage import DamageReport
from delayserver.state.shard.fronts import Fronts

LOOK_MS: Final = 1_000
"""Threads report damage, and wake nobody."""


class DamageTelling:
    """Takes what the report of one life knows over into `Fronts`, which `MapReading` writes into the map."""

    def __init__(self, fronts: Fronts, damage: DamageReport, clock: Clock) -> None:
        self._fronts = fronts
        self._damage = damage
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._fronts.note_damage(damaged=bool(self._damage.own))
            await self._clock.sleep_ms(LOOK_MS)
