"""The order of the connections' large work: the connection that used the least event-loop time lately goes first.

Synchronous; time is an argument. Each connection has an `Account`. The time that it used counts half after
`HALF_LIFE_US`, so a connection that was busy an hour ago is equal to a new one. Among equals the earlier ticket goes
first.

An account may stand under another one, that of a client with many connections. The client that used the least goes first,
then the connection of this client that used the least. So many connections get no more than one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

# Long enough that the use of a burst still counts at its next request, and short enough to be forgotten soon.
HALF_LIFE_US = 1_000_000


class Account:
    """The event-loop time that one connection used lately. Only `FairShares` changes its level."""

    __slots__ = ("level", "under")

    def __init__(self, under: Account | None = None) -> None:
        """`under`: the account of all connections of the client, which pays too."""
        # log2(used) + time / half-life. All accounts decay alike, so the order of two levels never depends on the time.
        self.level = -math.inf
        self.under = under

    @property
    def order(self) -> tuple[float, float]:
        """What decides who goes first: the level of the client, then that of the connection."""
        return self.level if self.under is None else self.under.level, self.level

    def move(self, under: Account) -> None:
        """From now on this account pays too, and not the one before."""
        self.under = under

    def charge(self, cost_us: int, now: float) -> None:
        """The connection used some time, and so did its client. `now`: in half-lives."""
        # The bound avoids an overflow: a reading of the clock may be older than the last one charged.
        left = self.level - now
        self.level = now + math.log2(math.exp2(left if left < 62.0 else 62.0) + cost_us)
        if self.under is not None:
            self.under.charge(cost_us, now)


class Ticket:
    """One piece of work that waits for a turn."""

    __slots__ = ("account", "begin", "waiting")

    def __init__(self, account: Account, begin: Callable[[], None]) -> None:
        self.account = account
        self.begin = begin
        self.waiting = True

    def end(self) -> None:
        """It waits no more."""
        self.waiting = False


class FairShares:
    """The tickets of all connections, ordered by the event-loop time that their connections used."""

    def __init__(self) -> None:
        # The levels in an entry may be others by now: levels grow, and an account may move. `next` then corrects them.
        self._heap: list[tuple[tuple[float, float], int, Ticket]] = []
        self._numbers = itertools.count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def charge(self, account: Account, cost_us: int, now_us: int) -> None:
        """Add `cost_us` to the event-loop time that the connection used, and its client."""
        if cost_us > 0:
            account.charge(cost_us, now_us / HALF_LIFE_US)

    def used_us(self, account: Account, now_us: int) -> float:
        """The event-loop time in µs that the connection used, decayed."""
        # The bound avoids an overflow: a reading of the clock may be older than the last one charged.
        return math.exp2(min(account.level - now_us / HALF_LIFE_US, 62.0))

    def join(self, account: Account, begin: Callable[[], None]) -> Ticket:
        """Put a ticket in line. The owner of the turns calls `begin` when it is its turn."""
        ticket = Ticket(account, begin)
        heapq.heappush(self._heap, (account.order, next(self._numbers), ticket))
        self._waiting += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket out of line; idempotent. Its entry is dropped when half of all entries have left."""
        if ticket.waiting:
            ticket.end()
            self._waiting -= 1
            if len(self._heap) > 2 * self._waiting + 16:
                self._heap = [entry for entry in self._heap if entry[2].waiting]
                heapq.heapify(self._heap)

    def next(self) -> Ticket | None:
        """Take out and return the ticket whose turn it is; None if none waits."""
        heap = self._heap
        while heap:
            order, number, ticket = heap[0]
            if not ticket.waiting:
                heapq.heappop(heap)
            elif order < ticket.account.order:
                heapq.heapreplace(heap, (ticket.account.order, number, ticket))
            else:
                heapq.heappop(heap)
                ticket.end()
                self._waiting -= 1
                return ticket
        return None

    def check_invariants(self) -> None:
        """Each waiting ticket has one entry, and no entry is above the levels of its account. For tests: of accounts that
        do not move while they wait."""
        waiting = [entry[2] for entry in self._heap if entry[2].waiting]
        assert len(waiting) == len(set(map(id, waiting))) == self._waiting
        assert all(order <= ticket.account.order for order, _, ticket in self._heap)
        assert len(self._heap) <= 2 * self._waiting + 17
