"""Searches for stored messages, and the making of the indexes behind them. All work on files runs in worker threads."""

from __future__ import annotations

import trio

from delayserver.broker.actions.finding import FindQuery, FindResult
from delayserver.broker.service.broker import Broker
from delayserver.logs.events import EventLogger
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError

events = EventLogger()

# A segment takes seconds to fill at least. After a start the indexes of older segments are made one behind the other.
LOOK_MS = 5_000
BETWEEN_MS = 100


class FindService:
    """One search or one index at a time: a search costs the disk, and no client waits for an index."""

    def __init__(self, broker: Broker, runtime: Runtime) -> None:
        self._broker = broker
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._lock = trio.Lock()

    async def find(self, query: FindQuery) -> FindResult:
        """Search the store. Raises StoreError if the disk refuses."""
        async with self._lock:
            plan = self._broker.find_plan(query)
            result = await self._workers.run(plan.run)
            self._broker.finish_find(result)
        return result

    async def run(self) -> None:
        """Make the index of each segment that is sealed, until cancelled. A full disk puts it off."""
        while True:
            made = False
            async with self._lock:
                plan = self._broker.index_plan()
                if plan is not None:
                    try:
                        await self._workers.run(plan.run)
                        self._broker.finish_index(plan.segment.base)
                        made = True
                    except FileNotFoundError:  # retention was quicker
                        self._broker.finish_index(plan.segment.base)
                    except DiskFullError as error:
                        events.info(
                            "index_waits_for_room",
                            "the index of {path} waits for room: {reason}",
                            path=str(plan.segment.path),
                            reason=str(error),
                        )
            await self._clock.sleep_ms(BETWEEN_MS if made else LOOK_MS)
