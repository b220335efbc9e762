"""A TCP stream on asyncio, without what a general stream costs: a receive or a send that need not wait does not wait.

`anyio`'s own takes an iteration of the event loop more for each of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute

UNREAD_BYTES_MAX: Final = 256 * 1024
"""The socket is not read while more received bytes than this wait for `receive`."""
ADDRESS_DELAY_S: Final = 0.25
"""If an address of the host has not answered so long, the next one is tried beside it."""


class AsyncioStream(asyncio.Protocol, ByteStream):
    """A connected stream, for one reading and one writing task. Made by `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        # Received, and not asked for yet.
        self.unread_bytes = 0
        self._ended = False
        self._lost = False
        self._why: Exception | None = None
        self._closed = False
        self._reads = True
        self._writes = True
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> AsyncioStream:
        """A stream to the first address of the host that answers. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(cls, host, port, happy_eyeballs_delay=ADDRESS_DELAY_S)
        return stream

    # -- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self.unread_bytes += len(data)
        if self.unread_bytes > UNREAD_BYTES_MAX and self._reads:
            self._reads = False
            self._connected.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self._ended = True
        _wake(self._reader)
        return True  # What is unwritten may still go out.

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self._why = True, exc
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._writes = False

    def resume_writing(self) -> None:
        self._writes = True
        _wake(self._writer)

    # -- for tasks

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """At most so many bytes. Raises EndOfStream, BrokenResourceError, ClosedResourceError."""
        while not self._chunks:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._lost and self._why is not None:
                raise anyio.BrokenResourceError from self._why
            if self._ended or self._lost:
                raise anyio.EndOfStream
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self.unread_bytes -= len(data)
        if not self._reads and self.unread_bytes <= UNREAD_BYTES_MAX // 2:
            self._reads = True
            self._connected.resume_reading()
        return data

    async def send(self, item: bytes) -> None:
        """Send all of it: it is with the kernel, or little of it waits. Raises BrokenResourceError, ClosedResourceError."""
        self._check()
        self._connected.write(item)
        while not self._writes:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
            self._check()

    async def send_eof(self) -> None:
        """Send nothing more."""
        self._check()
        self._connected.write_eof()

    async def aclose(self) -> None:
        """Close both directions; what is unwritten is dropped. May be called again."""
        self._closed = True
        self._connected.abort()
        _wake(self._reader)
        _wake(self._writer)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The socket."""
        return {SocketAttribute.raw_socket: lambda: self._connected.get_extra_info("socket")}

    @property
    def _connected(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _check(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._lost:
            raise anyio.BrokenResourceError from self._why


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
