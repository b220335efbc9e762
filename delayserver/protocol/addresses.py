"""Addresses: HOST:PORT as people write it, and the address by which connections of a client are counted."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

PORT_MAX: Final = 65_535
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[V6]:PORT`` as host and port. Raises ValueError."""
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 10 else 0
    if not separator or not host or not 0 < number <= PORT_MAX:
        raise ValueError(f"{repr(text)[:64]} is no address: write HOST:PORT, such as 127.0.0.1:20801 or [::1]:20801")
    return host, number


def host_of(peer: str) -> str:
    """The host of HOST:PORT, without brackets."""
    return peer.rpartition(":")[0].strip("[]")


def counted_address(host: str, shared: Iterable[Network]) -> str:
    """The address under which connections are counted together: an IPv4 address, or the first 64 bits of an IPv6 one, since
    one machine may have all addresses behind them. Empty for an address in one of the `shared` networks, where many clients
    have one address, and for a name that is no address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = inner or address
    if any(address in network for network in shared):
        return ""
    return f"{int(address) >> 64:016x}::/64" if isinstance(address, ipaddress.IPv6Address) else str(address)
