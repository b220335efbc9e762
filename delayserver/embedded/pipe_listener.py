"""The server's side of connections inside a process: a `StreamListener` and its `Transport`s.

One task reads all of them, many in one step, as the hub of sockets does. So what several threads send at the same time is
one group of the group commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from delayserver.embedded.bells import TaskBell
from delayserver.embedded.pipe import Pipe, PipeBell
from delayserver.net.transport import Received

ADDRESS: Final = ("embedded", 20801)
"""The address that the server names in a route. Only a client of this server can reach it."""

PEER: Final = "127.0.0.1:0"
"""The program itself is a peer on the server's own host."""

# Steps in a row before other tasks run, as `SocketHub` has it.
STEPS_MAX: Final = 8


class PipeTransport:
    """A `Transport`: the server's end of one connection."""

    __slots__ = (
        "_ended",
        "_error",
        "_incoming",
        "_listener",
        "_outgoing",
        "_paused",
        "_received",
        "_writable",
        "here",
        "peer",
    )

    def __init__(self, listener: PipeListener, reader: PipeBell, writer: PipeBell) -> None:
        self.peer = PEER
        self.here = f"{ADDRESS[0]}:{ADDRESS[1]}"
        self._listener = listener
        self._writable = TaskBell()
        self._incoming = Pipe(_Announce(listener, self), writer)
        self._outgoing = Pipe(reader, self._writable)
        self._received: Received | None = None
        self._ended = trio.Event()
        self._error: Exception | None = None
        self._paused = False

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        """For the client: what it reads, and what it writes."""
        return self._outgoing, self._incoming

    async def feed(self, received: Received) -> None:
        self._received = received
        self._listener.add_ready(self)
        await self._ended.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise the error and its frame refer to each other until the garbage collector runs

    def read(self, bytes_max: int) -> None:
        """One read of a step: hand over what has come, if anything may be handed over."""
        if self._received is None:  # not served yet, or ended
            return
        if self._paused:
            if self._incoming.ended:
                self._end()
            return
        try:
            data = self._incoming.read(bytes_max)
            if data:
                self._received(data)
        except Exception as error:  # noqa: BLE001 - raised where `feed` waits; the others are read on
            self._error = error
            self._end()
            return
        if data == b"":
            self._end()
        elif data and self._incoming.has_news:
            self._listener.add_ready(self)

    def _end(self) -> None:
        self._received = None
        self._ended.set()

    def send_now(self, data: bytes | memoryview) -> int:
        return self._outgoing.write(data)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._outgoing.lacks_room():
            await self._writable.wait()

    def unacknowledged_bytes(self) -> int:
        return self._outgoing.unread_bytes

    def limit(self, read_bytes: int) -> None:
        """The other end is this program, which is known."""

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._listener.add_ready(self)

    def close(self) -> None:
        if not self._outgoing.ended:
            self._outgoing.end()
            self._incoming.abandon()
            self._writable.ring()
            if not self._ended.is_set():
                self._error = ConnectionResetError("closed here")
                self._end()
            self._listener.forget(self)


class _Announce:
    """The bell of the reader of a transport: the listener reads it in its next step."""

    __slots__ = ("_listener", "_transport")

    def __init__(self, listener: PipeListener, transport: PipeTransport) -> None:
        self._listener = listener
        self._transport = transport

    def ring(self) -> None:
        """Something came. From any thread."""
        self._listener.add_ready(self._transport)


class PipeListener:
    """A `StreamListener` for the clients of this process."""

    def __init__(self) -> None:
        self.address = ADDRESS
        self.addresses: tuple[tuple[str, int], ...] = (ADDRESS,)
        self._arrived: deque[PipeTransport] = deque()
        self._arrival = TaskBell()
        self._ready: deque[PipeTransport] = deque()
        self._news = TaskBell()
        self._open: set[PipeTransport] = set()
        self.closed = False
        """Whether it takes no more connections."""

    def connect(self, reader: PipeBell, writer: PipeBell) -> PipeTransport:
        """A new connection, from any thread. `reader` is rung when the client's end can read, `writer` when it can write
        again. Raises ConnectionRefusedError."""
        transport = PipeTransport(self, reader, writer)
        self._arrived.append(transport)
        self._arrival.ring()
        # If the listener was closed before this line, no task accepts the connection.
        if self.closed:
            raise ConnectionRefusedError("the embedded server is closed")
        return transport

    def add_ready(self, transport: PipeTransport) -> None:
        """Has the next step read this transport. From any thread."""
        self._ready.append(transport)
        self._news.ring()

    def forget(self, transport: PipeTransport) -> None:
        """A transport was closed."""
        self._open.discard(transport)

    async def accept(self) -> PipeTransport:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            if self.closed:
                raise trio.ClosedResourceError("closed")
            await self._arrival.wait()
        transport = self._arrived.popleft()
        self._open.add(transport)
        return transport

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            if not self._ready:
                await self._news.wait()
            for _ in range(STEPS_MAX):
                if not self._ready or not self._step(begin_step, end_step):
                    break

    def _step(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> bool:
        """Read what is ready now, each once. Whether the step left no work to other tasks."""
        read_bytes, seen = begin_step(), set[PipeTransport]()
        try:
            for _ in range(len(self._ready)):
                transport = self._ready.popleft()
                if transport not in seen:
                    seen.add(transport)
                    transport.read(read_bytes)
        finally:
            done = end_step()
        return done

    def close(self) -> None:
        self.closed = True
        self._arrival.ring()

    def cut(self) -> None:
        """The server has ended: clients learn that each connection is over. In the server's thread, or when it is gone."""
        self.close()
        while self._arrived:
            self._open.add(self._arrived.popleft())
        for transport in tuple(self._open):
            transport.close()
