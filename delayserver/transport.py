"""The door to the network: what a connection needs of a byte stream, and its real form on a TCP socket.

Sending never waits: `send_now` takes what fits into the kernel's buffer, the connection keeps the rest and its bound.
The simulation has another form of it, so the server runs unchanged on a network that splits, delays and drops.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

# One read: large enough that a frame of 1,000 messages takes one call, small enough to allocate without thought.
RECEIVE_BYTES = 256 * 1024


class Transport(Protocol):
    """One byte stream with a peer."""

    peer: str

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the stream. Raises OSError when the connection broke. A checkpoint."""

    def send_now(self, data: bytes | memoryview) -> int:
        """Hand over what can be taken without waiting; returns the bytes taken. Raises OSError."""

    async def wait_writable(self) -> None:
        """Wait until `send_now` can take something again."""

    def close(self) -> None:
        """Close both directions; idempotent. A task that waits in `receive` gets an OSError or the end."""


class Listener(Protocol):
    """Accepts streams."""

    address: tuple[str, int]

    async def accept(self) -> Transport:
        """The next connection."""

    def close(self) -> None:
        """Stop listening; idempotent."""


Connect = Callable[[str], Awaitable[Transport]]


class SocketTransport:
    """A `Transport` on a connected TCP socket."""

    __slots__ = ("_socket", "peer")

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self.peer = peer

    async def receive(self) -> bytes:
        # Waiting first is also the checkpoint; a request's next bytes are hardly ever there already.
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, ValueError) as error:
                raise ConnectionResetError("closed here") from error

    def send_now(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise ConnectionResetError("closed here") from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


class SocketListener:
    """A `Listener` on TCP."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self.address = (str(name[0]), int(name[1]))

    async def accept(self) -> Transport:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                connected, name = self._socket.accept()
            except BlockingIOError:
                continue
            return SocketTransport(connected, f"{name[0]}:{name[1]}")

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


async def connect_socket(address: str) -> Transport:
    """Connect to HOST:PORT. Raises OSError."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
    # Taken over from trio's stream: this door speaks to the socket itself.
    inner = socket.socket(fileno=stream.socket.detach())
    return SocketTransport(inner, address)
