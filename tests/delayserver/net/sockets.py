"""The kernel's socket behind an end of a connection."""

from __future__ import annotations

import socket

from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.net.transport import SocketTransport


def socket_of(end: SocketTransport | SocketConnection) -> socket.socket:
    """Options of the kernel, such as the time after which it gives a silent peer up, show nowhere else in a test's time."""
    return end._socket
