"""TCP keep-alive. By it each end of an idle connection learns that the machine of the other end is gone.

The protocol has no heartbeat of its own, and no limit of idle time. This module sets socket options; it does not read or
write.
"""

from __future__ import annotations

import socket
from typing import Final

IDLE_S: Final = 30
"""The kernel probes a connection that was idle for so long. Routers forget idle connections after a minute or more."""

INTERVAL_S: Final = 10
PROBES: Final = 3


def keep_alive(connected: socket.socket) -> None:
    """Let the kernel probe a silent peer. If the peer does not answer for 60 s, the connection breaks. A system without
    these options keeps its own times.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", INTERVAL_S), ("TCP_KEEPCNT", PROBES)):
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
