"""A server behind a mapped port: clients reach it by an address that it does not listen on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer, Delivery, ThreadListener
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.protocol.frames import encode_request
from delayserver.protocol.operations import ROUTE
from tests.delayserver.cli.conftest import serving
from tests.delayserver.client.both import no_notice
from tests.ports import free_port


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def mapped(host: str, port: int) -> Iterator[str]:
    """Another port that leads to this one, as `ssh -L` makes it."""
    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    far = socket.create_connection((host, port))
                    opened.extend((near, far))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=_pour, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for each in opened:
        each.close()


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[str]:
    """The address of a mapped port. The server announces one at which nobody listens, as an outsider sees its own port."""
    with serving(tmp_path / "data", "--announce", f"127.0.0.1:{free_port()}") as server:
        host, _, port = server.address.rpartition(":")
        with mapped(host, int(port)) as address:
            yield address


def test_a_listener_stays_with_the_address_that_worked(behind: str) -> None:
    listener = ThreadListener("g")
    came: list[bytes] = []

    @listener("orders")
    def handle(delivery: Delivery) -> None:
        came.append(delivery.body)
        running.stop()

    with Client(behind) as client:
        client.send("orders", b"mapped", delay_ms=0)
        with listener.running(client) as running:
            assert running.wait(30)
    assert came == [b"mapped"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_consumer_stays_with_the_address_that_worked(behind: str, backend: str) -> None:
    async def consume() -> bytes:
        with anyio.fail_after(30):
            async with AsyncClient(behind) as client:
                await client.send("orders", b"mapped", delay_ms=0)
                async with Consumer(client, "orders", "g") as deliveries:
                    assert deliveries.nodes == [behind]
                    async for received in deliveries:
                        await received.ack()
                        return received.delivery.body
        raise AssertionError("nothing came")

    assert anyio.run(consume, backend=backend) == b"mapped"


def test_a_route_names_the_announced_address_to_clients_that_do_not_know_better(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--announce", "delay.example:30801") as server, Client(server.address) as client:
        (node,) = client.route(subject="orders").nodes
        assert (node.address, node.here) == (server.address, True)
        host, _, port = server.address.rpartition(":")
        connection = SocketConnection((host, int(port)), 60.0, no_notice)
        reply = connection.exchange(1, encode_request(1, ROUTE, {"subject": "orders"}), 60.0)
        connection.close()
        assert reply.result is not None and reply.result["nodes"][0]["address"] == "delay.example:30801"
