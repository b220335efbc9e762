"""The asynchronous client on trio and on asyncio: many requests on one connection, and cancellation."""

from __future__ import annotations

import anyio
import pytest

from delayserver.client import AsyncClient
from delayserver.protocol.errors import (
    ConnectionLost,
    MalformedFrame,
    RequestTimedOut,
)
from delayserver.protocol.frames import encode_frame
from tests.delayserver.client.both import connection_of, on_each_loop, unanswered
from tests.delayserver.client.fake_server import SERVER_ID, Drop, FakeServer, Garbage, Late, Swap, Wait


@on_each_loop
async def test_a_pull_that_is_cancelled_while_it_waits_ends_at_the_server(server: FakeServer) -> None:
    async with AsyncClient(server.address) as client:
        server.misbehave("pull", Wait())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.pull, "s", "g", 1, 30.0)
            while not server.count("pull"):
                await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
        await client.ping()
    (pull,) = [request for request in server.requests if request.operation == "pull"]
    (ended,) = [request for request in server.requests if request.operation == "cancel_wait"]
    assert ended.arguments == {"id": pull.id}


@on_each_loop
async def test_replies_out_of_order_find_their_requests(server: FakeServer) -> None:
    server.misbehave("send", Swap(), Late(0.0), Swap(), Late(0.0))

    async def send(due_ms: int) -> None:
        assert (await client.send("a", b"", due_ms=due_ms)).due_ms == due_ms

    async with AsyncClient(server.address) as client, anyio.create_task_group() as tasks:
        for due_ms in range(40):
            tasks.start_soon(send, due_ms)
    assert sorted(stored.due_ms for stored in server.messages) == list(range(40))
    assert server.connections == 1


@on_each_loop
async def test_all_requests_in_flight_survive_a_lost_connection_exactly_once(server: FakeServer) -> None:
    async def send(due_ms: int) -> None:
        assert (await client.send("a", b"", due_ms=due_ms)).due_ms == due_ms

    async with AsyncClient(server.address) as client:
        server.misbehave("send", *[Late(0.0)] * 20, Drop(), *[Late(0.0)] * 20, Drop(reply_bytes=9))
        async with anyio.create_task_group() as tasks:
            for due_ms in range(60):
                tasks.start_soon(send, due_ms)
    kept = [stored.due_ms for stored in server.messages if stored.outcome == "pending"]
    assert sorted(kept) == list(range(60))


@on_each_loop
async def test_a_cancelled_call_leaves_the_connection_whole(server: FakeServer) -> None:
    async with AsyncClient(server.address) as client:
        server.misbehave("send", Late(1.0))
        with anyio.move_on_after(0.05) as scope:
            await client.send("a", bytes(100_000), due_ms=1)
        assert scope.cancelled_caught
        assert unanswered(client) == 0
        assert (await client.send("a", b"", due_ms=2)).due_ms == 2
    assert server.connections == 1


@on_each_loop
async def test_cancelling_the_block_leaves_no_task_and_no_socket(server: FakeServer) -> None:
    server.misbehave("status", Garbage(b""))
    async with anyio.create_task_group() as others:

        async def cancel_when_asked() -> None:
            while not server.count("status"):
                await anyio.sleep(0.005)
            scope.cancel()

        others.start_soon(cancel_when_asked)
        with anyio.CancelScope() as scope:
            async with AsyncClient(server.address) as client:
                await client.status()
    assert scope.cancelled_caught
    with pytest.raises(RuntimeError, match="async with"):
        await client.ping()


@on_each_loop
async def test_a_slow_reply_does_not_cost_the_others_their_connection(server: FakeServer) -> None:
    async with AsyncClient(server.address, timeout_s=1.0, retries=0) as client:

        async def time_out() -> None:
            with pytest.raises(RequestTimedOut):
                await client.lookup(f"{SERVER_ID}-000000000001-000000000000")

        server.misbehave("lookup", Garbage(b""))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(time_out)
            await anyio.sleep(0.1)
            assert await client.ping() > 0
        assert await client.ping() > 0
    assert server.connections == 1


@on_each_loop
async def test_requests_in_flight_beside_a_malformed_one_are_retried(server: FakeServer) -> None:
    async with AsyncClient(server.address) as client, anyio.create_task_group() as tasks:

        async def send() -> None:
            assert (await client.send("a", b"", due_ms=1)).due_ms == 1

        server.misbehave("send", Garbage(b""))
        tasks.start_soon(send)
        while not server.messages:
            await anyio.sleep(0.01)
        malformed = encode_frame([2**62, "send", {"messages": [{1: 2}]}])
        with pytest.raises(ConnectionLost, match="malformed_frame") as raised:
            await connection_of(client).exchange(2**62, malformed, 5.0)
        assert isinstance(raised.value.__cause__, MalformedFrame)
    assert [stored.outcome for stored in server.messages] == ["pending", "deduplicated"]


@on_each_loop
async def test_calls_that_wait_for_one_attempt_to_connect_share_its_failure(server: FakeServer) -> None:
    async def time_out(client: AsyncClient) -> None:
        with pytest.raises(RequestTimedOut):
            await client.ping()

    async with AsyncClient(server.address, timeout_s=1.0, retries=0) as client:
        connection = connection_of(client)
        server.misbehave("hello", Garbage(b""), Garbage(b""))
        server.drop_connections()
        while not connection.closed:
            await anyio.sleep(0.01)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(time_out, client)
        assert server.connections == 2
        # Whoever comes later makes an attempt of its own.
        await time_out(client)
        assert await client.ping() > 0
    assert server.connections == 4
