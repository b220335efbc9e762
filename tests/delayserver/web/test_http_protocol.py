"""A connection of HTTP at the moments that no client can choose."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trustme
import uvicorn
from uvicorn.server import ServerState

from delayserver.config.settings import HttpSettings
from delayserver.web.bodies import LINES
from delayserver.web.client_addresses import counted_address
from delayserver.web.gateway_process import within_descriptors
from delayserver.web.http_protocol import BODY, HEAD, BoundedProtocol, HttpConnections
from delayserver.web.problems import Problem


async def _application(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("no request is complete")


def with_a_connection(test: Callable[[BoundedProtocol, socket.socket], Awaitable[None]]) -> None:
    """Run a test with one connection and its client."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(_application, lifespan="off", log_config=None)
        config.load()
        connections, state = HttpConnections(HttpSettings()), ServerState()
        made: list[BoundedProtocol] = []

        def protocol() -> BoundedProtocol:
            made.append(BoundedProtocol(connections, config, state, {}, loop))
            return made[-1]

        listening = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(protocol, sock=listening)
        client = socket.create_connection(listening.getsockname())
        while not made or made[0].transport is None:
            await asyncio.sleep(0.001)
        sweeping = loop.create_task(connections.run())
        await test(made[0], client)
        sweeping.cancel()
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


def test_early_bytes_of_a_body_save_time_up_to_one_period() -> None:
    async def drip(connection: BoundedProtocol, client: socket.socket) -> None:
        async def answer(_scope: Any, receive: Any, _send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        connection.app = answer
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b" " * 50_000)
        while connection.phase != BODY:
            await asyncio.sleep(0.001)
        now_s = connection.loop.time()
        assert not connection.is_slow(now_s + 29, 30)
        assert connection.is_slow(now_s + 31, 30)
        connection.cycle.scope[LINES] = True  # type: ignore[typeddict-unknown-key]
        assert not connection.is_slow(now_s + 29, 30)
        connection.abort()

    with_a_connection(drip)


def read_now(client: socket.socket) -> bytes:
    """What has come so far. On loopback it is there as soon as it is written, unless the machine is very busy."""
    try:
        return client.recv(65_536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


async def read(client: socket.socket, count: int) -> bytes:
    """So many bytes, and what else has come with them."""
    found = read_now(client)
    while len(found) < count:
        await asyncio.sleep(0.001)
        found += read_now(client)
    return found


HELD = [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", b"ab"]
STREAMED = [
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"2\r\nab\r\n",
    b"2\r\nab\r\n0\r\n\r\n",
]


@pytest.mark.parametrize(("headers", "expected"), [([(b"content-length", b"4")], HELD), ([], STREAMED)])
def test_the_head_waits_for_the_body_unless_it_is_a_stream(
    headers: list[tuple[bytes, bytes]], expected: list[bytes]
) -> None:
    found: list[bytes] = []

    async def ask(connection: BoundedProtocol, client: socket.socket) -> None:
        async def answer(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            found.append(await read(client, len(expected[0])))
            for more in (True, False):
                await send({"type": "http.response.body", "body": b"ab", "more_body": more})
                found.append(await read(client, len(expected[len(found)])))

        connection.app = answer
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while len(found) < 3:
            await asyncio.sleep(0.001)

    with_a_connection(ask)
    assert found == expected


def test_a_stream_to_a_client_of_version_1_0_is_not_chunked() -> None:
    """Such as nginx, as it is without `proxy_http_version`. The end of the connection is that of the stream."""

    async def ask(connection: BoundedProtocol, client: socket.socket) -> None:
        async def answer(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for more in (True, False):
                await send({"type": "http.response.body", "body": b"ab", "more_body": more})

        connection.app = answer
        client.setblocking(False)
        client.sendall(b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        found = b""
        while data := await connection.loop.sock_recv(client, 65_536):
            found += data
        assert found == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabab"

    with_a_connection(ask)


@pytest.mark.parametrize("header", [(b"x", b"a\r\nb: c"), (b"x: y\r\nz", b"a")])
def test_no_header_breaks_out_of_its_line(header: tuple[bytes, bytes]) -> None:
    refused = asyncio.Event()

    async def ask(connection: BoundedProtocol, client: socket.socket) -> None:
        async def answer(_scope: Any, _receive: Any, send: Any) -> None:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": [header]})
            except RuntimeError:
                refused.set()
                connection.abort()

        connection.app = answer
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await refused.wait()
        assert read_now(client) == b""

    with_a_connection(ask)


async def _fine(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def over_tls(settings: HttpSettings, test: Callable[[int, ssl.SSLContext, HttpConnections], Awaitable[None]]) -> None:
    """Run a test with a server of TLS: its port, the context of a client that trusts it, and its connections."""
    authority, serving = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)

    served(HttpConnections(settings, serving), lambda port, connections: test(port, trusting, connections))


def served(connections: HttpConnections, test: Callable[[int, HttpConnections], Awaitable[None]]) -> None:
    """Run a test with a server that has these connections: its port."""

    async def run() -> None:
        loop, config = asyncio.get_running_loop(), uvicorn.Config(_fine, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        server = await loop.create_server(lambda: connections.protocol(config, state, {}, loop), "127.0.0.1", 0)
        sweeping = loop.create_task(connections.run())
        await test(server.sockets[0].getsockname()[1], connections)
        assert not sweeping.done()
        sweeping.cancel()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_refusal_over_tls_is_answered_and_ends_no_more_than_its_connection() -> None:
    """TLS of asyncio cannot end one direction alone."""

    async def refuse(port: int, trusting: ssl.SSLContext, _: HttpConnections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.transport.abort()

    over_tls(HttpSettings(head_timeout_ms=10), refuse)


def test_silent_handshakes_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.web.handshakes.HANDSHAKES_MAX", 2)
    monkeypatch.setattr("delayserver.web.handshakes.HANDSHAKE_S", 3600.0)

    async def crowd(port: int, trusting: ssl.SSLContext, connections: HttpConnections) -> None:
        loop = asyncio.get_running_loop()
        # They are there at once, so the first one gives way before its handshake has begun, and the next one later.
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for each in silent:
            each.setblocking(False)
        assert await loop.sock_recv(silent[0], 1) == b""
        # Requests come right behind the handshake, several in one piece. Handshakes that are done give no way.
        secured = [await asyncio.open_connection("127.0.0.1", port, ssl=trusting) for _ in range(3)]
        assert await loop.sock_recv(silent[1], 1) == b""
        for reader, writer in secured:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            for _ in range(2):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert len(connections) == 3
        for _, writer in secured:
            writer.transport.abort()
        for each in silent:
            each.close()

    over_tls(HttpSettings(), crowd)


def test_a_handshake_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayserver.web.handshakes.HANDSHAKE_S", 0.01)

    async def dawdle(port: int, _: ssl.SSLContext, connections: HttpConnections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"" and len(connections) == 0
        writer.close()

    over_tls(HttpSettings(), dawdle)


def test_one_address_takes_no_more_than_its_share_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    # The loopback addresses of this test stand for machines, but for the first one.
    monkeypatch.setattr("delayserver.web.http_protocol.counted_address", lambda host: host.removeprefix("127.0.0.1"))

    async def crowd(port: int, connections: HttpConnections) -> None:
        opened = []

        async def status(address: str) -> bytes:
            opened.append(await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
            reader, writer = opened[-1]
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            return (await reader.readuntil(b"\r\n\r\n"))[9:12]

        monkeypatch.setattr("delayserver.web.http_protocol.IDLE_S_MIN", 3600.0)
        assert [await status(f"127.0.0.{machine}") for machine in (3, 2, 2, 2)] == [b"200", b"200", b"200", b"503"]
        assert [await status(f"127.0.0.{machine}") for machine in (3, 1, 1, 1)] == [b"200"] * 4
        # Its own oldest idle connection gives way, and not the oldest of all.
        monkeypatch.setattr("delayserver.web.http_protocol.IDLE_S_MIN", 0.0)
        assert await status("127.0.0.2") == b"200" and len(connections) == 7
        assert await opened[1][0].read() == b"" and not opened[0][0].at_eof()
        # A place that was left is free again.
        monkeypatch.setattr("delayserver.web.http_protocol.IDLE_S_MIN", 3600.0)
        opened[2][1].transport.abort()
        while len(connections) == 7:
            await asyncio.sleep(0.001)
        assert await status("127.0.0.2") == b"200"
        for _, writer in opened:
            writer.transport.abort()

    served(HttpConnections(HttpSettings(connections_of_address_max=2)), crowd)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("127.0.0.1", ""),
        ("127.9.9.9", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::1:2%eth0", "fe80000000000000::/64"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002::/64"),
        ("2001:db8:1:2:ffff::", "20010db800010002::/64"),
    ],
)
def test_addresses_that_one_machine_has_are_counted_together(host: str, counted: str) -> None:
    assert counted_address(host) == counted


def test_one_address_keeps_its_share_when_descriptors_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "delayserver.web.gateway_process.DESCRIPTORS_KEPT", resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100
    )
    settings = within_descriptors(HttpSettings(connections_max=4000, connections_of_address_max=1000))
    assert (settings.connections_max, settings.connections_of_address_max) == (100, 25)


def test_answers_that_no_client_reads_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32 * 1024 * 1024
    monkeypatch.setattr("delayserver.web.http_protocol.SWEEP_S", 0.01)
    monkeypatch.setattr("delayserver.web.http_protocol.UNSENT_BYTES_MAX", size)

    async def large(connection: BoundedProtocol, client: socket.socket) -> None:
        async def answer(_scope: Any, _receive: Any, send: Any) -> None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (2 * size))]}
            )
            await send({"type": "http.response.body", "body": b" " * size * 2})

        connection.app = answer
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not connection.transport.is_closing():
            await asyncio.sleep(0.001)

    with_a_connection(large)
