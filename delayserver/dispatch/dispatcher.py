"""Takes rows from the wheel just before they are due and hands them to the queues of their broker groups, slice by slice.

The moment before is for reading their bodies and for iterations of the event loop: a group has a batch ready when it is
due, and hands it over then and never before. A hot second is taken in slices with a checkpoint between them, so it does
not hold up the other groups.
"""

from __future__ import annotations

import trio

from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.dispatch.message_reader import AHEAD_MS, LOOK_AHEAD_MS, LOOK_MS
from delayserver.runtime.clock import LOOK_AGAIN_MS
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.state.memory.attempt_horizon import Horizon
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.order_gate import OrderGate
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.queueing import Queueing


class Dispatcher:
    """Wheel → groups."""

    def __init__(
        self,
        groups: BrokerGroups,
        wheel: GroupWheels,
        queueing: Queueing,
        overflow: Overflow,
        horizon: Horizon,
        gate: OrderGate,
        runtime: Runtime,
    ) -> None:
        self._groups = groups
        self._wheel = wheel
        self._queueing = queueing
        self._overflow = overflow
        self._horizon = horizon
        self._gate = gate
        self._earlier = horizon.earlier
        self._clock = runtime.clock
        self._looked_ms = 0

    async def run(self) -> None:
        """Dispatch until cancelled."""
        while True:
            self._earlier.hush()
            released = False
            now_ms = self._clock.now_ms()
            to_ms = min(now_ms + AHEAD_MS, self._horizon.due_ms)
            for code, rows in self._wheel.advance(to_ms, self._queueing.slice_rows):
                self._queueing.release(code, rows)
                released = True
                if len(rows) > LARGE_ROWS:
                    await trio.lowlevel.checkpoint()
            released |= self._release_keyed(now_ms, to_ms)
            if released:
                await trio.lowlevel.checkpoint()
                continue
            self._overflow.offer_room()
            next_due_ms = self._wheel.next_due_ms()
            keyed_s = self._keyed_wait_s(to_ms)
            if next_due_ms is None or next_due_ms > self._horizon.due_ms:
                with trio.move_on_after(keyed_s):
                    await self._earlier.rung()
                continue
            ahead_ms = LOOK_AHEAD_MS if self._look_ahead(next_due_ms) else AHEAD_MS
            with trio.move_on_after(min(self._clock.wait_s((next_due_ms - ahead_ms) * 1000), keyed_s)):
                await self._earlier.rung()

    def _release_keyed(self, now_ms: int, to_ms: int) -> bool:
        """Rows with an order key go to the queues, if no earlier row of their keys can be missing in memory."""
        next_due_ms = self._wheel.next_keyed_ms()
        if next_due_ms is None or next_due_ms > to_ms:
            return False
        limit_ms = self._gate.limit_ms(now_ms, to_ms)
        released = False
        for code in self._wheel.keyed_codes:
            first = self._groups[code].rows.spilled.first
            rows = self._wheel.advance_keyed(code, limit_ms, self._queueing.slice_rows, first)
            if len(rows):
                self._queueing.release(code, rows)
                released = True
        return released

    def _keyed_wait_s(self, to_ms: int) -> float:
        """How long to wait before rows with an order key are looked at again."""
        next_due_ms = self._wheel.next_keyed_ms()
        if next_due_ms is None or next_due_ms > self._horizon.due_ms:
            return float("inf")
        if next_due_ms <= to_ms:
            self._gate.ring_when_higher(self._earlier)
            for code in self._wheel.keyed_codes:
                reads = self._groups[code].rows.spilled.reads
                reads.ring_at(reads.value + 1, self._earlier)
            return LOOK_AGAIN_MS / 1000  # outcomes alone may complete the window that they wait for
        return self._clock.wait_s((next_due_ms - AHEAD_MS) * 1000)

    def _look_ahead(self, next_due_ms: int) -> bool:
        """Let groups read the messages of a hot moment that is near; True while the next row is farther away."""
        now_ms = self._clock.now_ms()
        if next_due_ms > now_ms + LOOK_AHEAD_MS:
            return True
        if not 0 <= now_ms - self._looked_ms < LOOK_MS:
            self._looked_ms = now_ms
            for code, runs in self._wheel.runs_below(now_ms + LOOK_AHEAD_MS + LOOK_MS):
                self._groups[code].reader.look_ahead(runs)
        return False
