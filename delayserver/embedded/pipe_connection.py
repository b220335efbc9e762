"""The client's ends of a connection inside a process: one for the blocking client, and a byte stream for the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from delayserver.client.connections.exchanging import ExchangingConnection, remaining_s
from delayserver.embedded.bells import TaskBell, ThreadBell
from delayserver.embedded.pipe import PIPE_BYTES_MAX
from delayserver.embedded.running import Running
from delayserver.protocol.frames import ReplyFrame


class PipeConnection(ExchangingConnection):
    """The same as `SocketConnection`, over a pipe. Raises the `EmbeddedError` of a server that is gone."""

    def __init__(self, running: Running, noticed: Callable[[ReplyFrame], None]) -> None:
        super().__init__(noticed)
        self._bell = ThreadBell()
        self._incoming, self._outgoing = running.connect(self._bell, self._bell).pipes

    def usable(self, *, repeatable: bool) -> bool:
        """Whether a call may be sent over this connection, as `SocketConnection.usable` says."""
        if self._closed or not self._here:
            return False
        return repeatable or self.read_ahead()

    def _read_now(self) -> bytes | None:
        return self._incoming.read(PIPE_BYTES_MAX)

    def shut_down(self) -> None:
        """End the exchange in progress. For other threads, and for a signal handler that interrupts an exchange."""
        self._closed = True
        self._outgoing.end()
        self._incoming.abandon()

    def close(self) -> None:
        """Close; may be called again."""
        self.shut_down()

    def _exchange(self, request_id: int, frame: bytes, timeout_s: float) -> ReplyFrame:
        deadline_s = time.monotonic() + timeout_s
        self._send_all(frame, deadline_s)
        while True:
            data = self._incoming.read(PIPE_BYTES_MAX)
            if data is None:
                self._bell.wait(remaining_s(deadline_s))
                continue
            for reply in self._replies.feed(data):
                if reply.id == request_id:
                    return reply
            self._replies.check()

    def _send_all(self, frame: bytes, deadline_s: float) -> None:
        sent = self._outgoing.write(frame)
        if sent < len(frame):
            self._send_rest(memoryview(frame)[sent:], deadline_s)

    def _send_rest(self, unsent: memoryview, deadline_s: float) -> None:
        while unsent:
            if self._outgoing.lacks_room():
                self._bell.wait(remaining_s(deadline_s))
            else:
                unsent = unsent[self._outgoing.write(unsent) :]


class PipeStream(ByteStream):
    """A stream of anyio, on trio and asyncio, for one reading and one writing task."""

    def __init__(self, running: Running) -> None:
        self._readable, self._writable = TaskBell(), TaskBell()
        self._incoming, self._outgoing = running.connect(self._readable, self._writable).pipes

    async def receive(self, max_bytes: int = PIPE_BYTES_MAX) -> bytes:
        """At most so many bytes. Raises EndOfStream, BrokenResourceError."""
        data = self._read(max_bytes)
        if data is not None:
            await anyio.lowlevel.checkpoint()
        while data is None:
            await self._readable.wait()
            data = self._read(max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    def _read(self, max_bytes: int) -> bytes | None:
        try:
            return self._incoming.read(max_bytes)
        except ConnectionResetError as exc:
            raise anyio.BrokenResourceError from exc

    async def send(self, item: bytes) -> None:
        """Send all of it. Raises BrokenResourceError."""
        await anyio.lowlevel.checkpoint()
        unsent = memoryview(item)
        try:
            while unsent:
                if self._outgoing.lacks_room():
                    await self._writable.wait()
                else:
                    unsent = unsent[self._outgoing.write(unsent) :]
        except ConnectionResetError as exc:
            raise anyio.BrokenResourceError from exc

    async def send_eof(self) -> None:
        """Send nothing more."""
        self._outgoing.end()

    async def aclose(self) -> None:
        """Close both directions; may be called again."""
        self._outgoing.end()
        self._incoming.abandon()
        await anyio.lowlevel.checkpoint()
