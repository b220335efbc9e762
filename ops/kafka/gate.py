"""A way to the nodes of Kafka that can be shut: what passes is held up then, as by a network that has failed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final, Self

from ops.kafka.nodes import Way

PIECE_BYTES: Final = 1 << 16


class Gate:
    """Passes on the connections of one member to so many nodes. Usable as a context manager.

    Shut, it keeps each connection and passes no byte, so neither side is told anything. When it opens, all goes on."""

    def __init__(self, way: Way, nodes: int = 1) -> None:
        """`way` tells clients the ports of this gate. From now on it listens there."""
        self._listeners = {
            socket.create_server(("127.0.0.1", way.told + place)): way.port + place for place in range(nodes)
        }
        self._open = threading.Event()
        self._open.set()
        self._ended = False
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        for listener, inside in self._listeners.items():
            self._sockets.add(listener)
            threading.Thread(target=self._accept, args=(listener, inside), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended = True
        self._open.set()
        for each in list(self._sockets):
            _end(each)

    def shut(self) -> None:
        """From now on nothing passes."""
        self._open.clear()

    def reopen(self) -> None:
        """Let pass what was held up, and all that follows."""
        self._open.set()

    def _accept(self, listener: socket.socket, inside: int) -> None:
        with listener, suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._sockets.add(client)
                threading.Thread(target=self._connect, args=(client, inside), daemon=True).start()

    def _connect(self, client: socket.socket, inside: int) -> None:
        self._open.wait()
        try:
            node = socket.create_connection(("127.0.0.1", inside))
        except OSError:  # the node is dead
            self._forget(client)
            return
        self._sockets.add(node)
        back = threading.Thread(target=self._pass_on, args=(node, client), daemon=True)
        back.start()
        self._pass_on(client, node)
        back.join()
        self._forget(client, node)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while not self._ended and (data := source.recv(PIECE_BYTES)):
                self._open.wait()
                sink.sendall(data)
        self._open.wait()
        for each in (source, sink):
            _end(each)

    def _forget(self, *sockets: socket.socket) -> None:
        for each in sockets:
            self._sockets.discard(each)
            each.close()


def _end(one: socket.socket) -> None:
    """Wake up who waits at this socket, in any thread."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
