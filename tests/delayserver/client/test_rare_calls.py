"""What a client meets now and then: lost answers, forks, cancelled blocks, other tasks, strange values."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from delayserver.client import AsyncBatcher, AsyncClient, Client, Consumer, Handle, SendResult
from delayserver.protocol.errors import (
    ConnectionLost,
    InvalidArgument,
    MessageIdInvalid,
    PropertiesInvalid,
    SubjectInvalid,
)
from delayserver.protocol.limits import LIST_ITEMS_MAX
from tests.delayserver.cli.conftest import Server, run, serving
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import Fail, FakeServer, Garbage, Late


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data") as running:
        yield running


def status_of_a_fork_that_sends(client: Client) -> int:
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that waits for a lock whose owner it has not
        try:
            client.send("child", b"", due_ms=1)
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_fork_while_another_thread_waits_for_its_answer_leaves_the_child_a_client_that_works(
    server: FakeServer,
) -> None:
    with Client(server.address) as client:
        server.misbehave("pull", Late(1.0))
        puller = threading.Thread(target=client.pull, args=("a", "g"))
        puller.start()
        while not server.count("pull"):
            time.sleep(0.01)
        assert status_of_a_fork_that_sends(client) == 0
        puller.join()
        assert client.send("parent", b"", due_ms=1).subject == "parent"


def test_a_forked_process_does_not_share_the_connection(server: FakeServer) -> None:
    with Client(server.address) as client:
        assert status_of_a_fork_that_sends(client) == 0
        assert client.send("parent", b"", due_ms=1).subject == "parent"
    assert server.connections == 2


def test_a_batcher_outside_its_block_or_in_a_forked_process_takes_no_message(server: FakeServer) -> None:
    client = Client(server.address)
    with pytest.raises(RuntimeError, match="with block"):
        client.batcher("a").send(b"", due_ms=1)
    with client.batcher("a") as batcher:
        child = os.fork()
        if not child:
            try:
                batcher.send(b"", due_ms=1)
            except RuntimeError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_interrupted_flush_leaves_the_lingering_as_it_was(server: FakeServer) -> None:
    server.misbehave("send", Late(2.0))

    flushed = threading.Event()

    def interrupt() -> None:
        while not server.count("send") and not flushed.is_set():  # the batch leaves for the sake of the flush alone
            time.sleep(0.01)
        time.sleep(0.1)
        if not flushed.is_set():  # otherwise it would end the tests
            os.kill(os.getpid(), signal.SIGINT)

    with Client(server.address) as client, client.batcher("a", linger_ms=60_000) as batcher:
        first = batcher.send(b"", due_ms=1)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                batcher.flush()
        finally:
            flushed.set()
        interrupter.join()
        first.result(timeout=30)
        batcher.send(b"", due_ms=2)
        time.sleep(0.2)
        assert server.count("send") == 1, "the second message lingers"


@on_each_loop
async def test_cancelling_the_block_of_an_async_batcher_answers_its_handles(server: FakeServer) -> None:
    server.misbehave("send", Garbage(b""))
    lost: list[bytes] = []
    async with AsyncClient(server.address) as client, anyio.create_task_group() as others:

        async def wait_for(handle: Handle[SendResult]) -> None:
            with pytest.raises(ConnectionLost):
                await handle
            lost.append(
                bytes(handle.message.body, "utf8") if isinstance(handle.message.body, str) else handle.message.body
            )

        async def send_one_more(batcher: AsyncBatcher[SendResult]) -> None:
            with pytest.raises(RuntimeError):
                await batcher.send(b"too much", due_ms=1)
            lost.append(b"too much")

        with anyio.CancelScope() as scope:
            async with client.batcher("a", batch_messages_max=1, linger_ms=0, pending_messages_max=2) as batcher:
                for body in (b"under way", b"waiting"):
                    others.start_soon(wait_for, await batcher.send(body, due_ms=1))
                others.start_soon(send_one_more, batcher)
                while not server.count("send"):
                    await anyio.sleep(0.01)
                scope.cancel()
                await anyio.sleep_forever()
        while len(lost) < 3:
            await anyio.sleep(0.01)


@on_each_loop
async def test_a_consumer_raises_the_lasting_refusal_of_its_nodes(server: FakeServer) -> None:
    server.misbehave("pull", *[Fail(InvalidArgument("max_messages lies within 1 and 16384"))] * 5)
    async with AsyncClient(server.address) as client, Consumer(client, "a", "g", max_messages=20_000) as found:
        with pytest.raises(InvalidArgument, match="max_messages"):
            await anext(found)


@on_each_loop
async def test_leaving_the_block_while_another_task_connects_again_does_not_hang(server: FakeServer) -> None:
    server.misbehave("hello", Late(0), Late(0.5))

    async def ping(client: AsyncClient) -> None:
        with contextlib.suppress(ConnectionLost, RuntimeError):
            await client.ping()

    async with anyio.create_task_group() as others:
        async with AsyncClient(server.address) as client:
            server.drop_connections()
            await anyio.sleep(0.1)
            others.start_soon(ping, client)
            await anyio.sleep(0.1)


@on_each_loop
async def test_wrong_properties_do_not_fail_the_requests_of_other_tasks(real_server: Server) -> None:
    async with AsyncClient(real_server.address, retries=0) as client, anyio.create_task_group() as others:
        waiting = anyio.Event()

        async def pull() -> None:
            waiting.set()
            await client.pull("a", "g", wait_s=60.0)
            raise AssertionError("the pull ended")

        others.start_soon(pull)
        await waiting.wait()
        await anyio.sleep(0.2)
        with pytest.raises(PropertiesInvalid):
            await client.send("a", b"", delay_ms=60_000, properties={1: "x"})  # type: ignore[dict-item]
        sent = await client.send("a", b"", delay_ms=60_000)
        with pytest.raises(PropertiesInvalid):
            await client.reschedule(sent.receipt, delay_ms=1, properties={1: "x"})  # type: ignore[dict-item]
        with pytest.raises(InvalidArgument):
            await client.send("a", {1: 2}, delay_ms=60_000)  # type: ignore[arg-type]
        with pytest.raises(SubjectInvalid):
            await client.send({1: 2}, b"", delay_ms=60_000)  # type: ignore[arg-type]
        with pytest.raises(MessageIdInvalid):
            await client.send("a", b"", delay_ms=60_000, message_id={1: 2})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await client.send("a", b"", delay_ms=60_000, expires_ms={1: 2})  # type: ignore[arg-type]
        too_many = {str(number): "" for number in range(LIST_ITEMS_MAX + 1)}
        with pytest.raises(PropertiesInvalid):
            await client.send("a", b"", delay_ms=60_000, properties=too_many)
        with pytest.raises(PropertiesInvalid):
            await client.reschedule(sent.receipt, delay_ms=1, properties=too_many)
        too_large = {str(number): "" for number in range(LIST_ITEMS_MAX)}
        with pytest.raises(PropertiesInvalid):
            await client.send("a", b"", delay_ms=60_000, properties=too_large)
        others.cancel_scope.cancel()


def test_the_first_call_may_be_a_long_pull_from_a_server_with_short_waits(tmp_path: Path) -> None:
    settings = ("--set", "broker.wait_ms_max=100")
    with serving(tmp_path / "data", *settings) as running, contextlib.closing(Client(running.address)) as client:
        assert client.pull("a", "g", wait_s=0.3) == []


@on_each_loop
async def test_a_host_that_is_no_name_is_a_connection_error() -> None:
    with pytest.raises(ConnectionLost):
        async with AsyncClient("a..b:1", retries=0):
            pass
    done = run("status", "--server", "a..b:1")
    assert done.code == 1
    assert done.err.startswith("Error: no server answers: cannot connect to a..b:1")
