"""Turns of the connections at the event loop: small requests begin at once, the rest in slices, one per iteration.

A connection begins its requests in the step that reads them, while that step has time left (`step_left_us`). Its other
requests wait for a turn, and so do the slices of requests that name many items. The connection that used the least time
lately goes first. So a small request of another client waits for one slice, however much large work there is.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from delayserver.runtime.clock import Clock
from delayserver.runtime.fair_shares import Account, FairShares, Ticket
from delayserver.runtime.turns import Turns

# The time for requests in one step, for all connections together. Each may begin its first request regardless, until the
# step has taken STEP_US_MAX longer: a thousand connections with a dear request each must not be one step.
STEP_US = 2_000
STEP_US_MAX = 20_000
# The time for requests that one connection begins in a turn.
TURN_US = 1_000
# The least cost of a request, and of a request that becomes a task of its own, whose work comes later.
REQUEST_US = 10
TASK_US = 50
# A request that took longer could not be sliced. The connection's next request waits for a turn. All turns pause as
# long as the request took, up to the bound, so such requests get at most half of the event loop.
LONG_US = 10_000
PAUSE_US_MAX = 100_000
# A slice of a request ends after this time or this many items. A due message takes some twenty event-loop iterations to
# its consumer, and each of them may run one slice.
SLICE_US = 300
SLICE_ITEMS = 128
# The clock is read after this many items, so a request with fewer is never sliced.
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
        # The time left for requests in the present step.
        self.step_left_us = STEP_US
        # Turns given so far.
        self.taken = 0

    def begin_step(self) -> None:
        """A step of the hub begins: give it its time."""
        self.step_left_us = STEP_US

    def now_us(self) -> int:
        """The time for measuring a request."""
        return self._clock.monotonic_us()

    def has_passed(self, deadline_ms: int) -> bool:
        """Whether a time of the wall clock has come."""
        return self._clock.now_ms() >= deadline_ms

    def spend(self, account: Account, begun_us: int, least_us: int) -> bool:
        """Charge a request that began at `begun_us` and is done or goes on in a task. True if it took LONG_US."""
        now_us = self._clock.monotonic_us()
        cost_us = max(now_us - begun_us, least_us)
        self.step_left_us -= cost_us
        self.shares.charge(account, cost_us, now_us)
        if cost_us < LONG_US:
            return False
        self._pause_us = min(cost_us, PAUSE_US_MAX)
        return True

    def join(self, account: Account, begin: Callable[[], None]) -> Ticket:
        """Put work in line. `begin` is called when it is the connection's turn."""
        ticket = self.shares.join(account, begin)
        self._came.set()
        return ticket

    async def take(self, account: Account, items: int) -> None:
        """Charge a slice of `items` items to the connection, then wait until it is its turn."""
        self.shares.charge(account, items * ITEM_US, self._clock.monotonic_us())
        begun = trio.Event()
        ticket = self.join(account, begun.set)
        try:
            await begun.wait()
        finally:
            self.shares.leave(ticket)

    async def run(self) -> None:
        """Give turns until cancelled, one in an event-loop iteration, in line with other large steps."""
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
    """The work of one request, in slices. A small request is shorter than a slice and never waits."""

    __slots__ = ("_account", "_begun_us", "_items", "_look", "_turns")

    def __init__(self, turns: FairTurns, account: Account) -> None:
        self._turns = turns
        self._account = account
        self._begun_us = turns.now_us()
        self._items = 0
        self._look = LOOK_ITEMS

    async def items(self, count: int = 1) -> None:
        """To be called before the work on `count` items. At the end of a slice it waits for the connection's turn."""
        self._items += count
        if self._items > self._look:
            self._look = self._items + LOOK_ITEMS
            if self._items > SLICE_ITEMS or self._turns.now_us() - self._begun_us > SLICE_US:
                done, self._items, self._look = self._items, 0, LOOK_ITEMS
                await self._turns.take(self._account, done)
                self._begun_us = self._turns.now_us()
