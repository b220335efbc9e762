"""Connections share work by its cost: small requests go between the slices of large ones, and none waits for many."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any

import trio

from delayserver.config.settings import Settings, StorageSettings
from delayserver.front.connection import Connection, QuickHandler
from delayserver.net.transport import SocketListener
from delayserver.protocol.frames import FrameDecoder, RequestFrame, decode_reply, encode_request
from delayserver.runtime.fair_turns import REQUEST_US, SLICE_ITEMS, STEP_US
from delayserver.server.delay_server import DelayServer
from tests.fakes.host import Boot, Client

RECEIPTS = {"receipts": ["r"] * 2_000}


def counted_pings(server: DelayServer) -> list[int]:
    """The numbers of the connections whose `ping` is answered, as it happens."""
    order: list[int] = []
    real: QuickHandler = server.handlers.quick["ping"]

    def ping(connection: Connection, request: RequestFrame) -> None:
        order.append(connection.peer.number)
        real(connection, request)

    server.handlers.quick["ping"] = ping
    return order


async def turns(server: DelayServer, count: int) -> None:
    """Until so many turns were given. By passes of the event loop: simulated time stands still while there is work."""
    while server.fair_turns.taken < count:
        await trio.lowlevel.checkpoint()


async def read_all(client: Client, asked: list[int]) -> None:
    for number in asked:
        await client.reply(number)


async def test_a_small_request_waits_for_few_slices_of_large_ones(boot: Boot) -> None:
    host = boot()
    server = await host.start()
    greedy, normal = [await host.client() for _ in range(3)], await host.client()
    asked = [[await client.ask("lookup", RECEIPTS) for _ in range(10)] for client in greedy]
    await turns(server, 20)
    for _ in range(5):
        before = server.fair_turns.taken
        await normal.request("ping")
        assert server.fair_turns.taken - before <= 4
    assert server.fair_turns.taken < 30 * 2_000 // SLICE_ITEMS, "the large requests are still at work"
    for client, numbers in zip(greedy, asked, strict=True):
        await read_all(client, numbers)
    server.fair_turns.shares.check_invariants()


async def test_a_large_request_does_not_wait_for_all_of_another_connection(boot: Boot) -> None:
    host = await boot.started()
    greedy, fresh = await host.client(), await host.client()
    asked = [await greedy.ask("lookup", RECEIPTS) for _ in range(10)]
    await turns(host.server, 5)
    results = (await fresh.request("lookup", RECEIPTS))["results"]
    assert {result["error"] for result in results} == {"receipt_invalid"}
    last = await greedy.ask("ping")
    await greedy.take()
    assert last not in greedy.replies, "requests of a connection are begun in their order"
    assert len(greedy.replies) <= 3
    await read_all(greedy, asked)
    await greedy.reply(last)


async def test_a_connection_has_one_large_request_running_at_a_time(boot: Boot) -> None:
    host = boot()
    server = await host.start()
    running = running_most = 0
    real = server.parts.messages.states.find

    async def find(*arguments: Any) -> Any:
        nonlocal running, running_most
        running += 1
        running_most = max(running, running_most)
        try:
            return await real(*arguments)
        finally:
            running -= 1

    server.parts.messages.states.find = find  # type: ignore[method-assign,assignment]
    clients = [await host.client() for _ in range(2)]
    asked = [[await client.ask("lookup", RECEIPTS) for _ in range(10)] for client in clients]
    for client, numbers in zip(clients, asked, strict=True):
        await read_all(client, numbers)
    assert running_most == len(clients)
    assert server.connections.memory.used_bytes == 0


async def test_a_connection_that_ends_leaves_its_place_in_line(boot: Boot) -> None:
    host = boot()
    server = await host.start()
    greedy, normal = await host.client(), await host.client()
    await greedy.send_bytes(b"".join(encode_request(number, "ping", {}) for number in range(1, 2_000)))
    for _ in range(10):
        await greedy.ask("lookup", RECEIPTS)
    await turns(server, 2)
    assert len(server.fair_turns.shares) > 0
    greedy.transport.close()
    await host.until(lambda: host.connections == 1)
    await normal.request("ping")
    assert len(server.fair_turns.shares) == 0
    server.fair_turns.shares.check_invariants()


async def test_many_small_requests_of_one_read_are_answered_in_parts_and_in_order(boot: Boot) -> None:
    host, greedy = await boot.connected()
    server = host.server
    order = counted_pings(server)
    before = server.fair_turns.taken
    await greedy.send_bytes(b"".join(encode_request(number, "ping", {}) for number in range(1, 1_001)))
    while len(greedy.replies) < 1_000:
        await greedy.take()
    assert list(greedy.replies) == list(range(1, 1_001)) and len(order) == 1_000
    assert server.fair_turns.taken - before >= (1_000 - STEP_US // REQUEST_US) // (STEP_US // REQUEST_US)


def ask_and_wait(address: tuple[str, int]) -> socket.socket:
    """A blocking socket that is known to the server."""
    connected = socket.create_connection(address)
    connected.settimeout(20)
    return connected


def ping(connected: socket.socket) -> None:
    """One round trip."""
    connected.sendall(encode_request(1, "ping", {}))
    decoder = FrameDecoder()
    while not (payloads := decoder.feed(connected.recv(65536))):
        pass
    assert decode_reply(payloads[0]).result is not None


def test_a_client_does_not_wait_for_all_that_another_one_has_pipelined(tmp_path: Path) -> None:
    """A real server on real sockets. Both have sent before it reads, the greedy one first."""
    seen: list[int] = []

    async def both(server: DelayServer, listener: SocketListener) -> None:
        greedy, normal = [await trio.to_thread.run_sync(ask_and_wait, listener.address) for _ in range(2)]
        with greedy, normal:
            order = counted_pings(server)
            for connected in (greedy, normal):
                await trio.to_thread.run_sync(ping, connected)
            normal_number = order.pop()
            order.clear()
            # The server runs in this thread: it reads when both have sent.
            greedy.sendall(b"".join(encode_request(number, "ping", {}) for number in range(2, 3_000)))
            normal.sendall(encode_request(2, "ping", {}))
            with trio.fail_after(60):
                while normal_number not in order:
                    await trio.sleep(0.001)
            seen.append(order.index(normal_number))

    async def main() -> None:
        server = DelayServer(Settings(storage=StorageSettings(data_dir=str(tmp_path / "data"))))
        listener = SocketListener(["127.0.0.1"], 0)
        ready = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(server.run, listener, lambda _host, _port: ready.set()))
            await ready.wait()
            await both(server, listener)
            server.stop()

    trio.run(main)
    assert seen[0] <= STEP_US // REQUEST_US
