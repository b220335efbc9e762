"""Connections that have not shown yet that a client is behind them.

On a server that asks for tokens a connection is new until it has rights. Elsewhere it is new until its first request.
There are few places for them. When these are taken, the oldest of the client with most of them gives way to the next one.
So the other places are there for clients.
"""

from __future__ import annotations

from collections.abc import Callable

from delayserver.protocol.errors import DelayServerError, FrameTimeout, TooManyConnections
from delayserver.state.connections.parties import Party


class Newcomer:
    """A new connection. `end` closes it, with the reason. `silent`: no whole request has come."""

    __slots__ = ("began_us", "end", "party", "silent")

    def __init__(self, party: Party, began_us: int, end: Callable[[DelayServerError], None]) -> None:
        self.party = party
        self.began_us = began_us
        self.end = end
        self.silent = True

    def speak(self) -> None:
        """A whole request has come."""
        self.silent = False


class Newcomers:
    """All new connections, the oldest first. Writers: the connections."""

    def __init__(self) -> None:
        self._all: dict[int, Newcomer] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, number: int, newcomer: Newcomer) -> None:
        """A connection was accepted."""
        self._all[number] = newcomer

    def spoke(self, number: int) -> None:
        """A whole request has come, which has given no rights."""
        newcomer = self._all.get(number)
        if newcomer is not None:
            newcomer.speak()

    def remove(self, number: int) -> None:
        """The connection has ended, or is new no more; idempotent."""
        self._all.pop(number, None)

    def make_room(self, places: int) -> None:
        """Ends connections until one more has a place."""
        while len(self._all) >= max(places, 1):
            number = self._next_to_go()
            self._all.pop(number).end(
                TooManyConnections(
                    "this connection has shown no token and no request yet, and a new one took its place",
                    retry_after_ms=1000,
                )
            )

    def oldest_silent_us(self) -> int | None:
        """When the oldest of those came of which no whole request has come; None: there is none."""
        return next((each.began_us for each in self._all.values() if each.silent), None)

    def end_silent(self, before_us: int) -> None:
        """Ends those that came up to a time, and of which no whole request has come."""
        late = [number for number, each in self._all.items() if each.silent and each.began_us <= before_us]
        for number in late:
            self._all.pop(number).end(FrameTimeout("no whole request came in time on this new connection"))

    def _next_to_go(self) -> int:
        """The oldest connection of the client with most of them."""
        counts: dict[Party, int] = {}
        for each in self._all.values():
            counts[each.party] = counts.get(each.party, 0) + 1
        most = max(counts.values())
        return next(number for number, each in self._all.items() if counts[each.party] == most)
