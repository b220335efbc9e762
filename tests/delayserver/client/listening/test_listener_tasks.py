"""Listeners inside an event loop: cancelled programs, errors of blocks, odd cancellations, and what is refused at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from delayserver import embedded
from delayserver.client import (
    AsyncClient,
    Client,
    Delivery,
    Handling,
    Hooks,
    Listener,
    ListenerSettings,
    ThreadListener,
)
from delayserver.client.listening.subscription import SUBJECTS_MAX
from delayserver.protocol.columns import I64, unpack_column
from delayserver.protocol.errors import InvalidArgument, NotRouted, PositionOutOfRange, UnknownOperation
from tests.delayserver.cli.conftest import ROOT
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import Drop, Fail, FakeServer, Garbage


@pytest.fixture
def leasing() -> Iterator[FakeServer]:
    with FakeServer(leases=True) as server:
        yield server


def fill(server: FakeServer, count: int, subject: str = "a") -> None:
    with Client(server.address) as client:
        client.send_columns(subject, 1, [b"%d" % number for number in range(count)])


def settled(server: FakeServer, operation: str) -> list[list[int]]:
    """The deliveries of each request."""
    found = [request.arguments for request in server.requests if request.operation == operation]
    return [unpack_column(each["deliveries"], each["count"], I64, "deliveries").tolist() for each in found]


async def ignore(_: Delivery) -> None:
    pass


@on_each_loop
async def test_a_cancelled_program_lets_its_handlers_end_and_flushes_their_acks(leasing: FakeServer) -> None:
    fill(leasing, 3)
    ended = []
    begun = threading.Event()
    listener = Listener("g", concurrency=1)

    @listener("a")
    async def handle(message: Delivery) -> None:
        begun.set()
        await anyio.sleep(0.1)
        ended.append(message.body)

    with anyio.CancelScope() as scope:
        async with AsyncClient(leasing.address) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run, client)
            while not begun.is_set():
                await anyio.sleep(0.005)
            scope.cancel()
    assert scope.cancelled_caught
    assert ended == [b"0"]
    assert settled(leasing, "ack") == [[0]]
    assert settled(leasing, "nack") == [[1, 2]]


@on_each_loop
async def test_an_error_of_the_block_passes_by_unwrapped_after_a_clean_stop(server: FakeServer) -> None:
    fill(server, 2)
    listener = Listener("g")
    listener("a")(ignore)
    with pytest.raises(KeyError, match="mine"):
        async with AsyncClient(server.address) as client, listener.running(client):
            while not server.count("pull"):
                await anyio.sleep(0.005)
            raise KeyError("mine")


@on_each_loop
async def test_handlers_that_do_not_wait_let_the_program_go_on(server: FakeServer) -> None:
    fill(server, 3000)
    seen = 0
    listener = Listener("g", concurrency=2)

    @listener("a")
    async def handle(_: Delivery) -> None:
        nonlocal seen
        seen += 1

    async with AsyncClient(server.address) as client, listener.running(client):
        while seen < 3000:
            await anyio.sleep(0)


def test_a_cancellation_that_a_handler_brings_upon_itself_is_a_failure_like_others(server: FakeServer) -> None:
    fill(server, 2)
    failed: list[Handling] = []

    async def main() -> None:
        listener = Listener("g", hooks=Hooks(failed=failed.append))
        seen = []

        @listener("a")
        async def handle(message: Delivery) -> None:
            seen.append(message.body)
            if message.body == b"0" and len(seen) <= 2:
                other = asyncio.ensure_future(asyncio.sleep(10))
                other.cancel()
                await other

        async with AsyncClient(server.address) as client, listener.running(client) as running:
            while running.stats[0].nacked < 1 or running.stats[0].acked < 1:
                await anyio.sleep(0.005)

    anyio.run(main, backend="asyncio")
    assert isinstance(failed[0].error, asyncio.CancelledError)


@on_each_loop
async def test_a_handler_with_tasks_of_its_own_is_cut_off_quietly(
    leasing: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    fill(leasing, 1)
    cancelled = []
    listener = Listener("g", settings=ListenerSettings(stop_s=0.01))

    @listener("a")
    async def handle(_: Delivery) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep_forever)
        except BaseException:
            cancelled.append(True)
            raise

    async with AsyncClient(leasing.address) as client, listener.running(client) as running:
        while not running.running:
            await anyio.sleep(0.005)
    assert cancelled == [True]
    assert settled(leasing, "nack") == [[0]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_trio_nurseries_of_handlers_may_end_by_a_cancellation_too(leasing: FakeServer) -> None:
    fill(leasing, 1)

    async def main() -> None:
        listener = Listener("g", settings=ListenerSettings(stop_s=0.01))

        @listener("a")
        async def handle(_: Delivery) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()

        async with AsyncClient(leasing.address) as client, listener.running(client) as running:
            while not running.running:
                await trio.sleep(0.005)

    trio.run(main)
    assert settled(leasing, "nack") == [[0]]


@on_each_loop
async def test_acks_are_gathered_and_flushed_at_the_stop(leasing: FakeServer) -> None:
    fill(leasing, 500)
    listener = Listener("g", settings=ListenerSettings(ack_interval_s=1000))
    listener("a")(ignore)
    async with AsyncClient(leasing.address) as client, listener.running(client) as running:
        while running.stats[0].started < 500:
            await anyio.sleep(0.005)
    acks = settled(leasing, "ack")
    assert sorted(number for ack in acks for number in ack) == list(range(500))
    assert len(acks) <= 3, "the first at once, the others together"


@on_each_loop
async def test_acks_without_an_answer_are_sent_again(server: FakeServer) -> None:
    fill(server, 1)
    # The client tries four times, then the listener begins anew.
    server.misbehave("ack", *[Drop(after_effect=False)] * 5)
    listener = Listener("g")
    listener("a")(ignore)
    async with AsyncClient(server.address) as client, listener.running(client) as running:
        while not running.stats[0].acked:
            await anyio.sleep(0.005)
    assert [message.acked for message in server.messages] == [True]
    assert server.count("ack") >= 6


@on_each_loop
async def test_a_node_that_does_not_answer_at_the_end_does_not_hold_it_up(
    server: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.client.listening.subscription_run.SETTLE_S", 0.2)
    monkeypatch.setattr("delayserver.client.listening.subscription_run.END_PULLS_S", 0.1)
    fill(server, 1)
    server.misbehave("ack", *[Garbage(b"")] * 9)
    listener = Listener("g")
    listener("a")(ignore)
    async with AsyncClient(server.address) as client, listener.running(client) as running:
        while not server.count("ack"):
            await anyio.sleep(0.005)
    assert running.stats[0].acked == 0


@on_each_loop
async def test_a_subject_without_a_route_ends_the_listener(server: FakeServer) -> None:
    server.misbehave("route", Fail(NotRouted("no route covers it")))
    listener = Listener("g")
    listener("a")(ignore)
    async with AsyncClient(server.address) as client:
        with pytest.raises(NotRouted):
            await listener.run(client)


@on_each_loop
async def test_the_listener_reports_messages_that_the_node_removed_and_goes_on(
    leasing: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    gap = PositionOutOfRange("the group lagged too far", details={"first": 7, "end": 9})
    leasing.misbehave("pull", Fail(gap))
    fill(leasing, 1)
    listener = Listener("g")
    listener("a")(ignore)
    async with AsyncClient(leasing.address) as client, listener.running(client) as running:
        while not running.stats[0].acked:
            await anyio.sleep(0.005)
        assert running.stats[0].gaps == 1
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "lost messages" in record.getMessage() and "the group lagged too far" in record.getMessage()


@on_each_loop
async def test_a_pattern_needs_a_server_that_lists_subjects(server: FakeServer) -> None:
    server.misbehave("subjects", Fail(UnknownOperation("subjects")))
    listener = Listener("g")
    listener("a*")(ignore)
    async with AsyncClient(server.address) as client:
        with pytest.raises(UnknownOperation):
            await listener.run(client)


@on_each_loop
async def test_a_pattern_that_finds_too_many_subjects_ends_the_listener(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SUBJECTS_MAX > 1000
    monkeypatch.setattr("delayserver.client.listening.subscription_run.SUBJECTS_MAX", 2)
    for name in "abc":
        fill(server, 1, name)
    listener = Listener("g")
    listener("*")(ignore)
    async with AsyncClient(server.address) as client:
        with pytest.raises(InvalidArgument, match="more than 2 subjects"):
            await listener.run(client)


@on_each_loop
async def test_many_subjects_share_connections_and_each_is_pulled(server: FakeServer) -> None:
    for number in range(40):
        fill(server, 1, f"s{number}")
    seen = set()
    listener = Listener("g")

    @listener("s*")
    async def handle(message: Delivery) -> None:
        seen.add(message.subject)

    before = server.connections
    async with AsyncClient(server.address) as client, listener.running(client):
        while len(seen) < 40:
            await anyio.sleep(0.005)
        assert server.connections - before == 2, "the program's own, and one for all subjects"


@pytest.mark.parametrize("wrong", [(), ("",), (5,), ("a", b"b")])
def test_wrong_subjects_are_refused_at_the_decorator(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument, match="subject"):
        Listener("g")(*wrong)(ignore)


def test_a_listener_refuses_wrong_handlers_and_a_missing_group_at_once(server: FakeServer) -> None:
    def plain(_: Delivery) -> None:
        pass

    with pytest.raises(InvalidArgument, match="ThreadListener"):
        Listener("g")("a")(plain)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="Listener"):
        ThreadListener("g")("a")(ignore)
    with pytest.raises(InvalidArgument, match="group"):
        Listener()("a")(ignore)
    with Client(server.address) as client, pytest.raises(InvalidArgument, match="no handler"):
        ThreadListener("g").run(client)


def test_an_object_can_be_a_handler_and_a_decorated_function_stays_itself(server: FakeServer) -> None:
    fill(server, 1)

    class Handler:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        async def __call__(self, message: Delivery) -> None:
            self.seen.append(message.body)

    async def main() -> None:
        handler = Handler()
        listener = Listener("another", concurrency=3)
        assert listener("a", group="g", concurrency=1)(handler) is handler
        async with AsyncClient(server.address) as client, listener.running(client):
            while not handler.seen:
                await anyio.sleep(0.005)

    trio.run(main)
    assert {request.arguments["group"] for request in server.requests if request.operation == "pull"} == {"g"}


@on_each_loop
async def test_a_listener_listens_to_a_server_inside_its_program() -> None:
    seen: list[bytes] = []
    listener = Listener("g")

    @listener("orders*")
    async def handle(message: Delivery) -> None:
        seen.append(message.body)

    async with embedded.open_async() as client, listener.running(client):
        await client.send("orders.eu", b"7", delay_ms=0)
        while not seen:
            await anyio.sleep(0.005)


def test_threads_listen_to_a_server_inside_their_program() -> None:
    seen: list[bytes] = []
    came = threading.Event()
    listener = ThreadListener("g")

    @listener("orders*")
    def handle(message: Delivery) -> None:
        seen.append(message.body)
        came.set()

    with embedded.open() as client, listener.running(client):
        client.send("orders.eu", b"7", delay_ms=0)
        assert came.wait(60)
    assert seen == [b"7"]


@on_each_loop
async def test_end_waits_ends_pulls_that_wait() -> None:
    async with embedded.open_async() as client:
        ended = []

        async def pull() -> None:
            ended.append(await client.pull("s", "g", 1, 50.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            while not ended:
                client.end_waits()
                await anyio.sleep(0.01)
        assert ended == [[]]


@on_each_loop
async def test_a_node_that_leaves_the_route_is_pulled_from_no_more_and_its_messages_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayserver.client.consuming.node_pulling.ROUTE_INTERVAL_S", 0.02)
    go = threading.Event()
    with FakeServer() as entry, FakeServer(leases=True) as first, FakeServer(leases=True) as second:
        entry.nodes = [first.address]
        fill(first, 1)
        fill(second, 1)
        begun: list[str] = []
        listener = Listener("g", concurrency=2)

        @listener("a")
        async def handle(message: Delivery) -> None:
            begun.append(message.message_id)
            while not go.is_set():
                await anyio.sleep(0.005)

        async with AsyncClient(entry.address) as client, listener.running(client) as running:
            while len(begun) < 1:
                await anyio.sleep(0.005)
            entry.nodes = [second.address]
            while len(begun) < 2:
                await anyio.sleep(0.005)
            pulls = first.count("pull")
            fill(first, 1)
            for _ in range(3):
                routes = entry.count("route")
                while entry.count("route") == routes:
                    await anyio.sleep(0.005)
            assert first.count("pull") <= pulls + 1, "one that was on its way"
            go.set()
            while running.stats[0].acked < 2:
                await anyio.sleep(0.005)
        assert [message.acked for message in first.messages] == [True, False]
        assert [message.acked for message in second.messages] == [True]


PROGRAM = """
import os, sys
from delayserver.client import Client, ThreadListener

listener = ThreadListener("g", concurrency=2)

@listener("orders")
def handle(message):
    os.write(1, message.body + b"\\n")  # one write: two threads print beside each other

with Client(sys.argv[1]) as client:
    listener.run(client)
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_with_threads_ends_cleanly_at_a_signal(
    tmp_path: Path, number: signal.Signals, leasing: FakeServer
) -> None:
    fill(leasing, 1, "orders")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path), leasing.address]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        program.send_signal(number)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, out, err) == (0, "ended\n", "")
    assert [message.acked for message in leasing.messages] == [True]


@on_each_loop
async def test_a_listener_that_begins_in_a_cancelled_program_ends_at_once(leasing: FakeServer) -> None:
    async with AsyncClient(leasing.address) as client:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await listener_of("a").run(client)
        assert scope.cancelled_caught


@pytest.mark.parametrize("steps", range(4))
def test_a_listener_that_is_cancelled_while_it_begins_leaves_no_task(leasing: FakeServer, steps: int) -> None:
    async def main() -> None:
        async with AsyncClient(leasing.address) as client:
            before = asyncio.all_tasks()
            program = asyncio.create_task(listener_of("a").run(client))
            for _ in range(steps):
                await asyncio.sleep(0)
            program.cancel()
            with pytest.raises(asyncio.CancelledError):
                await program
            assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), 60))


@on_each_loop
async def test_a_listener_that_is_stopped_before_it_begins_ends(leasing: FakeServer) -> None:
    async with AsyncClient(leasing.address) as client:
        async with listener_of("a").running(client) as running:
            running.stop()
            assert len(running.stats) == 1
            await running.stopped()


def listener_of(subject: str) -> Listener:
    listener = Listener("g")

    @listener(subject)
    async def handle(_message: Delivery) -> None: ...

    return listener


@on_each_loop
async def test_no_handler_begins_with_a_message_whose_lease_ended_while_the_program_stood_still(
    leasing: FakeServer,
) -> None:
    fill(leasing, 12)
    begun: list[Handling] = []
    bodies: set[bytes] = set()
    hooks = Hooks(started=begun.append)
    listener = Listener("g", settings=ListenerSettings(concurrency=1, ack_timeout_s=1.0), hooks=hooks)

    @listener("a")
    async def handle(message: Delivery) -> None:
        await anyio.sleep(0)
        if not bodies:
            time.sleep(1.5)  # as a machine that sleeps
        bodies.add(message.body)

    async with AsyncClient(leasing.address) as client, listener.running(client) as running:
        while running.stats[0].acked + running.stats[0].nacked < 12:
            await anyio.sleep(0.01)
    assert [each for each in begun if each.started_s >= each.lease_ends_s] == []
