"""A real server on real sockets in the loop of a test, and clients that send bytes as an attacker would."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from delayserver.config.settings import ListenSettings, Settings, StorageSettings
from delayserver.net.certificates import Contexts
from delayserver.net.tls_transport import TlsListener
from delayserver.net.transport import SocketListener, StreamListener
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import FrameDecoder, decode_reply, encode_request
from delayserver.server.delay_server import DelayServer

HELLO = {"versions": [1]}
# The addresses of an attacker and of another client: all of 127.0.0.0/8 is loopback.
ATTACKER, NORMAL = "127.0.0.7", "127.0.0.8"
PATIENCE_S = 60


class Real:
    """A connection to the server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._came: deque[bytes] = deque()
        self._last_id = 0

    async def request(self, operation: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result. Raises the error that the server names, also one of the connection; ConnectionResetError."""
        self._last_id += 1
        await self.stream.send_all(encode_request(self._last_id, operation, arguments or {}))
        return await self.reply()

    async def pour(self, data: bytes) -> None:
        """Send bytes. The server may have ended the connection by now."""
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def reply(self) -> dict[str, Any]:
        """The next reply. Errors as for `request`."""
        with trio.fail_after(PATIENCE_S):
            while not self._came:
                data = await self.stream.receive_some(65536)
                if not data:
                    raise ConnectionResetError("closed by the server")
                # Several replies may come at once.
                self._came.extend(bytes(payload) for payload in self._decoder.feed(bytes(data)))
        reply = decode_reply(self._came.popleft())
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    async def refused(self, operation: str, arguments: dict[str, Any] | None = None) -> str:
        """The name of the error that a request meets."""
        try:
            await self.request(operation, arguments)
        except DelayServerError as error:
            return error.name
        raise AssertionError("not refused")

    async def ended(self) -> str:
        """Waits for the end of the connection; the name of the error that came before it, if one came."""
        name = ""
        try:
            while True:
                await self.reply()
        except DelayServerError as error:
            name = error.name
        except (ConnectionResetError, trio.BrokenResourceError):
            return ""
        with trio.fail_after(PATIENCE_S):
            try:
                while await self.stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                pass
        return name


class Door:
    """The server, and ways to knock."""

    def __init__(self, server: DelayServer, address: tuple[str, int], nursery: trio.Nursery) -> None:
        self.server = server
        self.address = address
        self.nursery = nursery
        self._streams: list[trio.SocketStream] = []

    async def connect(self, source: str = NORMAL) -> Real:
        """A new connection from this address."""
        stream = await trio.open_tcp_stream(*self.address, local_address=source)
        self._streams.append(stream)
        return Real(stream)

    async def close(self) -> None:
        """Closes all connections."""
        for stream in self._streams:
            await stream.aclose()

    async def crowd(self, count: int, data: bytes = b"", source: str = ATTACKER) -> list[Real]:
        """So many connections that send these bytes, and nothing more. The server has accepted or refused all of them."""
        crowd = [await self.connect(source) for _ in range(count)]
        for each in crowd:
            self.nursery.start_soon(each.pour, data)
        last = await self.connect("127.0.0.9")
        try:
            await last.request("ping")
        except (DelayServerError, OSError, trio.BrokenResourceError):
            pass
        await last.stream.aclose()
        return crowd

    async def token(self, **wanted: Any) -> str:
        """A new token, which the first one makes with this server."""
        operator = await self.connect()
        made = await operator.request("token", {"action": "create", "roles": ["admin"], **wanted})
        await operator.stream.aclose()
        text = made["token"]
        assert isinstance(text, str)
        return text

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for a state of the server."""
        with trio.fail_after(PATIENCE_S):
            while not true():
                await trio.sleep(0.005)


@asynccontextmanager
async def at_the_door(
    tmp_path: Path, certificates: Contexts | None = None, parts: dict[str, Any] | None = None, **listen: Any
) -> AsyncIterator[Door]:
    """Runs a server with these settings of `listen` and other `parts` beside the block."""
    settings = Settings(
        listen=replace(ListenSettings(), **listen),
        storage=StorageSettings(data_dir=str(tmp_path / "data")),
        **(parts or {}),
    )
    server = DelayServer(settings)
    listener: StreamListener = SocketListener(("127.0.0.1",), 0)
    if certificates is not None:
        listener = TlsListener(listener, certificates)
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(server.run, listener, lambda _host, _port: ready.set()))
        await ready.wait()
        door = Door(server, listener.address, nursery)
        try:
            yield door
            server.connections.check_invariants()
        finally:
            await door.close()
        server.stop()
    listener.close()
    server.close()


class OneContext:
    """The certificate of a test."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
