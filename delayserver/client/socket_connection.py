"""One blocking connection: a request out, its reply in, within a time. Any failure closes it;
nothing is retried here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import Final

from delayserver.client.core import ReplyStream
from delayserver.protocol.errors import ConnectionLost, RequestTimedOut
from delayserver.protocol.frames import Reply

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_LARGE: Final = 1024 * 1024  # while a large reply is under way: fewer system calls
# A connection that answered this short a time ago is not asked whether it is still there.
_FRESH_S: Final = 0.01
_timeval = struct.Struct("@ll").pack


class SocketConnection:
    """A connected socket with its reply stream. Raises `ConnectionLost` if it cannot be opened."""

    def __init__(self, host_and_port: tuple[str, int], connect_timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection(host_and_port, connect_timeout_s)
        # A host such as `a..b` is refused before it is looked up.
        except (OSError, UnicodeError) as exc:
            raise ConnectionLost(f"cannot connect to {host_and_port[0]}:{host_and_port[1]}: {exc}") from exc
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel keeps the time: a timeout of Python's costs a further system call for each send and receive.
        self._socket.settimeout(None)
        self._timeout_s = 0.0
        self._answered_s = 0.0
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._replies = ReplyStream()
        self._process = os.getpid()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process this one was forked from, whose replies it would take."""
        return self._closed or self._process != os.getpid()

    def close(self) -> None:
        """Close; may be called again."""
        self._closed = True
        self._socket.close()

    def quiet(self) -> bool:
        """Whether nothing has arrived while nothing was asked; otherwise the server has closed or is confused."""
        return time.monotonic() - self._answered_s < _FRESH_S or not self._poll.poll(0)

    def exchange(self, request_id: int, frame: bytes, timeout_s: float) -> Reply:
        """Send a request's frame and wait for its reply. Raises `ConnectionLost`,
        `RequestTimedOut` or a protocol error, and is closed then.
        """
        deadline_s = time.monotonic() + timeout_s
        size = _RECEIVE_BYTES
        try:
            if timeout_s != self._timeout_s:
                self._set_timeout(timeout_s)
            sent = self._socket.send(frame)
            while sent < len(frame):
                self._set_timeout(deadline_s - time.monotonic())
                sent += self._socket.send(memoryview(frame)[sent:])
            while True:
                for reply in self._replies.feed(self._socket.recv(size)):
                    if reply.id == request_id:
                        self._answered_s = time.monotonic()
                        if self._replies.failure is not None:
                            self.close()
                        return reply
                if self._replies.failure is not None:
                    raise self._replies.failure
                size = _RECEIVE_BYTES_LARGE if self._replies.decoder.buffered_bytes else _RECEIVE_BYTES
                self._set_timeout(deadline_s - time.monotonic())
        except (TimeoutError, BlockingIOError) as exc:
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
        if timeout_s <= 0:
            raise TimeoutError
        seconds, rest = divmod(timeout_s, 1.0)
        value = _timeval(int(seconds), max(int(rest * 1_000_000), 1 if seconds < 1 else 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        self._timeout_s = timeout_s
