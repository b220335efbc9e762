"""The consumer pulls from all nodes of a group, through one address, on trio and on asyncio."""

from __future__ import annotations

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer
from delayserver.protocol.errors import ConnectionLost, NotRouted
from tests.delayserver.client.fake_server import Drop, Fail, FakeServer


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_deliveries_of_every_node_arrive_and_are_acked_where_they_came_from(backend: str) -> None:
    async def main() -> None:
        with FakeServer() as entry, FakeServer() as first, FakeServer() as second:
            entry.nodes = [first.address, second.address]
            first.misbehave("pull", Drop())
            for name, node in (("first", first), ("second", second)):
                with Client(node.address) as sender:
                    sender.send_columns("a", 1, [f"{name} {number}".encode() for number in range(3)])
            bodies = []
            with anyio.fail_after(10):
                async with AsyncClient(entry.address) as client, Consumer(client, "a", "g", wait_s=0) as deliveries:
                    async for received in deliveries:
                        # A node gives a message again until it is acked, so only the first time counts.
                        if received.delivery.body not in bodies:
                            bodies.append(received.delivery.body)
                            await received.ack()
                        if len(bodies) == 6:
                            break
                    assert deliveries.nodes == sorted(entry.nodes)
                with pytest.raises(ConnectionLost):
                    await received.ack()
            assert sorted(bodies) == sorted(f"{n} {i}".encode() for n in ("first", "second") for i in range(3))
            assert all(message.acked for node in (first, second) for message in node.messages)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_subject_without_a_route_is_told_at_once(server: FakeServer, backend: str) -> None:
    server.misbehave("route", Fail(NotRouted("no route covers it")))

    async def main() -> None:
        with anyio.fail_after(5), pytest.raises(NotRouted):
            async with AsyncClient(server.address) as client, Consumer(client, "a", "g"):
                pass

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_an_error_of_the_block_passes_by_unwrapped(server: FakeServer, backend: str) -> None:
    async def main() -> None:
        with anyio.fail_after(5), pytest.raises(KeyError):
            async with AsyncClient(server.address) as client, Consumer(client, "a", "g"):
                raise KeyError

    anyio.run(main, backend=backend)
