"""Makes the next segments of logs beside their appends, in worker threads, while the disk has room to spare."""

from __future__ import annotations

from typing import Protocol

from delayserver.runtime.damage import DamageReport
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError, StoreError
from store.logs.message_log import MessageLog

# After a refusal of the disk, or without room to spare. An append meanwhile makes its segment itself.
AGAIN_MS = 1_000


class SpareRoom(Protocol):
    """Knows what else the disk is needed for."""

    def has_spare(self, growth_bytes: int) -> bool:
        """Whether so many bytes can be taken that nothing else waits for."""


class SegmentMaker:
    """Makes one segment at a time."""

    def __init__(self, room: SpareRoom, runtime: Runtime) -> None:
        self._room = room
        self._clock = runtime.clock
        self._workers = runtime.workers
        self._damage: DamageReport = runtime.damage

    async def make(self, log: MessageLog, zero_bytes: int = 0) -> bool:
        """Make the next segment of a log whose end has come to `prepare_from`. Without room it waits a moment instead; what
        refuses it harms no append. False if there is nothing to do before the log is synced."""
        if not self._room.has_spare(log.segment_bytes):
            await self._clock.sleep_ms(AGAIN_MS)
            return True
        plan = log.preparation(zero_bytes)
        if plan is None:
            return False
        made = False
        try:
            await self._workers.run(plan.make)
            made = True
        except DiskFullError:
            pass
        except StoreError as error:
            self._damage.report(error)
        finally:
            if not made:
                log.give_up_preparing()
        if made:
            log.adopt_prepared(plan)
        else:
            await self._clock.sleep_ms(AGAIN_MS)
        return True
