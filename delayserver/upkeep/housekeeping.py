"""Periodic checks: free space, wall-clock steps, completed windows."""

from __future__ import annotations

import logging

import trio

from delayserver.config.settings import StorageSettings
from delayserver.config.units import format_duration
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.broker_node import Broker, DeliveryError
from delayserver.dispatch.dispatcher import Dispatcher
from delayserver.runtime.runtime import Runtime
from delayserver.state.window_book import WindowBook
from delayserver.upkeep.kept_room import KeptRoom
from store.disk.filesystem import FileSystem
from store.disk.space_reserve import SpaceReserve
from store.errors import DiskError
from store.tables.days import DayTable

logger = logging.getLogger("delayserver")

INTERVAL_MS = 250
# A wall clock that moves this much against the monotonic one was stepped, not slewed (NTP slews 0.5 ms per second).
STEP_MS = 100
# Complete windows in one request to a node, and the pause after a request that failed.
WINDOWS_AT_ONCE = 1_000
AGAIN_US = 10_000_000
# Complete windows that are kept for an unreachable node, eleven days of minutes. A node drops keys itself after a week.
UNTOLD_MAX = 16_384


class Housekeeping:
    """Checks the disk and the clock, and reports complete windows to nodes."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        reserve: SpaceReserve,
        days: DayTable,
        room: KeptRoom,
        book: WindowBook,
        groups: dict[int, BrokerGroup],
        dispatcher: Dispatcher,
        settings: StorageSettings,
        runtime: Runtime,
    ) -> None:
        self._fs = fs
        self._path = path
        self._reserve = reserve
        self._days = days
        self._room = room
        self._book = book
        self._groups = groups
        self._dispatcher = dispatcher
        self._settings = settings
        self._damage = runtime.damage
        self._clock = runtime.clock
        self._completed: set[int] = set()
        # By node address: complete windows that the node does not know yet, and the monotonic time of the next try.
        self._untold: dict[str, set[int]] = {
            node.broker.address: set() for group in groups.values() for node in group.nodes
        }
        self._again_us = dict.fromkeys(self._untold, 0)
        self.disk_low = False
        self.free_bytes = 0
        self.clock_steps = 0
        self.clock_step_last_ms = 0
        self.look_at_disk()

    async def run(self) -> None:
        """Checks the clock and the disk until cancelled."""
        offset_us = self._clock.now_us() - self._clock.monotonic_us()
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            offset_us = self._look_at_clock(offset_us)
            self.look_at_disk()

    async def tell_nodes(self) -> None:
        """Reports complete windows to nodes until cancelled. A separate task, as each unreachable node takes a second.
        Starts after the replay is complete, because the replay may bring messages for any window."""
        # The previous process may not have reported these windows.
        self._completed.update(start for start in self._book.starts() if self._book.is_settled(start))
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            await self._declare_complete()

    def _look_at_clock(self, offset_us: int) -> int:
        now_us = self._clock.now_us() - self._clock.monotonic_us()
        step_ms = (now_us - offset_us) // 1000
        if abs(step_ms) >= STEP_MS:
            self.clock_steps += 1
            self.clock_step_last_ms = step_ms
            held = format_duration(self._settings.clock_hold_ms)
            removes = f"; nothing is removed by it before it has held for {held}" if step_ms > 0 else ""
            logger.warning(
                "the clock was stepped by %d ms; nothing is delivered early by the new time%s", step_ms, removes
            )
            self._dispatcher.clock_stepped()
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
                logger.warning(
                    "disk nearly full: %d bytes free, of which accepted messages still need %d; sends are refused until "
                    "%d bytes beside them are free. Make room on the disk, but delete nothing in the data directory",
                    self.free_bytes,
                    needed_bytes,
                    self._settings.free_bytes_min,
                )
            else:
                logger.warning("the disk has room again; sends are accepted")
            self.disk_low = low
        storage, reserve = self._settings, self._reserve
        # Tried at each check, because there may be too little room for the reserve when sends are accepted again.
        needed_bytes += storage.free_bytes_min + storage.dispatch_reserve_bytes
        if not reserve.held and self.free_bytes >= needed_bytes:
            reserve.restore()

    async def _declare_complete(self) -> None:
        self._completed |= self._book.take_completed()
        over_ms = self._clock.now_ms() - self._settings.window_ms
        over = {start for start in self._completed if start <= over_ms and self._is_settled(start)}
        self._completed -= over
        for untold in self._untold.values():
            untold.update(over)
            if len(untold) > UNTOLD_MAX:
                untold.difference_update(sorted(untold)[:-UNTOLD_MAX])
        for group in self._groups.values():
            for node in group.nodes:
                address = node.broker.address
                if (
                    self._untold[address]
                    and not node.open_circuit
                    and self._clock.monotonic_us() >= self._again_us[address]
                ):
                    await self._tell(node.broker, self._untold[address])

    async def _tell(self, node: Broker, untold: set[int]) -> None:
        windows = sorted(untold)[:WINDOWS_AT_ONCE]

        def complete() -> list[int]:
            # A late message may have opened a window again. The window comes back when that message has its outcome.
            return [start for start in windows if self._is_settled(start)]

        try:
            with trio.fail_after(1):
                await node.windows_complete(complete)
        except (DeliveryError, trio.TooSlowError) as error:
            logger.info("node %s was not told of complete windows: %s", node.address, error or "no answer")
            self._again_us[node.address] = self._clock.monotonic_us() + AGAIN_US
        else:
            untold.difference_update(windows)

    def _is_settled(self, start_ms: int) -> bool:
        """True if no message of the window is left to deliver. While its day drains, more messages may come."""
        return self._book.is_settled(start_ms) and not self._days.is_draining(start_ms)
