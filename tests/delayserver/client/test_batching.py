"""Batchers and what runs beside them: callbacks of futures, flushes of others, blocks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from delayserver.client import AsyncClient, Client, Handle, SendResult
from delayserver.protocol.errors import ConnectionLost
from tests.delayserver.client.fake_server import FakeServer, Garbage, Late


def assert_ends(use: Callable[[], None]) -> None:
    """It runs in a thread of its own, which a batcher that waits for itself does not take along."""
    done = threading.Event()

    def run() -> None:
        use()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(10), "the batcher waits for itself"


def test_a_callback_may_send_on_a_full_queue(server: FakeServer) -> None:
    server.misbehave("send", Late(0.2))
    client = Client(server.address)
    batcher = client.batcher("a", batch_messages_max=1, linger_ms=0, pending_messages_max=1)
    futures: list[Future[SendResult]] = []

    def send_two(_: Future[SendResult]) -> None:
        futures.extend(batcher.send(body, due_ms=1) for body in (b"2", b"3"))

    def use() -> None:
        with client, batcher:
            batcher.send(b"1", due_ms=1).add_done_callback(send_two)

    assert_ends(use)
    assert [future.result(timeout=0).sequence for future in futures] == [1, 2]
    assert [stored.body for stored in server.messages] == [b"1", b"2", b"3"]


def test_a_callback_that_flushes_is_told_that_it_cannot(server: FakeServer) -> None:
    server.misbehave("send", Late(0.2))
    client = Client(server.address)
    batcher = client.batcher("a", linger_ms=0)
    told: list[str] = []

    def flush(_: Future[SendResult]) -> None:
        try:
            batcher.flush()
        except RuntimeError as error:
            told.append(str(error))

    def use() -> None:
        with client, batcher:
            batcher.send(b"", due_ms=1).add_done_callback(flush)

    assert_ends(use)
    assert told
    assert "callback" in told[0]


def test_after_a_flush_every_future_is_resolved(server: FakeServer) -> None:
    with Client(server.address) as client, client.batcher("a", linger_ms=1000) as batcher:
        futures = [batcher.send(b"", due_ms=number) for number in range(3)]
        # The first one keeps the others waiting.
        futures[0].add_done_callback(lambda _: time.sleep(0.2))
        batcher.flush()
        assert [future.result(timeout=0).due_ms for future in futures] == [0, 1, 2]


def test_a_task_of_asyncio_that_is_cancelled_abandons_its_batcher(server: FakeServer) -> None:
    server.misbehave("send", Garbage(b""))
    handles: list[Handle] = []

    async def use(client: AsyncClient) -> None:
        async with client.batcher("a", linger_ms=0) as batcher:
            handles.append(await batcher.send(b"", due_ms=1))
            await asyncio.sleep(600)

    async def main() -> None:
        async with AsyncClient(server.address, timeout_s=600) as client:
            task = asyncio.create_task(use(client))
            while not server.count("send"):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            assert task.cancelled()
            with pytest.raises(ConnectionLost):
                handles[0].result()

    asyncio.run(main())
