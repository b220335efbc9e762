"""The consumer pulls from all nodes of a group, through one address, on trio and on asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer
from delayserver.client.consuming import consumer, node_pulling
from delayserver.protocol.columns import I64, unpack_column
from delayserver.protocol.errors import ConnectionLost, NotRouted, UnknownOperation
from delayserver.protocol.schema.node_routes import Node, Route
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import Drop, Fail, FakeServer, Garbage, Late


def given_back(server: FakeServer) -> list[list[int]]:
    """The deliveries of each nack."""
    nacks = [request.arguments for request in server.requests if request.operation == "nack"]
    return [unpack_column(nack["deliveries"], nack["count"], I64, "deliveries").tolist() for nack in nacks]


@on_each_loop
async def test_deliveries_of_every_node_arrive_and_are_acked_where_they_came_from() -> None:
    with FakeServer() as entry, FakeServer() as first, FakeServer() as second:
        entry.nodes = [first.address, second.address]
        first.misbehave("pull", Drop())
        for name, node in (("first", first), ("second", second)):
            with Client(node.address) as sender:
                sender.send_columns("a", 1, [f"{name} {number}".encode() for number in range(3)])
        bodies = []
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


@on_each_loop
async def test_a_consumer_raises_at_once_for_a_subject_without_a_route(server: FakeServer) -> None:
    server.misbehave("route", Fail(NotRouted("no route covers it")))
    with pytest.raises(NotRouted):
        async with AsyncClient(server.address) as client, Consumer(client, "a", "g"):
            pass


@on_each_loop
async def test_an_error_of_the_block_passes_by_unwrapped(server: FakeServer) -> None:
    with pytest.raises(KeyError):
        async with AsyncClient(server.address) as client, Consumer(client, "a", "g"):
            raise KeyError


@on_each_loop
async def test_messages_in_hand_are_acked_after_the_connection_was_lost(server: FakeServer) -> None:
    # All attempts of the second pull fail.
    server.misbehave("pull", Late(0), *[Drop(after_effect=False)] * 4)
    with Client(server.address) as sender:
        sender.send("a", b"", due_ms=1)
    async with AsyncClient(server.address) as client, Consumer(client, "a", "g", wait_s=0) as deliveries:
        received = await anext(deliveries)
        while server.count("pull") < 5:
            await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        assert await received.ack()
    assert [message.acked for message in server.messages] == [True]


@on_each_loop
async def test_a_node_that_is_away_at_first_is_named_and_pulled_from_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_pulling, "PAUSE_AFTER_ERROR_S", 0.01)
    with FakeServer() as entry, FakeServer() as node:
        entry.nodes = [node.address]
        with Client(node.address) as sender:
            sender.send("a", b"", due_ms=1)
        node.misbehave("hello", *[Drop(after_effect=False)] * 12)
        async with AsyncClient(entry.address) as client, Consumer(client, "a", "g", wait_s=0) as deliveries:
            assert await (await anext(deliveries)).ack()
        # Once, though it is tried again and again.
        (record,) = [record for record in caplog.records if record.name == "delayserver.client"]
        assert node.address in record.getMessage()
        assert "connection" in record.getMessage()


@pytest.mark.parametrize("cancelled", [False, True])
@on_each_loop
async def test_messages_that_were_not_handed_out_are_given_back_at_the_end(server: FakeServer, cancelled: bool) -> None:
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""] * 10)
    with anyio.CancelScope() as scope:
        async with AsyncClient(server.address) as client, Consumer(client, "a", "g", wait_s=0) as deliveries:
            assert await (await anext(deliveries)).ack()
            if cancelled:
                scope.cancel()
                await anyio.sleep_forever()
    assert given_back(server) == [list(range(1, 10))]


@on_each_loop
async def test_the_end_does_not_wait_long_for_a_node_that_takes_nothing_back(server: FakeServer) -> None:
    server.misbehave("nack", *[Garbage(b"")] * 4)
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""] * 2)
    with anyio.fail_after(30):  # its own client would wait for 10 s, four times
        async with AsyncClient(server.address) as client, Consumer(client, "a", "g", wait_s=0) as deliveries:
            await anext(deliveries)
    assert server.count("nack") == 1


@on_each_loop
async def test_a_consumer_gives_messages_that_a_busy_caller_leaves_waiting_back_once(server: FakeServer) -> None:
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""] * 3)
    async with (
        AsyncClient(server.address) as client,
        Consumer(client, "a", "g", max_messages=3, wait_s=0, ack_timeout_s=0.4) as deliveries,
    ):
        await anext(deliveries)
        while not server.count("nack"):
            await anyio.sleep(0.01)
        assert given_back(server)[0] == [1, 2]
        # What the next pull brings is not waited for either; from then on nothing is pulled until the caller asks.
        while server.count("nack") < 2:
            await anyio.sleep(0.01)
        await anyio.sleep(0.5)
        assert server.count("nack") == server.count("pull") == 2
        await anext(deliveries)
        assert server.count("pull") > 2


@on_each_loop
async def test_the_end_does_not_wait_for_a_node_that_joins_at_that_moment(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "ROUTE_INTERVAL_S", 0.0)
    waiting, answer = anyio.Event(), anyio.Event()

    class LateRoute(AsyncClient):
        """The second route comes in the step in which the block ends, with another node."""

        asked = False

        async def route(self, *_arguments: Any, **_named: Any) -> Route:
            if not self.asked:
                self.asked = True
                return Route("g", [Node(server.address, 1)])
            waiting.set()
            await answer.wait()
            return Route("g", [Node(server.address, 1), Node("127.0.0.1:1", 1)])

    waiting, answer = anyio.Event(), anyio.Event()
    async with LateRoute(server.address) as client, Consumer(client, "a", "g", wait_s=0):
        await waiting.wait()
        answer.set()


def extended(server: FakeServer) -> set[int]:
    """The deliveries that were extended."""
    asked = [request.arguments for request in server.requests if request.operation == "extend"]
    return {one for each in asked for one in unpack_column(each["deliveries"], each["count"], I64, "d").tolist()}


@on_each_loop
async def test_a_consumer_extends_the_leases_of_deliveries_that_its_caller_keeps(server: FakeServer) -> None:
    server.leases = True
    server.misbehave("extend", Drop())  # the next look tries again
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""] * 4)
    async with (
        AsyncClient(server.address) as client,
        Consumer(client, "a", "g", wait_s=0, ack_timeout_s=6) as deliveries,
    ):
        await anext(deliveries)
        await (await anext(deliveries)).ack()
        kept = [await anext(deliveries), await anext(deliveries)]
        while server.count("extend") < 3:
            await anyio.sleep(0.01)
        assert extended(server) == {each.delivery.delivery for each in kept}


@pytest.mark.parametrize("wanted", [True, False])
@on_each_loop
async def test_a_node_without_extend_is_asked_once_and_none_if_no_extension_is_wanted(
    server: FakeServer, wanted: bool
) -> None:
    server.leases = True
    server.misbehave("extend", Fail(UnknownOperation("'extend'")))
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""])
    async with (
        AsyncClient(server.address) as client,
        Consumer(client, "a", "g", wait_s=0, ack_timeout_s=6, extend_max_s=3600 if wanted else 0) as deliveries,
    ):
        received = await anext(deliveries)
        received.held.extend(anyio.current_time() + 3.9)  # it is time
        while server.count("extend") < wanted:
            await anyio.sleep(0.01)
        received.held.extend(anyio.current_time() + 3.9)  # it would be time again
        await anyio.sleep(0.8)
        assert server.count("extend") == wanted
        await received.ack()
