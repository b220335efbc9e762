"""A connection of HTTP at the moments that no client can choose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from delayserver.config.settings import HttpSettings
from delayserver.web.http_protocol import HEAD, BoundedProtocol, Connections
from delayserver.web.problems import Problem


async def _application(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("no request is complete")


def with_a_connection(test: Callable[[BoundedProtocol, socket.socket], Awaitable[None]]) -> None:
    """Run a test with one connection and its client."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(_application, lifespan="off", log_config=None)
        config.load()
        connections, state = Connections(HttpSettings()), ServerState()
        made: list[BoundedProtocol] = []

        def protocol() -> BoundedProtocol:
            made.append(connections.protocol(config, state, {}, loop))
            return made[-1]

        listening = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(protocol, sock=listening)
        client = socket.create_connection(listening.getsockname())
        while not made or made[0].transport is None:
            await asyncio.sleep(0.001)
        await test(made[0], client)
        client.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_refusal_of_a_client_that_has_just_gone_ends_its_connection_alone() -> None:
    async def refuse(connection: BoundedProtocol, client: socket.socket) -> None:
        client.sendall(b"GET / HTTP/1.1\r\n")
        while connection.phase != HEAD:
            await asyncio.sleep(0.001)
        # The system resets the connection at the first byte that comes for a closed socket.
        client.close()
        connection.refuse(Problem(408, "request_timeout", "the head of the request did not come in time"))
        assert connection.transport.is_closing()

    with_a_connection(refuse)


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    async def look(connection: BoundedProtocol, _client: socket.socket) -> None:
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with_a_connection(look)
