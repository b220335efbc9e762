"""A network or a server that falls silent while a request waits."""

from __future__ import annotations

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer
from delayserver.client.connections import stream_connection
from delayserver.client.consuming import consumer
from delayserver.protocol.errors import ConnectionLost, RequestTimedOut
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import FakeServer, Garbage, Wait

FOR_EVER = Garbage(b"")


@on_each_loop
async def test_a_long_pull_ends_when_the_server_answers_no_ping(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "SILENCE_S", 0.05)
    server.misbehave("pull", FOR_EVER)
    async with AsyncClient(server.address, timeout_s=0.5, retries=0) as client:
        server.misbehave("ping", *[FOR_EVER] * 100)
        with pytest.raises(ConnectionLost, match="ping"):
            await client.pull("a", "g", wait_s=600)


@on_each_loop
async def test_a_server_that_answers_pings_may_hold_a_pull_back(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "SILENCE_S", 0.05)
    server.misbehave("pull", Wait())
    async with AsyncClient(server.address) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.pull, "a", "g", 1, 600)
        while server.count("ping") < 4:
            await anyio.sleep(0.01)
        assert server.connections == 1
        tasks.cancel_scope.cancel()


def test_a_pull_without_a_reply_fails_once_after_its_wait(server: FakeServer) -> None:
    server.misbehave("pull", *[FOR_EVER] * 10)
    with Client(server.address, timeout_s=0.2) as client:
        with pytest.raises(RequestTimedOut):
            client.pull("a", "g", wait_s=0.2)
        assert server.count("pull") == 1


@on_each_loop
async def test_a_consumer_asks_for_the_route_as_soon_as_a_node_fails(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "ROUTE_INTERVAL_S", 1000.0)
    with anyio.fail_after(100):
        with FakeServer() as before:
            server.nodes = [before.address]
            async with AsyncClient(server.address) as client, Consumer(client, "a", "g", wait_s=0.05) as deliveries:
                assert deliveries.nodes == [before.address]
                with FakeServer() as after:
                    server.nodes = [after.address]
                    before.close()
                    while not after.count("pull"):
                        await anyio.sleep(0.02)
