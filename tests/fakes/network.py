"""Byte streams in memory with the bound of a socket's buffer: a peer that does not read stops the writer.

Nothing is delayed, split or lost here; the simulation's network does that. A test asks for a fault by name.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

# What a kernel takes for a peer that does not read. Small, so that tests reach it.
WINDOW_BYTES = 64 * 1024


class _Pipe:
    """One direction."""

    __slots__ = ("broken", "changed", "closed", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False
        self.broken = False
        self.changed = trio.Event()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class FakeTransport:
    """A `Transport` of one end."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str, window_bytes: int) -> None:
        self.peer = peer
        self.window_bytes = window_bytes
        self.fail_sends = False
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self._reads = 0
        # Of an accepted one: half of what it reads is a step of the listener, as with real sockets.
        self.listener: FakeListener | None = None

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._incoming
        while not pipe.data:
            if self._closed or pipe.broken:
                raise ConnectionResetError("the connection is gone")
            if pipe.closed:
                return b""
            await pipe.changed.wait()
        data = bytes(pipe.data)
        pipe.data.clear()
        pipe.wake()
        return data

    async def feed(self, received: Callable[[bytes], None]) -> None:
        while data := await self.receive():
            self._reads += 1
            if self.listener is not None and self._reads % 2:
                self.listener.in_step(received, data)
            else:
                received(data)

    def send_now(self, data: bytes | memoryview) -> int:
        pipe = self._outgoing
        if self._closed or pipe.broken or pipe.closed or self.fail_sends:
            raise ConnectionResetError("the connection is gone")
        taken = min(len(data), max(self.window_bytes - len(pipe.data), 0))
        pipe.data += data[:taken]
        if taken:
            pipe.wake()
        return taken

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self._outgoing
        while len(pipe.data) >= self.window_bytes:
            if self._closed or pipe.broken:
                raise ConnectionResetError("the connection is gone")
            await pipe.changed.wait()

    @property
    def unread_bytes(self) -> int:
        """What the peer has not read."""
        return len(self._outgoing.data)

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed."""
        return self._closed

    def reset(self) -> None:
        """Both ends learn that the connection broke."""
        for pipe in (self._incoming, self._outgoing):
            pipe.broken = True
            pipe.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.closed = True
            self._incoming.broken = True
            self._outgoing.wake()
            self._incoming.wake()


def transport_pair(peer: str = "peer", window_bytes: int = WINDOW_BYTES) -> tuple[FakeTransport, FakeTransport]:
    """Two connected ends."""
    there, back = _Pipe(), _Pipe()
    return FakeTransport(back, there, peer, window_bytes), FakeTransport(there, back, "client", window_bytes)


class Steps:
    """The part of a `Listener` whose transports are each read by a task of their own."""

    def __init__(self) -> None:
        self._begin_step: Callable[[], None] = lambda: None
        self._end_step: Callable[[], bool] = lambda: True

    async def run(self, begin_step: Callable[[], None], end_step: Callable[[], bool]) -> None:
        self._begin_step, self._end_step = begin_step, end_step
        await trio.sleep_forever()  # every transport is read by its own task

    def in_step(self, received: Callable[[bytes], None], data: bytes) -> None:
        """Hand over what was read as a step of its own."""
        self._begin_step()
        try:
            received(data)
        finally:
            self._end_step()


class FakeListener(Steps):
    """A `Listener`."""

    def __init__(self, network: FakeNetwork, address: tuple[str, int]) -> None:
        self.address = address
        self.accepted: list[FakeTransport] = []
        self._network = network
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[FakeTransport](1024)

    async def accept(self) -> FakeTransport:
        return await self._receive.receive()

    def arrive(self, transport: FakeTransport) -> None:
        """A connection for `accept`."""
        transport.listener = self
        self.accepted.append(transport)
        self._send.send_nowait(transport)

    def close(self) -> None:
        self._network.forget(self)
        self._receive.close()

    def cut(self) -> None:
        """The host died: all its connections break."""
        self.close()
        for transport in self.accepted:
            transport.reset()
            transport.close()


class FakeNetwork:
    """Connects by address."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES
        self.unreachable: set[str] = set()
        self._listeners: dict[str, FakeListener] = {}

    def listen(self, name: str) -> FakeListener:
        """Listen at NAME:1."""
        listener = FakeListener(self, (name, 1))
        self._listeners[f"{name}:1"] = listener
        return listener

    def forget(self, listener: FakeListener) -> None:
        """It listens no more."""
        name = f"{listener.address[0]}:{listener.address[1]}"
        if self._listeners.get(name) is listener:
            del self._listeners[name]

    async def connect(self, address: str) -> FakeTransport:
        """The `Connect` door. Raises ConnectionRefusedError; an unreachable host hangs, as TCP does."""
        await trio.lowlevel.checkpoint()
        if address in self.unreachable:
            await trio.sleep_forever()
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        near, far = transport_pair(address, self.window_bytes)
        listener.arrive(far)
        return near
