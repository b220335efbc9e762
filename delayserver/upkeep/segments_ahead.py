"""Makes the next segment of message_log before a commit needs it."""

from __future__ import annotations

from delayserver.config.settings import StorageSettings
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.segment_maker import SegmentMaker
from delayserver.state.positions.positions import Positions
from delayserver.upkeep.kept_room import KeptRoom
from store.logs.message_log import WARM_STEP_BYTES, MessageLog


class SegmentsAhead:
    """Waits for the mark `durable`; an idle server does not poll."""

    def __init__(
        self, log: MessageLog, positions: Positions, room: KeptRoom, settings: StorageSettings, runtime: Runtime
    ) -> None:
        self._log = log
        self._positions = positions
        self._maker = SegmentMaker(room, runtime)
        self._zero_bytes = min(settings.warm_ahead_bytes, WARM_STEP_BYTES)

    async def run(self) -> None:
        """Make segments until cancelled."""
        while True:
            await self._positions.durable.reached(self._log.prepare_from)
            await self._maker.make(self._log, self._zero_bytes)

    def drop(self) -> None:
        """Give the room of an unused segment back, at a clean stop."""
        self._log.drop_prepared()
