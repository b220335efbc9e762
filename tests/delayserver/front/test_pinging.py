"""Whether a server answers at an address: over real sockets, with and without TLS."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from delayserver.front.pinging import answers
from delayserver.net.certificates import of_client
from delayserver.net.tls_transport import connect_tls
from delayserver.net.transport import connect_socket
from delayserver.protocol.errors import TooManyConnections
from delayserver.protocol.frames import encode_error
from tests.delayserver.cli.conftest import serving
from tests.delayserver.cli.running.test_tls import Files


@asynccontextmanager
async def listening(reply: bytes | None) -> AsyncIterator[str]:
    """The address of somebody who answers so; None: who closes at once."""

    async def serve(stream: trio.SocketStream) -> None:
        if reply is not None:
            await stream.receive_some()
            await stream.send_all(reply)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def test_a_server_answers_and_whoever_else_listens_does_not(tmp_path: Path) -> None:

    async def main() -> None:
        async with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
            assert not await answers(connect_socket, address)
        async with listening(None) as address:
            assert not await answers(connect_socket, address)
        async with listening(encode_error(0, TooManyConnections("full"))) as address:
            assert await answers(connect_socket, address)

    trio.run(main)
    with serving(tmp_path / "data") as server:
        assert trio.run(answers, connect_socket, server.address)


def test_nobody_answers_where_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not trio.run(answers, connect_socket, f"127.0.0.1:{bound.getsockname()[1]}")


def test_a_server_with_tls_answers_those_who_know_its_authority(tmp_path: Path) -> None:
    files, other = Files(tmp_path / "tls"), Files(tmp_path / "other")
    with serving(tmp_path / "data", *files.flags()) as server:
        assert trio.run(answers, connect_tls(of_client(str(files.ca), "", "")), server.address)
        assert not trio.run(answers, connect_tls(of_client(str(other.ca), "", "")), server.address)
        assert not trio.run(answers, connect_socket, server.address)
