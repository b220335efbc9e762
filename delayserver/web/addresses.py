"""Addresses of clients, for the bound of connections that one of them may have."""

from __future__ import annotations

import ipaddress


def counted_address(host: str) -> str:
    """The address under which connections are counted together: an IPv4 address, or the first 64 bits of an IPv6 one, since
    one machine may have all addresses behind them. Empty for loopback, whose connections have no bound of their own.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped
        if inner is None:
            return "" if address.is_loopback else f"{int(address) >> 64:016x}::/64"
        address = inner
    return "" if address.is_loopback else str(address)
