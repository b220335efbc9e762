"""A blocking connection over TLS."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.protocol.errors import ConnectionLost
from delayserver.protocol.frames import ReplyFrame

_RECORD_BYTES: Final = 16 * 1024  # A record has at most as many. Encrypted bytes are kept until the kernel takes them.


class TlsConnection(SocketConnection):
    """The same as `SocketConnection`, encrypted. The certificate must name the host of the address."""

    def __init__(
        self,
        host_and_port: tuple[str, int],
        connect_timeout_s: float,
        noticed: Callable[[ReplyFrame], None],
        context: ssl.SSLContext,
    ) -> None:
        self._context = context
        self._handshake_timeout_s = connect_timeout_s
        super().__init__(host_and_port, connect_timeout_s, noticed)

    def _secure(self, host: str) -> None:
        plain = self._socket
        plain.settimeout(self._handshake_timeout_s)
        try:
            self._tls = self._context.wrap_socket(plain, server_hostname=host)
        except (OSError, ValueError) as exc:
            plain.close()
            raise ConnectionLost(f"cannot encrypt the connection to {host}: {exc}") from exc
        self._socket = self._tls

    def shut_down(self) -> None:
        self._closed = True
        # In a forked process a shutdown would also end the exchanges of the parent.
        if self._process == os.getpid():
            with suppress(OSError):
                # Not `SSLSocket.shutdown`, which takes the session away from an exchange in another thread.
                socket.socket.shutdown(self._tls, socket.SHUT_RDWR)

    def _wait_readable(self, timeout_s: float) -> bool:
        return self._tls.pending() > 0 or super()._wait_readable(timeout_s)

    def _receive(self, size: int) -> bytes | None:
        try:
            return self._tls.recv(size)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLEOFError:
            return b""

    def _send(self, data: bytes | memoryview) -> int:
        sent = 0
        view = memoryview(data)
        try:
            while sent < len(view):
                sent += self._tls.send(view[sent : sent + _RECORD_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return sent
