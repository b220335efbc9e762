"""The door to the network: the interface of a byte stream, and its implementation on a TCP socket.

`feed` pushes arriving bytes to a callback, so that one task can read many sockets in one step. Sending never waits:
`send_now` takes the bytes that fit into the kernel's buffer, and the connection keeps the rest, up to its bound.
The simulation has another implementation, so the server runs unchanged on a network that splits, delays and drops.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from delayserver.net.listening import is_wildcard, listening_sockets, place_of, plain_host
from delayserver.net.socket_hub import SocketHub
from delayserver.protocol.keepalive import keep_alive

# One read: large enough that a frame of 1,000 messages takes one call, small enough to allocate cheaply.
RECEIVE_BYTES = 256 * 1024
# A connection to a node breaks if the node acknowledges no bytes for this long. Otherwise the kernel would send them
# again for a quarter of an hour, ever more rarely, while a new connection would reach the node. Connections of clients
# have no such bound: clients may read late.
UNACKNOWLEDGED_MS_MAX = 20_000


Received = Callable[[bytes], None]


class Transport(Protocol):
    """One byte stream with a peer."""

    peer: str
    here: str
    """The address at which clients of its listener reach this server. Empty for a connection that was opened here."""

    async def feed(self, received: Received) -> None:
        """Call `received` with arriving bytes, never empty, until the end of the stream.

        Raises OSError if the connection broke or was closed here. An error of `received` is raised and ends reading."""

    def send_now(self, data: bytes | memoryview) -> int:
        """Send the bytes that can be taken without waiting; returns how many. Raises OSError."""

    async def wait_writable(self) -> None:
        """Wait until `send_now` can take bytes again."""

    def unacknowledged_bytes(self) -> int:
        """Bytes that `send_now` took and the peer has not acknowledged. A peer that reads nothing never lowers them."""

    def limit(self, read_bytes: int) -> None:
        """Read about so many bytes at once, at most; 0: as many as usual. So an unknown peer takes little memory."""

    def pause(self) -> None:
        """Hand over no more bytes until `resume`. `feed` may return if the peer closes meanwhile."""

    def resume(self) -> None:
        """Hand over bytes again, but never within this call."""

    def close(self) -> None:
        """Close both directions; idempotent. A task that waits in `feed` gets an OSError or the end of the stream."""


class StreamListener(Protocol):
    """Accepts streams."""

    address: tuple[str, int]
    addresses: tuple[tuple[str, int], ...]
    """All addresses that it listens on, `address` first."""

    async def accept(self) -> Transport:
        """The next connection."""

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        """Read the accepted connections until cancelled, and end them. The callbacks are called before and after each step.
        It may run again then, for new connections.

        `begin_step` returns how many bytes to read from one connection at most, where that can be chosen. `end_step`
        returns True if the step left no work to other tasks."""

    def close(self) -> None:
        """Stop listening; idempotent."""


Connect = Callable[[str], Awaitable[Transport]]


class SocketTransport:
    """A `Transport` on a connected TCP socket, read by the task that feeds."""

    __slots__ = ("_read_bytes_max", "_reading", "_socket", "here", "peer")

    def __init__(self, connected: socket.socket, peer: str, here: str = "") -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
        self._socket = connected
        self._read_bytes_max = RECEIVE_BYTES
        self._reading = trio.Event()
        self._reading.set()
        self.peer = peer
        self.here = here

    async def feed(self, received: Received) -> None:
        while True:
            if not self._reading.is_set():
                await self._reading.wait()
            try:
                await trio.lowlevel.wait_readable(self._socket)
                data = self._socket.recv(self._read_bytes_max)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, ValueError) as error:
                raise ConnectionResetError("closed here") from error
            if not data:
                return
            received(data)

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

    def unacknowledged_bytes(self) -> int:
        if self._socket.fileno() < 0:
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)))
        return int(count)

    def limit(self, read_bytes: int) -> None:
        self._read_bytes_max = read_bytes or RECEIVE_BYTES

    def pause(self) -> None:
        self._reading = trio.Event()

    def resume(self) -> None:
        self._reading.set()

    def close(self) -> None:
        self._reading.set()
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


class HubTransport(SocketTransport):
    """A `Transport` on an accepted TCP socket, read by its listener's hub together with the others."""

    __slots__ = ("_ended", "_error", "_hub", "_received")

    def __init__(self, connected: socket.socket, peer: str, here: str, hub: SocketHub) -> None:
        super().__init__(connected, peer, here)
        self._hub = hub
        self._ended = trio.Event()
        self._error: Exception | None = None
        self._received: Received = _nobody

    async def feed(self, received: Received) -> None:
        if not self._ended.is_set():
            self._received = received
            self._hub.add(self._socket.fileno(), self._read)
            try:
                await self._ended.wait()
            finally:
                self._hub.remove(self._socket.fileno())
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise the error and its frame refer to each other until the garbage collector runs

    def _read(self) -> None:
        try:
            read_bytes, read_bytes_max = self._hub.read_bytes, self._read_bytes_max
            data = self._socket.recv(read_bytes if read_bytes < read_bytes_max else read_bytes_max)
            if data:
                self._received(data)
                return
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - raised where `feed` waits; the hub reads on for the others
            self._error = error
        self._end()

    def pause(self) -> None:
        if not self._ended.is_set():
            self._hub.pause(self._socket.fileno(), self._end)

    def resume(self) -> None:
        if not self._ended.is_set():
            self._hub.resume(self._socket.fileno(), self._read)

    def _end(self) -> None:
        self._hub.remove(self._socket.fileno())
        self._received = _nobody  # breaks the reference cycle with the connection
        self._ended.set()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            if not self._ended.is_set():
                self._error = ConnectionResetError("closed here")
                self._end()
            super().close()


def _nobody(_data: bytes) -> None:
    """Receives for a stream that has ended."""


class SocketListener:
    """A `StreamListener` on TCP, on one or several addresses."""

    def __init__(self, hosts: Sequence[str], port: int, announced: Sequence[str] = ()) -> None:
        """`announced`: the addresses at which clients reach these hosts: none, one for all, or one for each. Raises
        `AddressError`."""
        self._hub = SocketHub()
        # Each listening socket with the address that its clients are told; empty: the one that they have reached.
        self._sockets: dict[int, tuple[socket.socket, str]] = {}
        self._listening = select.epoll()
        self._closed = False
        addresses = []
        for number, sockets in enumerate(listening_sockets(hosts, port)):
            told = announced[min(number, len(announced) - 1)] if announced else ""
            for each in sockets:
                each.setblocking(False)
                host, bound_port = each.getsockname()[:2]
                addresses.append((str(host), int(bound_port)))
                here = told or ("" if is_wildcard(host) else place_of(host, bound_port))
                self._sockets[each.fileno()] = each, here
                self._listening.register(each.fileno(), select.EPOLLIN)
        self.addresses = tuple(addresses)
        self.address = self.addresses[0]

    async def accept(self) -> Transport:
        while True:
            if self._closed:
                raise trio.ClosedResourceError("the listener is closed")
            await trio.lowlevel.wait_readable(self._listening)
            for descriptor, _ in self._listening.poll(0, 1):
                listening, here = self._sockets[descriptor]
                try:
                    connected, name = listening.accept()
                except BlockingIOError:
                    continue
                if not here:
                    reached = connected.getsockname()
                    here = place_of(plain_host(str(reached[0])), reached[1])
                return HubTransport(connected, f"{plain_host(str(name[0]))}:{name[1]}", here, self._hub)

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        try:
            await self._hub.run(begin_step, end_step)
        finally:
            self._hub.close()
            if not self._closed:
                self._hub = SocketHub()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        trio.lowlevel.notify_closing(self._listening)
        self._listening.close()
        for listening, _ in self._sockets.values():
            listening.close()


async def connect_socket(address: str) -> Transport:
    """Connect to HOST:PORT. Raises OSError."""
    host, _, port = address.rpartition(":")
    try:
        stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
    except UnicodeError as error:
        raise OSError(f"{host!r:.80} is no name of a host") from error
    # Take the socket over from trio's stream: `SocketTransport` calls the socket itself.
    inner = socket.socket(fileno=stream.socket.detach())
    inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
    return SocketTransport(inner, address)
