"""One blocking connection: sends a request and waits for its reply, for a limited time. Any failure closes it; the client
retries.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from delayserver.client.connections.exchanging import ExchangingConnection, remaining_s
from delayserver.client.connections.server_addresses import cannot_connect
from delayserver.protocol.frames import ReplyFrame
from delayserver.protocol.keepalive import keep_alive

_RECEIVE_BYTES: Final = 64 * 1024
_RECEIVE_BYTES_LARGE: Final = 1024 * 1024  # For the rest of a large reply: fewer system calls.
# A connection that answered a request so short a time ago counts as alive without a poll.
_FRESH_S: Final = 0.01


class SocketConnection(ExchangingConnection):
    """A connected socket with its reply stream. Raises `ConnectionLost` if it cannot be opened."""

    def __init__(
        self, host_and_port: tuple[str, int], connect_timeout_s: float, noticed: Callable[[ReplyFrame], None]
    ) -> None:
        super().__init__(noticed)
        try:
            self._socket = socket.create_connection(host_and_port, connect_timeout_s)
        # Python refuses a host such as `a..b` before it looks it up.
        except (OSError, UnicodeError) as exc:
            raise cannot_connect(host_and_port, exc) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._socket)
        self._secure(host_and_port[0])
        # Polls before each receive keep the time. A timeout of the Python socket would also poll before each send. A timeout
        # of the kernel would start anew with every signal, because Python repeats an interrupted system call.
        self._socket.setblocking(False)
        self._exchanged_s = 0.0
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def _secure(self, host: str) -> None:
        """Agrees on a secret with the server, if the connection is encrypted. Raises `ConnectionLost`."""

    def usable(self, *, repeatable: bool) -> bool:
        """Whether a call may be sent over this connection. False if it is closed. False in a forked process, and after
        gevent has patched the program. For a call that is not repeatable, also False if the server has closed it.
        """
        if self._closed or not self._here:
            return False
        return repeatable or time.monotonic() - self._exchanged_s < _FRESH_S or self.read_ahead()

    def read_ahead(self) -> bool:
        return time.monotonic() - self._exchanged_s < _FRESH_S or super().read_ahead()

    def _read_now(self) -> bytes | None:
        return self._receive(_RECEIVE_BYTES) if self._wait_readable(0) else None

    def shut_down(self) -> None:
        """End the exchange in progress, which then closes the connection. The only method for other threads, and for a
        signal handler that interrupts an exchange.
        """
        self._closed = True
        # In a forked process a shutdown would also end the exchanges of the parent.
        if self._process == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close; may be called again."""
        self._closed = True
        self._socket.close()

    def _exchange(self, request_id: int, frame: bytes, timeout_s: float) -> ReplyFrame:
        left_s = timeout_s
        started_s = time.monotonic()
        deadline_s = started_s + timeout_s
        size = _RECEIVE_BYTES
        sent = self._send(frame)
        if sent < len(frame):
            self._half_sent = True
            self._send_rest(memoryview(frame)[sent:], deadline_s)
            self._half_sent = False
        while True:
            if not self._wait_readable(left_s):
                raise TimeoutError
            data = self._receive(size)
            for reply in self._replies.feed(data) if data is not None else ():
                if reply.id == request_id:
                    self._exchanged_s = started_s
                    return reply
            self._replies.check()
            size = _RECEIVE_BYTES_LARGE if self._replies.decoder.buffered_bytes else _RECEIVE_BYTES
            left_s = remaining_s(deadline_s)

    def _send_all(self, frame: bytes, deadline_s: float) -> None:
        try:
            sent = self._send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self._send_rest(memoryview(frame)[sent:], deadline_s)

    def _send_rest(self, unsent: memoryview, deadline_s: float) -> None:
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        while unsent:
            if not writable.poll(remaining_s(deadline_s) * 1000):
                raise TimeoutError
            unsent = unsent[self._send(unsent) :]

    def _wait_readable(self, timeout_s: float) -> bool:
        """Whether bytes, or the end, came within the time."""
        return bool(self._readable.poll(timeout_s * 1000))

    def _receive(self, size: int) -> bytes | None:
        """Bytes of the stream, empty at its end; None if what came is no byte of it."""
        return self._socket.recv(size)

    def _send(self, data: bytes | memoryview) -> int:
        """Sends what the kernel takes; returns how many bytes."""
        return self._socket.send(data)
