"""A port that leads to the port of a server, as `ssh -L` makes it, and that a test can cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def _pour(source: socket.socket, target: socket.socket, passed: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            passed += data
            target.sendall(data)
    _shut(source, target)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class MappedPort:
    """``address``: where clients connect. ``answers``: all bytes of the server, those of each connection together."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self._listener = listener
        self._target = target
        self._opened: list[socket.socket] = []
        self.answers: list[bytearray] = []
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"

    def accept(self) -> None:
        """Lead connections to the target until the listener ends."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._opened.extend((near, far))
                self.answers.append(bytearray())
                for way in ((near, far, bytearray()), (far, near, self.answers[-1])):
                    threading.Thread(target=_pour, args=way, daemon=True).start()

    def cut(self) -> None:
        """End all connections. There may be new ones."""
        _shut(*self._opened)

    def close(self) -> None:
        """End everything."""
        _shut(self._listener)
        for each in self._opened:
            each.close()


@contextmanager
def mapped(host: str, port: int) -> Iterator[MappedPort]:
    """Another port that leads to this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = MappedPort(listener, (host, port))
        threading.Thread(target=here.accept, daemon=True).start()
        yield here
        here.close()
