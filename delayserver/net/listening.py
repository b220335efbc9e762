"""Binds the addresses that a server listens on: names, addresses of both families, and all addresses of the machine."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

BACKLOG: Final = 1024

ANY: Final = "*"
"""All addresses of the machine, of both families where it has IPv6."""

_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"
_MISSING: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class AddressError(OSError):
    """The server cannot listen on one of its addresses. `host` is the one."""

    def __init__(self, error: OSError, host: str) -> None:
        super().__init__(error.errno, error.strerror)
        self.host = host


def listening_sockets(hosts: Sequence[str], port: int) -> list[list[socket.socket]]:
    """The listening sockets of each host. With port 0 all get the port that the first one finds. Raises `AddressError`.

    `::` takes IPv4 too, unless `0.0.0.0` is among the hosts. A name stands for all its addresses that this machine has.
    """
    found: list[list[socket.socket]] = []
    bound: set[tuple[str, int]] = set()
    with ExitStack() as opened:
        for host in hosts:
            try:
                sockets = _sockets_of(host, port, bound, both=_ANY_IPV4 not in hosts)
            except (OSError, UnicodeError) as error:
                raise AddressError(error if isinstance(error, OSError) else OSError(-1, str(error)), host) from error
            for each in sockets:
                opened.callback(each.close)
                port = each.getsockname()[1]
            found.append(sockets)
        opened.pop_all()
    return found


def _sockets_of(host: str, port: int, bound: set[tuple[str, int]], *, both: bool) -> list[socket.socket]:
    """Binds what is not `bound` yet. Raises OSError, UnicodeError."""
    host = host.strip().removeprefix("[").removesuffix("]")
    if host == ANY:
        try:
            return [_bind(socket.AF_INET6, (_ANY_IPV6, port), both=both)]
        except OSError as error:
            if error.errno not in _MISSING:
                raise
            host = _ANY_IPV4
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        if (str(place[0]), int(place[-1] if family == socket.AF_INET6 else 0)) in bound:
            continue
        try:
            sockets.append(_bind(family, (place[0], port, *place[2:]), both=both and host == _ANY_IPV6))
        except OSError as error:
            if error.errno not in _MISSING:
                _close(sockets)
                raise
            missing = error
            continue
        bound.add((str(place[0]), int(place[-1] if family == socket.AF_INET6 else 0)))
        port = sockets[-1].getsockname()[1]
    if not sockets and missing is not None:
        raise missing
    return sockets


def _bind(family: int, place: tuple[object, ...], *, both: bool) -> socket.socket:
    return socket.create_server(
        place,  # with the scope of a link-local address
        family=family,
        backlog=BACKLOG,
        dualstack_ipv6=both and family == socket.AF_INET6,
    )


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


def is_wildcard(host: str) -> bool:
    """Whether a bound address stands for all addresses of the machine."""
    return host in (_ANY_IPV4, _ANY_IPV6)


def plain_host(host: str) -> str:
    """The host of a socket's name. A client that came by IPv4 to a socket for both families has its IPv4 address."""
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host


def place_of(host: str, port: int) -> str:
    """`host:port` as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
