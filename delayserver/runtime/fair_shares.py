"""Which connection's large work goes next: that of the connection which used the least event-loop time lately.

Synchronous; time is an argument. Each connection has an `Account`. What it used counts half after `HALF_LIFE_US`, so a
connection that was busy an hour ago is as good as a new one. Among equals the earlier ticket goes first.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

# Long enough that a burst of requests is still known when its next one comes, short enough to forgive.
HALF_LIFE_US = 1_000_000


class Account:
    """The event-loop time that one connection used lately. Only `FairShares` changes it."""

    __slots__ = ("level",)

    def __init__(self) -> None:
        # log2(used) + time / half-life. All accounts decay alike, so levels compare in the same way at any time.
        self.level = -math.inf

    def rise(self, level: float) -> None:
        """The connection used some time."""
        self.level = level


class Ticket:
    """One piece of work that waits for its turn."""

    __slots__ = ("account", "begin", "waiting")

    def __init__(self, account: Account, begin: Callable[[], None]) -> None:
        self.account = account
        self.begin = begin
        self.waiting = True

    def end(self) -> None:
        """It waits no more."""
        self.waiting = False


class FairShares:
    """The tickets of all connections, in the order of what their connections used."""

    def __init__(self) -> None:
        # The level may have grown since its entry was made. It never falls, so the entry then goes back in.
        self._heap: list[tuple[float, int, Ticket]] = []
        self._numbers = itertools.count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def charge(self, account: Account, cost_us: int, now_us: int) -> None:
        """The connection used so much of the event loop."""
        if cost_us > 0:
            account.rise(now_us / HALF_LIFE_US + math.log2(self.used_us(account, now_us) + cost_us))

    def used_us(self, account: Account, now_us: int) -> float:
        """What the connection used, decayed."""
        # Bounded: the caller's clock never steps back, but a reading may be older than the last one charged.
        return math.exp2(min(account.level - now_us / HALF_LIFE_US, 62.0))

    def join(self, account: Account, begin: Callable[[], None]) -> Ticket:
        """Wait for a turn, in which `begin` is to be called."""
        ticket = Ticket(account, begin)
        heapq.heappush(self._heap, (account.level, next(self._numbers), ticket))
        self._waiting += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no more; idempotent. Entries that are left are dropped when they are a half of all."""
        if ticket.waiting:
            ticket.end()
            self._waiting -= 1
            if len(self._heap) > 2 * self._waiting + 16:
                self._heap = [entry for entry in self._heap if entry[2].waiting]
                heapq.heapify(self._heap)

    def next(self) -> Ticket | None:
        """Take out the ticket whose turn it is."""
        heap = self._heap
        while heap:
            level, number, ticket = heap[0]
            if not ticket.waiting:
                heapq.heappop(heap)
            elif level < ticket.account.level:
                heapq.heapreplace(heap, (ticket.account.level, number, ticket))
            else:
                heapq.heappop(heap)
                ticket.end()
                self._waiting -= 1
                return ticket
        return None

    def check_invariants(self) -> None:
        """Each waiting ticket has one entry, at or below the level of its account. For tests."""
        waiting = [entry[2] for entry in self._heap if entry[2].waiting]
        assert len(waiting) == len(set(map(id, waiting))) == self._waiting
        assert all(level <= ticket.account.level for level, _, ticket in self._heap)
        assert len(self._heap) <= 2 * self._waiting + 17
