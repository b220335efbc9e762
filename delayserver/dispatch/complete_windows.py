"""Declares complete windows to the nodes, which may then forget what they keep to recognise duplicates of their messages.

A node keeps the keys of deliveries until their window is complete, and a late message opens a window again. So
windows are chosen by durable outcomes, in the step that sends the request.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.logs.events import EventLogger
from delayserver.runtime.runtime import Runtime
from delayserver.state.windows.window_book import WindowBook
from delayserver.targets.target import DeliveryError, Target
from store.tables.days import DayTable

events = EventLogger()

INTERVAL_MS = 250
# Complete windows that one request declares, and how long a node is left alone after it did not answer.
WINDOWS_AT_ONCE = 1_000
AGAIN_US = 10_000_000
# More than eleven days of minutes. Windows beyond them are not declared to a node that does not answer: it gives up keys by
# itself after a week.
UNDECLARED_MAX = 16_384


class CompleteWindows:
    """Knows which windows each node has not heard of."""

    def __init__(self, book: WindowBook, days: DayTable, groups: Iterable[BrokerGroup], runtime: Runtime) -> None:
        self._book = book
        self._days = days
        self._groups = groups
        self._clock = runtime.clock
        self._completed: set[int] = set()
        # By the address of a node: windows to declare, and when to try again, monotonic.
        self._undeclared: dict[str, set[int]] = {}
        self._again_us: dict[str, int] = {}

    async def run(self) -> None:
        """Declare until cancelled. A task of its own, since a node that does not answer takes a second; and not before the
        replay is complete, which may bring messages for any window."""
        # The process before may have ended without declaring them.
        self._completed.update(start for start in self._book.starts() if self._book.is_settled(start))
        while True:
            await self._clock.sleep_ms(INTERVAL_MS)
            await self._declare()

    async def _declare(self) -> None:
        self._completed |= self._book.take_completed()
        over_ms = self._clock.now_ms() - self._book.window_ms
        over = {start for start in self._completed if start <= over_ms and self._is_settled(start)}
        self._completed -= over
        nodes = {
            node.target.address: node
            for group in self._groups
            for node in group.nodes
            if node.capabilities.windows_complete
        }
        self._undeclared = {address: self._undeclared.get(address, set()) for address in nodes}
        for undeclared in self._undeclared.values():
            undeclared.update(over)
            if len(undeclared) > UNDECLARED_MAX:
                undeclared.difference_update(sorted(undeclared)[:-UNDECLARED_MAX])
        for address, node in nodes.items():
            if (
                self._undeclared[address]
                and not node.health.open_circuit
                and self._clock.monotonic_us() >= self._again_us.get(address, 0)
            ):
                await self._declare_to(node.target, self._undeclared[address])

    async def _declare_to(self, node: Target, undeclared: set[int]) -> None:
        windows = sorted(undeclared)[:WINDOWS_AT_ONCE]

        def complete() -> list[int]:
            # A late message may have opened one again; it comes back here when that one has its outcome.
            return [start for start in windows if self._is_settled(start)]

        try:
            with trio.fail_after(1):
                await node.windows_complete(complete)
        except (DeliveryError, trio.TooSlowError) as error:
            events.info(
                "windows_not_declared",
                "node {node} did not confirm complete windows: {reason}",
                node=node.address,
                reason=str(error) or "no answer",
            )
            self._again_us[node.address] = self._clock.monotonic_us() + AGAIN_US
        else:
            undeclared.difference_update(windows)

    def _is_settled(self, start_ms: int) -> bool:
        """Whether nothing of the window is to be delivered: while its day drains, more of it is on its way from there."""
        return self._book.is_settled(start_ms) and not self._days.is_draining(start_ms)
