"""Byte streams in memory with the bound of a socket's buffer: a peer that does not read stops the writer.

Nothing is delayed, split or lost here; the simulation's network does that. A test asks for a fault by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import trio

# What a kernel takes for a peer that does not read. Small, so that tests reach it.
WINDOW_BYTES = 64 * 1024


class Steps:
    """The part of a `StreamListener` whose transports are each read by a task of their own."""

    def __init__(self) -> None:
        self._begin_step: Callable[[], int] = lambda: 0
        self._end_step: Callable[[], bool] = lambda: True

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        self._begin_step, self._end_step = begin_step, end_step
        await trio.sleep_forever()  # every transport is read by its own task

    def in_step(self, received: Callable[[bytes], None], data: bytes) -> None:
        """Hand over what was read as a step of its own."""
        self._begin_step()
        try:
            received(data)
        finally:
            self._end_step()


class Direction(Protocol):
    """One direction of a connection, as the end that reads it sees it."""

    closed: bool
    broken: bool

    def wake(self) -> None:
        """Let the reader look again."""

    async def changed(self) -> None:
        """Wait until somebody wakes."""


class SteppedReads(ABC):
    """The part of a `Transport` that every simulated network has: reads that can be paused, and the steps that they are.

    Half of what an accepted end reads is a step of its listener, as with real sockets.
    """

    def __init__(self, incoming: Direction) -> None:
        self.listener: Steps | None = None
        self._read_from = incoming
        self._closed = False
        self._paused = False
        self._reads = 0

    @abstractmethod
    async def receive(self) -> bytes:
        """What has arrived; empty at the end. Raises ConnectionResetError."""

    async def feed(self, received: Callable[[bytes], None]) -> None:
        while await self._may_read() and (data := await self.receive()):
            self._reads += 1
            if self.listener is not None and self._reads % 2:
                self.listener.in_step(received, data)
            else:
                received(data)

    async def _may_read(self) -> bool:
        """Return when reading is not paused any more. False where the peer closed meanwhile."""
        pipe = self._read_from
        while self._paused:
            if self._closed or pipe.broken:
                raise ConnectionResetError("the connection is gone")
            if pipe.closed:
                return False
            await pipe.changed()
        return True

    def limit(self, read_bytes: int) -> None:
        """What arrives here is small anyway."""
        del read_bytes

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._read_from.wake()


class _Pipe:
    """One direction."""

    __slots__ = ("_woken", "broken", "closed", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False
        self.broken = False
        self._woken = trio.Event()

    def wake(self) -> None:
        self._woken.set()
        self._woken = trio.Event()

    async def changed(self) -> None:
        """Wait until somebody wakes."""
        await self._woken.wait()


class FakeTransport(SteppedReads):
    """A `Transport` of one end."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str, window_bytes: int) -> None:
        super().__init__(incoming)
        self.peer = peer
        self.here = ""
        self.window_bytes = window_bytes
        self.fail_sends = False
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._incoming
        while not pipe.data:
            if self._closed or pipe.broken:
                raise ConnectionResetError("the connection is gone")
            if pipe.closed:
                return b""
            await pipe.changed()
        data = bytes(pipe.data)
        pipe.data.clear()
        pipe.wake()
        return data

    def unacknowledged_bytes(self) -> int:
        return len(self._outgoing.data)

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
            await pipe.changed()

    @property
    def unread_bytes(self) -> int:
        """What the peer has not read."""
        return len(self._outgoing.data)

    @property
    def unread_here(self) -> int:
        """What the peer sent and this end has not read."""
        return len(self._incoming.data)

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


def transport_pair(
    peer: str = "peer", window_bytes: int = WINDOW_BYTES, comes_from: str = "127.0.0.1:40000"
) -> tuple[FakeTransport, FakeTransport]:
    """Two connected ends. `comes_from`: who the accepting end sees."""
    there, back = _Pipe(), _Pipe()
    return FakeTransport(back, there, peer, window_bytes), FakeTransport(there, back, comes_from, window_bytes)


class FakeListener(Steps):
    """A `StreamListener`."""

    def __init__(self, network: FakeNetwork, address: tuple[str, int]) -> None:
        self.address = address
        self.addresses: tuple[tuple[str, int], ...] = (address,)
        self.accepted: list[FakeTransport] = []
        self._network = network
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[FakeTransport](1024)

    async def accept(self) -> FakeTransport:
        return await self._receive.receive()

    def arrive(self, transport: FakeTransport) -> None:
        """A connection for `accept`."""
        transport.listener = self
        transport.here = f"{self.address[0]}:{self.address[1]}"
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
        # The address that a host sees of who connects from now on.
        self.comes_from = "127.0.0.1:40000"
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
            raise ConnectionRefusedError(f"no server listens on {address}")
        near, far = transport_pair(address, self.window_bytes, self.comes_from)
        listener.arrive(far)
        return near
