"""Searches for stored messages, and the making of the indexes behind them. All work on files runs in worker threads.

An index is made in steps of 3 ms with rests, and bursts come first, for up to half a minute. A search that waits ends
the rests. The segment that grows is indexed in memory by the first search, so storing a message costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import trio

from delayserver.broker.actions.find_plan import FindResult, Indexes, StoredQuery
from delayserver.broker.actions.indexing import IndexPlan
from delayserver.logs.events import EventLogger
from delayserver.runtime.runtime import Runtime
from store.errors import CorruptionError, DiskError, DiskFullError, FormatError

events = EventLogger()

# A segment takes seconds to fill at least. After a start the indexes of older segments are made one behind the other.
LOOK_MS = 5_000
BETWEEN_MS = 100
# An index takes a quarter of a processor at most.
REST_SHARE = 3
REST_MS_MIN = 5
# It begins when no large step came for this long. If bursts follow one another, it begins after half a minute, and all
# missing indexes are made.
GIVE_WAY_MS = 20
GIVE_WAY_MS_MAX = 30_000
# A segment that the disk could not read is tried again after this pause. Each try may read all of it.
LATER_MS = 600_000
# A full disk is tried again after this pause. Each try reads the segment before it finds no room.
FULL_MS = 60_000
_END = object()


class FindService:
    """One search or one index at a time: a search costs the disk, and no client waits for an index."""

    def __init__(self, indexes: Indexes, runtime: Runtime) -> None:
        self._indexes = indexes
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._turns = runtime.turns
        self._lock = trio.Lock()
        self._gave_way_ms = 0
        self._later_us: dict[int, int] = {}

    async def find(self, query: StoredQuery) -> FindResult:
        """Search the store. Raises StoreError if the disk refuses."""
        async with self._lock:
            plan = self._indexes.find_plan(query)
            result = await self._workers.run(plan.run)
            self._indexes.finish_find(result)
        return result

    async def run(self) -> None:
        """Make the index of each segment that is sealed, until cancelled. A full disk puts it off, and so does a segment
        that cannot be read: searches do without the index."""
        while True:
            pause_ms = LOOK_MS
            async with self._lock:
                plan = self._indexes.index_plan(self._put_off())
                if plan is None:
                    self._gave_way_ms = 0
                else:
                    try:
                        await self._make(plan)
                        self._indexes.finish_index(plan.segment.base)
                        pause_ms = BETWEEN_MS
                    except FileNotFoundError:  # retention was quicker
                        self._indexes.finish_index(plan.segment.base)
                    except DiskFullError as error:
                        pause_ms = FULL_MS
                        events.info(
                            "index_waits_for_room",
                            "the index of {path} waits for room: {reason}",
                            path=str(plan.segment.path),
                            reason=str(error),
                        )
                    except (CorruptionError, DiskError, FormatError) as error:
                        self._later_us[plan.segment.base] = self._clock.monotonic_us() + LATER_MS * 1000
                        events.warning(
                            "index_waits_for_disk",
                            "the index of {path} is made later: {reason}",
                            path=str(plan.segment.path),
                            reason=str(error),
                        )
            await self._clock.sleep_ms(pause_ms)

    def _put_off(self) -> dict[int, int]:
        """The bases of segments that are not to be tried now, with the time of the next try."""
        now_us = self._clock.monotonic_us()
        self._later_us = {base: when_us for base, when_us in self._later_us.items() if when_us > now_us}
        return self._later_us

    async def _make(self, plan: IndexPlan) -> None:
        """Make an index in small steps with rests between them, because a thread that works takes the GIL from the event
        loop. A search that waits ends the rests."""
        with closing(plan.steps()) as steps:
            await self._rest(0)
            begin_us = self._clock.monotonic_us()
            while await self._workers.run(partial(_step, steps)):
                await self._rest((self._clock.monotonic_us() - begin_us) // 1000)
                begin_us = self._clock.monotonic_us()

    async def _rest(self, took_ms: int) -> None:
        """Rest after a step. Large steps of the event loop, such as those of a burst, come first for a bounded time."""
        if self._is_awaited:
            return
        taken = self._turns.taken
        await self._clock.sleep_ms(max(REST_SHARE * took_ms, REST_MS_MIN))
        while taken != self._turns.taken and self._gave_way_ms < GIVE_WAY_MS_MAX and not self._is_awaited:
            taken = self._turns.taken
            self._gave_way_ms += GIVE_WAY_MS
            await self._clock.sleep_ms(GIVE_WAY_MS)

    @property
    def _is_awaited(self) -> bool:
        return self._lock.statistics().tasks_waiting > 0


def _step(steps: Iterator[None]) -> bool:
    """Does one step; whether it was one."""
    return next(steps, _END) is not _END
