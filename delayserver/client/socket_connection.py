"""One blocking connection: a request out, its reply in, within a time. Any failure closes it;
nothing is retried here.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from delayserver.client.core import ReplyStream
from delayserver.protocol.errors import ConnectionLost, RequestTimedOut
from delayserver.protocol.frames import Reply

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_LARGE: Final = 1024 * 1024  # while a large reply is under way: fewer system calls


class SocketConnection:
    """A connected socket with its reply stream. Raises `ConnectionLost` if it cannot be opened."""

    def __init__(self, host_and_port: tuple[str, int], connect_timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection(host_and_port, connect_timeout_s)
        except OSError as exc:
            raise ConnectionLost(f"cannot connect to {host_and_port[0]}:{host_and_port[1]}: {exc}") from exc
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_s = connect_timeout_s
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._replies = ReplyStream()
        self.closed = False

    def close(self) -> None:
        """Close; may be called again."""
        self.closed = True
        self._socket.close()

    def quiet(self) -> bool:
        """Whether nothing has arrived while nothing was asked; otherwise the server has closed or is confused."""
        return not self._poll.poll(0)

    def exchange(self, request_id: int, frame: bytes, timeout_s: float) -> Reply:
        """Send a request's frame and wait for its reply. Raises `ConnectionLost`,
        `RequestTimedOut` or a protocol error, and is closed then.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            self._set_timeout(timeout_s)
            self._socket.sendall(frame)
            while True:
                size = _RECEIVE_BYTES_LARGE if self._replies.decoder.buffered_bytes else _RECEIVE_BYTES
                for reply in self._replies.feed(self._socket.recv(size)):
                    if reply.id == request_id:
                        return reply
                self._set_timeout(max(deadline_s - time.monotonic(), 0.001))
        except TimeoutError as exc:
            self.close()
            raise RequestTimedOut(f"no reply within {timeout_s:g} s; the result is unknown") from exc
        except OSError as exc:
            self.close()
            raise ConnectionLost(f"the connection broke: {exc}") from exc
        # Also when interrupted: a reply that comes later must not meet the next request.
        except BaseException:
            self.close()
            raise

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
