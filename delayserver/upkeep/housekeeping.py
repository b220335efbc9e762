"""Periodic checks: free space, and steps of the wall clock."""

from __future__ import annotations

from delayserver.config.settings import StorageSettings
from delayserver.config.units import format_duration
from delayserver.logs.events import EventLogger
from delayserver.runtime.clock import read_both
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.upkeep.kept_room import KeptRoom
from store.disk.filesystem import FileSystem
from store.disk.space_reserve import SpaceReserve
from store.errors import DiskError

events = EventLogger()

INTERVAL_MS = 250
# A wall clock that moves this much against the monotonic one was stepped, not slewed (NTP slews 0.5 ms per second).
STEP_MS = 100


class Housekeeping:
    """Checks four times a second."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        reserve: SpaceReserve,
        room: KeptRoom,
        stepped: tuple[Bell, ...],
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        """`path` of the data directory. `stepped` are rung after each step of the wall clock."""
        self._fs = fs
        self._path = path
        self._reserve = reserve
        self._room = room
        self._stepped = stepped
        self._settings = settings
        self._damage = runtime.damage
        self._clock = runtime.clock
        self.disk_low = False
        self.free_bytes = 0
        self.clock_steps = 0
        self.clock_step_last_ms = 0
        self.look_at_disk()

    async def run(self) -> None:
        """Checks the clock and the disk until cancelled."""
        offset_us = read_both(self._clock).apart_us
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            offset_us = self._look_at_clock(offset_us)
            self.look_at_disk()

    def _look_at_clock(self, offset_us: int) -> int:
        now_us = read_both(self._clock).apart_us
        step_ms = (now_us - offset_us) // 1000
        if abs(step_ms) >= STEP_MS:
            self.clock_steps += 1
            self.clock_step_last_ms = step_ms
            held = format_duration(self._settings.clock_hold_ms)
            events.warning(
                "clock_stepped",
                "the clock was stepped by {step_ms} ms; nothing is delivered early by the new time"
                + ("; nothing is removed by it before it has held for {hold}" if step_ms > 0 else ""),
                step_ms=step_ms,
                hold=held,
            )
            for bell in self._stepped:
                bell.ring()
        return now_us

    def look_at_disk(self) -> None:
        """Refuses sends while space is short, so that schedule_log, outcomes and checkpoints have room."""
        try:
            self.free_bytes = self._fs.free_bytes(self._path)
        except DiskError as error:  # the last values stay valid; writers meet the error themselves
            self._damage.report(error)
            return
        needed_bytes = self._room.needed_bytes
        low = self.free_bytes - needed_bytes < self._settings.free_bytes_min
        if low != self.disk_low:
            if low:
                events.warning(
                    "disk_low",
                    "disk nearly full: {free_bytes} bytes free, of which accepted messages still need {needed_bytes}; sends "
                    "are refused until {free_bytes_min} bytes beside them are free. Make room on the disk, but delete "
                    "nothing in the data directory",
                    free_bytes=self.free_bytes,
                    needed_bytes=needed_bytes,
                    free_bytes_min=self._settings.free_bytes_min,
                )
            else:
                events.warning(
                    "disk_low_ended", "the disk has room again; sends are accepted", free_bytes=self.free_bytes
                )
            self.disk_low = low
        storage, reserve = self._settings, self._reserve
        # Tried at each check, because there may be too little room for the reserve when sends are accepted again.
        needed_bytes += storage.free_bytes_min + storage.dispatch_reserve_bytes
        if not reserve.held and self.free_bytes >= needed_bytes:
            reserve.restore()
