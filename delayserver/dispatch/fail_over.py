"""Gives rows of a group that fails to the next groups of their routes."""

from __future__ import annotations

import trio

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.runtime.clock import LOOK_AGAIN_MS
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.queueing import Queueing

# After rows went to a fallback group, the next ones are looked for after this: each time the whole queue is gone through.
FAIL_OVER_MS = 100


class FailOver:
    """Queue → queue."""

    def __init__(self, queueing: Queueing, runtime: Runtime) -> None:
        self._queueing = queueing
        self._clock = runtime.clock

    async def run(self, group: BrokerGroup) -> None:
        """Look after one group until cancelled."""
        while True:
            await group.stuck.rung()
            group.stuck.hush()
            while group.rows.failing and len(group.rows.queue):
                went = 0
                for rows in self._queueing.fail_over(group.rows):
                    went += rows
                    await trio.lowlevel.checkpoint()
                await self._clock.sleep_ms(FAIL_OVER_MS if went else LOOK_AGAIN_MS)
