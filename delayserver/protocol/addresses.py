"""Addresses of clients, for the bounds of what one of them may have."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
