"""The addresses of a server: what the caller may give, which one a client dials next, and the error if none answers.

Several addresses name the same server, or servers of which any will do. No I/O but a look at the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from delayserver.client.calls.core import DEFAULT_ADDRESS, parse_address
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    NotPrimary,
    NotReady,
    SharedLogUnavailable,
    ShuttingDown,
)

HostAndPort: TypeAlias = tuple[str, int]

Given: TypeAlias = str | Sequence[str] | None
"""``"host:port"``, several with commas between, a list of them, or None for the variable `VARIABLE`."""

VARIABLE: Final = "DELAYSERVER_SERVER"
"""This variable of the environment names the server of a client that is given none."""

NAME_AGAIN_MS: Final = 500
"""A name that cannot be resolved may be there a moment later, for example that of a container which starts again."""

PASSED_OVER: Final = 16
"""A standby names the primary until another member takes over. If that one just did not answer, the client does not go there
for so many answers: two seconds or so."""


def addresses_of(given: Given) -> tuple[str, ...]:
    """The addresses as texts, at least one. Raises ValueError if there is none, or one has an invalid port."""
    if given is None:
        given = os.environ.get(VARIABLE, "").strip() or DEFAULT_ADDRESS
    texts = given.split(",") if isinstance(given, str) else given
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise ValueError(f"{given!r} has no address: write HOST:PORT, or several with commas between")
    for address in addresses:
        parse_address(address)
    return addresses


class Addresses:
    """Which of its addresses a client dials. It stays with the one that worked, and goes on to the next after a failure. It
    goes to the primary of a cluster, also where that is none of the given addresses.
    """

    def __init__(self, given: Given) -> None:
        self.given = addresses_of(given)
        self._places = tuple(parse_address(address) for address in self.given)
        self._current = self._places[0]
        # The place that failed last, and how many answers that name it are not followed.
        self._failed: HostAndPort | None = None
        self._passed_over = 0

    def renew(self, given: Given) -> None:
        """The server has these addresses from now on. It stays with the current one."""
        self.given = addresses_of(given)
        self._places = tuple(parse_address(address) for address in self.given)

    def also(self, addresses: Sequence[str]) -> None:
        """These answer as well as the given ones, and are tried behind them. They replace those of the call before."""
        places = [parse_address(address) for address in (*self.given, *addresses)]
        self._places = tuple(dict.fromkeys(places))

    @property
    def current(self) -> HostAndPort:
        """The address that worked last. Before the first connection it is the first one."""
        return self._current

    @property
    def current_text(self) -> str:
        """`current` as ``host:port``."""
        return text_of(*self.current)

    def in_turn(self) -> tuple[HostAndPort, ...]:
        """All addresses once, the current one first."""
        if self._current not in self._places:
            return self._current, *self._places
        place = self._places.index(self._current)
        return self._places[place:] + self._places[:place]

    def begin_at(self, place: HostAndPort) -> None:
        """Begins at this address from now on, because a connection was opened to it."""
        self._current = place

    def useless(self, place: HostAndPort) -> None:
        """No server answered at this address: the next attempt begins at the next one."""
        self._failed, self._passed_over = place, PASSED_OVER
        self._current = self._behind(place)

    def leave(self, error: DelayServerError) -> bool:
        """The server at the current address answered with this error. Returns whether the next attempt shall begin with a
        new connection, because another server may serve it.
        """
        if isinstance(error, NotPrimary) and (primary := _place_named(error.primary)) is not None:
            if primary == self._failed and self._passed_over:
                self._passed_over -= 1
                return False
            self._current = primary
            return True
        if not isinstance(error, NotPrimary | NotReady | SharedLogUnavailable | ShuttingDown):
            return False
        before, self._current = self._current, self._behind(self._current)
        return self._current != before

    def _behind(self, place: HostAndPort) -> HostAndPort:
        if place not in self._places:
            return self._places[0]
        return self._places[(self._places.index(place) + 1) % len(self._places)]


def _place_named(address: str) -> HostAndPort | None:
    try:
        return parse_address(address) if address else None
    except ValueError:
        return None


def text_of(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_connect(place: HostAndPort, failure: OSError | UnicodeError | ValueError) -> ConnectionLost:
    """The error of one address."""
    unresolved = isinstance(failure, socket.gaierror | UnicodeError)
    reason = (failure.strerror if isinstance(failure, OSError) else None) or str(failure) or type(failure).__name__
    return ConnectionLost(
        f"cannot connect to {text_of(*place)}: {reason}", retry_after_ms=NAME_AGAIN_MS if unresolved else None
    )


def none_connects(failures: Sequence[ConnectionLost]) -> ConnectionLost:
    """The error of all addresses together, with advice."""
    reasons = "; ".join(failure.message for failure in failures)
    return ConnectionLost(
        f"no server answers: {reasons}. Start one with `delayserver serve`, or name another: "
        f'--server HOST:PORT, {VARIABLE}, or Client("HOST:PORT")',
        retry_after_ms=max((failure.retry_after_ms or 0 for failure in failures), default=0) or None,
    )
