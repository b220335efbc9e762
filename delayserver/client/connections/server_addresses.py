"""The addresses of a server: what the caller may give, which one a client dials next, and the error if none answers.

Several addresses name the same server, or servers of which any will do. No I/O but a look at the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from delayserver.client.calls.core import DEFAULT_ADDRESS, parse_address
from delayserver.protocol.errors import ConnectionLost

HostAndPort: TypeAlias = tuple[str, int]

Given: TypeAlias = str | Sequence[str] | None
"""``"host:port"``, several with commas between, a list of them, or None for the variable `VARIABLE`."""

VARIABLE: Final = "DELAYSERVER_SERVER"
"""This variable of the environment names the server of a client that is given none."""

NAME_AGAIN_MS: Final = 500
"""A name that cannot be resolved may be there a moment later, for example that of a container which starts again."""


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
    """Which of its addresses a client dials. It stays with the one that worked, and goes on to the next after a failure."""

    def __init__(self, given: Given) -> None:
        self.given = addresses_of(given)
        self._places = tuple(parse_address(address) for address in self.given)
        self._current = 0

    @property
    def current(self) -> HostAndPort:
        """The address that worked last. Before the first connection it is the first one."""
        return self._places[self._current]

    @property
    def current_text(self) -> str:
        """`current` as ``host:port``."""
        return text_of(*self.current)

    def in_turn(self) -> tuple[HostAndPort, ...]:
        """All addresses once, the current one first."""
        return self._places[self._current :] + self._places[: self._current]

    def begin_at(self, place: HostAndPort) -> None:
        """Begins at this address from now on, because a connection was opened to it."""
        self._current = self._places.index(place)

    def useless(self, place: HostAndPort) -> None:
        """A connection was opened to this address, and no server answered on it: the next attempt begins at the next one."""
        self._current = (self._places.index(place) + 1) % len(self._places)


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
