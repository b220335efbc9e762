"""`Runtime`: the services of the process that every part of a server may need, as one argument of constructors."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from delayserver.runtime.chance import system_chance
from delayserver.runtime.clock import Clock, SystemClock
from delayserver.runtime.damage import DamageReport
from delayserver.runtime.stage_times import StageTimes
from delayserver.runtime.turns import Turns
from delayserver.runtime.workers import ThreadWorkers, Workers


@dataclass(frozen=True, slots=True)
class Runtime:
    """The doors to time, chance and threads, the turns of large steps, the report of damage, and the times of
    the stages. One for a server."""

    clock: Clock
    chance: random.Random
    workers: Workers
    turns: Turns
    damage: DamageReport
    stages: StageTimes

    @classmethod
    def on(
        cls, *, clock: Clock | None = None, chance: random.Random | None = None, workers: Workers | None = None
    ) -> Self:
        """A runtime with new turns and a new damage report. Doors that are not given are those of the system."""
        clock = clock or SystemClock()
        return cls(
            clock,
            chance or system_chance(),
            workers or ThreadWorkers(),
            Turns(clock),
            DamageReport(clock),
            StageTimes(),
        )
