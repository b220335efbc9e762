"""Addresses of clients, for the bound of connections that one of them may have."""

from __future__ import annotations

import ipaddress
from typing import Final

from delayserver.protocol import addresses

_LOOPBACK: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def counted_address(host: str) -> str:
    """The address under which connections are counted together. Empty for loopback, whose connections have no bound of their
    own."""
    return addresses.counted_address(host, _LOOPBACK)
