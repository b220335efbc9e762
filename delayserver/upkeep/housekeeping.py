"""Small things looked at every so often: free space, steps of the clock, windows that are complete."""

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
# A wall clock that moves this much against the monotonic one was stepped, not slewed (NTP slews 0.5 ms a second).
STEP_MS = 100
# Complete windows that a node is told of in one request, and how long one is left alone that did not hear it.
WINDOWS_AT_ONCE = 1_000
AGAIN_US = 10_000_000
# Of more than eleven days of minutes a node that does not hear is not told: it gives keys up by itself after a week.
UNTOLD_MAX = 16_384


class Housekeeping:
    """Watches what nobody else waits for."""

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
        # Windows that are over, by the address of a node that has not heard it; and when to try again, monotonic.
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
        """Look until cancelled."""
        offset_us = self._clock.now_us() - self._clock.monotonic_us()
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            offset_us = self._look_at_clock(offset_us)
            self.look_at_disk()

    async def tell_nodes(self) -> None:
        """Tell nodes of complete windows until cancelled. A task of its own, since every node that does not hear takes a
        second; and not before the replay is complete, which may bring messages for any window."""
        # Whether the process before told the nodes nobody knows.
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
        """Refuse sends while space is short: what is accepted finds room in schedule_log, then outcomes and checkpoints."""
        try:
            self.free_bytes = self._fs.free_bytes(self._path)
        except DiskError as error:  # what was known goes on to count; whatever has to be written meets the error itself
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
        # Not only when sends are accepted again: there may be less room then than the reserve takes.
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
            # A late message may have opened one again; it comes back here when that one has its outcome.
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
        """Whether nothing of the window is to be delivered: while its day drains, more of it is on its way from there."""
        return self._book.is_settled(start_ms) and not self._days.is_draining(start_ms)
