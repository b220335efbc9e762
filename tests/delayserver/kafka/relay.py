"""A relay of TCP connections in front of a server, which a test cuts."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

BLOCK_BYTES = 65_536


class Relay:
    """Passes connections on, in threads of its own, until it is cut. Then nothing listens at its address."""

    def __init__(self, address: str, port: int) -> None:
        """`address`: where it listens. `port`: that of the server, on loopback."""
        host, _, listens = address.rpartition(":")
        self._port = port
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server((host, int(listens)))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Break all connections, and take no more."""
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    near.close()
                    continue
                self._sockets += near, far
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(BLOCK_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
