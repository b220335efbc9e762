"""A server behind a mapped port: clients reach it by an address that it does not listen on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer, Delivery, ThreadListener
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.protocol.frames import encode_request
from delayserver.protocol.operation_names import ROUTE
from tests.delayserver.cli.conftest import serving
from tests.delayserver.client.both import no_notice
from tests.delayserver.client.mapped import mapped
from tests.ports import free_port


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[str]:
    """The address of a mapped port. The server announces one at which nobody listens, as an outsider sees its own port."""
    with serving(tmp_path / "data", "--announce", f"127.0.0.1:{free_port()}") as server:
        host, _, port = server.address.rpartition(":")
        with mapped(host, int(port)) as port_here:
            yield port_here.address


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
