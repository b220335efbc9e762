"""A slow consumer."""

from __future__ import annotations

import anyio

from delayserver.client import AsyncClient, Client, Consumer
from delayserver.client.consuming.consumer import ACK_TIMEOUT_S
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import FakeServer


@on_each_loop
async def test_a_slow_consumer_is_given_nothing_whose_ack_timeout_is_over(server: FakeServer) -> None:
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b"%d" % number for number in range(12)])
    bodies: set[bytes] = set()
    with anyio.fail_after(120):
        async with (
            AsyncClient(server.address) as client,
            Consumer(client, "a", "g", wait_s=0, ack_timeout_s=1.2) as all_,
        ):
            async for received in all_:
                await anyio.sleep(0.24)
                # The server gives a message again until it is acked, so only the first ack counts.
                if await received.ack():
                    bodies.add(received.delivery.body)
                if len(bodies) == 12:
                    break
    assert server.count("nack") >= 1
    sizes = [request.arguments["max_messages"] for request in server.requests if request.operation == "pull"]
    assert min(sizes) < sizes[0] == 100


@on_each_loop
async def test_a_consumer_asks_for_the_ack_timeout_that_it_counts_with(server: FakeServer) -> None:
    with Client(server.address) as sender:
        sender.send("a", b"", due_ms=1)
    async with AsyncClient(server.address) as client, Consumer(client, "a", "g") as deliveries:
        await anext(deliveries)
    pull = next(request.arguments for request in server.requests if request.operation == "pull")
    assert pull["ack_timeout_ms"] == ACK_TIMEOUT_S * 1000
