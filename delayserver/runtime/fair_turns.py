"""Turns of the connections at the event loop: small requests at once, the rest in slices, one in a pass of the event loop.

A connection begins its requests in the step that reads them, while that step has time left (`step_left_us`). What is left
over waits for a turn, and so do the slices of requests that name many items. The connection that used least lately goes
first. So a small request of another client waits for one slice, however much large work there is.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from delayserver.runtime.clock import Clock
from delayserver.runtime.fair_shares import Account, FairShares, Ticket
from delayserver.runtime.turns import Turns

# What all connections together may begin in one step beyond the first request of each.
STEP_US = 2_000
# And what one connection begins in a turn.
TURN_US = 1_000
# A request is counted at this at the least, and one that becomes a task of its own at that: its work comes later.
REQUEST_US = 10
TASK_US = 50
# A request that took longer could not be sliced. The connection's next one waits for a turn, and all turns pause as long
# as it took, up to the bound: requests like it get half of the event loop at the most.
LONG_US = 10_000
PAUSE_US_MAX = 100_000
# A slice of a request ends after so much time, or so many items. A message that is due now takes some twenty passes of the
# event loop to its consumer, and each of them takes one slice.
SLICE_US = 300
SLICE_ITEMS = 128
# The clock is looked at after so many items, so a request with fewer is never cut.
LOOK_ITEMS = 16
ITEM_US = 5


class FairTurns:
    """Gives turns to the work of connections. One for a server."""

    def __init__(self, turns: Turns, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self.shares = FairShares()
        self._came = trio.Event()
        self._pause_us = 0
        # What may still be begun in the present step.
        self.step_left_us = STEP_US
        # Turns given so far.
        self.taken = 0

    def begin_step(self) -> None:
        """The hub begins to read what has come."""
        self.step_left_us = STEP_US

    def now_us(self) -> int:
        """To measure what a request takes."""
        return self._clock.monotonic_us()

    def spend(self, account: Account, begun_us: int, least_us: int) -> bool:
        """A request of a connection was begun at that time and is done, or runs on in a task. True if it took long."""
        now_us = self._clock.monotonic_us()
        cost_us = max(now_us - begun_us, least_us)
        self.step_left_us -= cost_us
        self.shares.charge(account, cost_us, now_us)
        if cost_us < LONG_US:
            return False
        self._pause_us = min(cost_us, PAUSE_US_MAX)
        return True

    def join(self, account: Account, begin: Callable[[], None]) -> Ticket:
        """Have `begin` called when it is the connection's turn."""
        ticket = self.shares.join(account, begin)
        self._came.set()
        return ticket

    async def take(self, account: Account, items: int) -> None:
        """Return when it is the connection's turn for a slice of so many items."""
        self.shares.charge(account, items * ITEM_US, self._clock.monotonic_us())
        begun = trio.Event()
        ticket = self.join(account, begun.set)
        try:
            await begun.wait()
        finally:
            self.shares.leave(ticket)

    async def run(self) -> None:
        """Give turns until cancelled, one in a pass of the event loop, in line with other large steps."""
        while True:
            if not len(self.shares):
                self._came = trio.Event()
                await self._came.wait()
            if self._pause_us:
                pause_us, self._pause_us = self._pause_us, 0
                await self._clock.sleep_ms(pause_us / 1000)
            await self._turns.take()
            ticket = self.shares.next()
            if ticket is not None:
                self.taken += 1
                self.step_left_us = TURN_US
                ticket.begin()


class Work:
    """The work of one request, in slices. A small request is a part of a slice and never waits."""

    __slots__ = ("_account", "_begun_us", "_items", "_look", "_turns")

    def __init__(self, turns: FairTurns, account: Account) -> None:
        self._turns = turns
        self._account = account
        self._begun_us = turns.now_us()
        self._items = 0
        self._look = LOOK_ITEMS

    async def items(self, count: int = 1) -> None:
        """Before so many items: at the end of a slice the others go first."""
        self._items += count
        if self._items > self._look:
            self._look = self._items + LOOK_ITEMS
            if self._items > SLICE_ITEMS or self._turns.now_us() - self._begun_us > SLICE_US:
                done, self._items, self._look = self._items, 0, LOOK_ITEMS
                await self._turns.take(self._account, done)
                self._begun_us = self._turns.now_us()
