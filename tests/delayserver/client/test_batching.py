"""Batchers and what runs beside them: callbacks of futures, flushes of others, blocks that are cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import pytest

from delayserver.client import AsyncClient, Batcher, Client, Handle, SendResult
from delayserver.client.asynchronous import batching as async_batching
from delayserver.client.blocking import batching
from delayserver.client.calls.batch_queue import BatchQueue
from delayserver.protocol.errors import ConnectionLost, RequestTimedOut
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import FakeServer, Garbage, Late


def assert_ends(use: Callable[[], None]) -> None:
    """It runs in a thread of its own, which a batcher that waits for itself does not take along."""
    done = threading.Event()

    def run() -> None:
        use()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(60), "the batcher waits for itself"


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


def test_a_callback_that_flushes_gets_an_error(server: FakeServer) -> None:
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
    handles: list[Handle[SendResult]] = []

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
            await asyncio.wait([task], timeout=60)
            assert task.cancelled()
            with pytest.raises(ConnectionLost):
                handles[0].result()

    asyncio.run(main())


@on_each_loop
async def test_a_task_that_hands_over_many_messages_lets_other_tasks_run(server: FakeServer) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0)
            turns += 1

    async with AsyncClient(server.address) as client, anyio.create_task_group() as others:
        others.start_soon(count_turns)
        async with client.batcher("a") as batcher:
            await anyio.sleep(0)
            before = turns
            for number in range(1000):
                await batcher.send(b"", due_ms=number)
            assert turns - before >= 10
            with anyio.CancelScope() as scope:
                scope.cancel()
                for number in range(1000):
                    await batcher.send(b"cancelled", due_ms=number)
            assert scope.cancelled_caught
        others.cancel_scope.cancel()
    handed_over = [stored.body for stored in server.messages]
    assert handed_over.count(b"") == 1000
    assert handed_over.count(b"cancelled") < 1000


def hand_over_many(batcher: Batcher[SendResult], server: FakeServer) -> list[Future[SendResult]]:
    """Twenty batches of ten, the first of which is under way at a server that does not answer it."""
    server.misbehave("send", Garbage(b""))
    futures = [batcher.send(b"", due_ms=number) for number in range(200)]
    while not server.count("send"):
        time.sleep(0.01)
    return futures


def assert_abandoned(futures: list[Future[SendResult]], server: FakeServer) -> None:
    assert {type(future.exception(timeout=0)) for future in futures} == {ConnectionLost}
    assert server.count("send") == 1


def test_an_error_of_the_block_abandons_unanswered_messages_of_a_hanging_server_in_time(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "DRAIN_S", 0.2)
    futures: list[Future[SendResult]] = []
    with Client(server.address, timeout_s=60, retries=0) as client:
        with pytest.raises(KeyError), client.batcher("a", batch_messages_max=10) as batcher:
            futures = hand_over_many(batcher, server)
            raise KeyError
        assert_abandoned(futures, server)


@on_each_loop
async def test_an_error_of_an_asynchronous_block_abandons_unanswered_messages_in_time(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_batching, "DRAIN_S", 0.2)
    server.misbehave("send", Garbage(b""))
    handles: list[Handle[SendResult]] = []
    async with AsyncClient(server.address, timeout_s=600, retries=0) as client:
        with anyio.fail_after(30), pytest.raises(KeyError):
            async with client.batcher("a", batch_messages_max=10) as batcher:
                handles.extend([await batcher.send(b"", due_ms=number) for number in range(20)])
                raise KeyError
    for handle in handles:
        with pytest.raises(ConnectionLost):
            handle.result()
    assert server.count("send") == 1


def test_one_interrupt_ends_a_block_that_waits_for_its_last_answers(server: FakeServer) -> None:
    futures: list[Future[SendResult]] = []

    def interrupt() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    with Client(server.address, timeout_s=60, retries=0) as client:
        with pytest.raises(KeyboardInterrupt), client.batcher("a", batch_messages_max=10) as batcher:
            futures = hand_over_many(batcher, server)
            interrupter.start()
        interrupter.join()
        assert_abandoned(futures, server)


def test_a_flush_waits_no_longer_than_its_timeout(server: FakeServer) -> None:
    server.misbehave("send", Late(1.0))
    with Client(server.address) as client, client.batcher("a") as batcher:
        future = batcher.send(b"", due_ms=1)
        with pytest.raises(RequestTimedOut, match="1 messages"):
            batcher.flush(timeout_s=0.1)
        assert not future.done()
        batcher.flush(timeout_s=30)
        assert future.result(timeout=0).due_ms == 1


def test_a_forked_process_leaves_the_block_of_its_parent_at_once(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked, holds = threading.Event(), threading.Event()
    with Client(server.address) as client, client.batcher("a", linger_ms=60_000) as batcher:
        future = batcher.send(b"", due_ms=1)
        add = BatchQueue.add

        def add_slowly(queue: BatchQueue[Any], entry: Any, lane: int) -> bool:
            holds.set()
            forked.wait()  # with the batcher's lock
            return add(queue, entry, lane)

        monkeypatch.setattr(BatchQueue, "add", add_slowly)
        holder = threading.Thread(target=batcher.send, args=(b"",), kwargs={"due_ms": 2})
        holder.start()
        holds.wait()
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends a child that waits for a thread or a lock that it has not
            refused = 0
            for use in (batcher.flush, lambda: batcher.send(b"", due_ms=1)):
                try:
                    use()
                except RuntimeError as error:
                    refused += "forked from" in str(error)
            batcher.__exit__(None, None, None)
            os._exit(refused)
        forked.set()
        holder.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    # The parent's connection is whole.
    assert future.result(timeout=0).due_ms == 1
    assert [(stored.due_ms, stored.outcome) for stored in server.messages] == [(1, "pending"), (2, "pending")]
    assert server.connections == 2
