"""Consumers and connections that end: the messages of a dead consumer come again soon, those of a living one do not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import pytest

from delayserver.client import AsyncClient, Client, Consumer, Delivery
from delayserver.client.consuming.extending import OUTLIVE_S
from delayserver.protocol.columns import I64, unpack_column
from delayserver.protocol.frames import FrameDecoder, decode_reply
from tests.delayserver.cli.conftest import ROOT, Server
from tests.delayserver.client.fake_server import FakeServer
from tests.delayserver.client.listening.listeners import KINDS, listening, until
from tests.delayserver.client.mapped import MappedPort, mapped

ACK_TIMEOUT_S = 300.0
CUT_OUTLIVE_S = 3.0
BODIES = [b"1", b"2", b"3"]

# A process that takes all messages, says so, and never answers. Each line is one write: threads write beside each other.
PROGRAM = """
import os, sys, threading, anyio
from delayserver.client import AsyncClient, Client, Consumer, Listener, ListenerSettings, ThreadListener

kind, address = sys.argv[1:]
settings = ListenerSettings(ack_timeout_s=300)

def blocking():
    listener = ThreadListener("g", settings=settings)
    @listener(kind)
    def handle(message):
        os.write(1, b"here\\n")
        threading.Event().wait()
    with Client(address) as client:
        listener.run(client)

async def tasks():
    listener = Listener("g", settings=settings)
    @listener(kind)
    async def handle(message):
        os.write(1, b"here\\n")
        await anyio.sleep_forever()
    async with AsyncClient(address) as client:
        await listener.run(client)

async def consumer():
    kept = []
    async with AsyncClient(address) as client, Consumer(client, kind, "g", ack_timeout_s=300) as deliveries:
        async for received in deliveries:
            kept.append(received)
            os.write(1, b"here\\n")

if kind == "ThreadListener":
    blocking()
else:
    anyio.run(tasks if kind == "Listener" else consumer)
"""


DYING = ("Consumer", "Listener", "ThreadListener")


@pytest.fixture(scope="module")
def killed(node: Server) -> None:
    """A consumer of each kind took its messages, and was killed. All at once: their leases end together."""
    with Client(node.address) as client, ExitStack() as stack:
        for kind in DYING:
            client.send_columns(kind, client.ping() // 1000, BODIES)
        dying = []
        for kind in DYING:
            program = [sys.executable, "-c", PROGRAM, kind, node.address]
            dying.append(stack.enter_context(subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE)))
            stack.callback(dying[-1].kill)
        for process in dying:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in BODIES] == [b"here\n"] * len(BODIES)


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("kind", DYING)
def test_the_messages_of_a_killed_consumer_come_again_long_before_their_ack_timeout(kind: str, node: Server) -> None:
    with Client(node.address) as client:
        came: list[Delivery] = []
        while len(came) < len(BODIES):
            pulled = client.pull(kind, "g", wait_s=ACK_TIMEOUT_S / 3, ack_timeout_s=ACK_TIMEOUT_S)
            assert pulled, "nothing came in a third of the ack timeout"
            came += pulled
        assert sorted((each.body, each.attempt) for each in came) == [(body, 2) for body in BODIES]
        client.ack(kind, "g", came)


class Held:
    """A handler that waits until the test lets it go."""

    def __init__(self) -> None:
        self.came: list[Delivery] = []
        self.acked: list[bool] = []
        self.go = threading.Event()

    def __call__(self, message: Delivery) -> None:
        self.came.append(message)
        self.go.wait(120)


async def consume(address: str, held: Held, subject: str, outlive_s: float | None) -> None:
    """Take the first message with a `Consumer`, and ack it when the test says so."""
    async with (
        AsyncClient(address) as client,
        Consumer(client, subject, "g", ack_timeout_s=ACK_TIMEOUT_S, outlive_s=outlive_s) as deliveries,
    ):
        received = await anext(deliveries)
        await anyio.to_thread.run_sync(held, received.delivery)
        held.acked.append(await received.ack())


@contextmanager
def consuming(kind: str, address: str, subject: str, outlive_s: float | None = OUTLIVE_S) -> Iterator[Held]:
    """A consumer with one message at work, which ends when the test lets it go."""
    held = Held()
    if kind.startswith("Consumer"):
        run: Callable[..., Any] = anyio.run
        thread = threading.Thread(
            target=run,
            args=(consume, address, held, subject, outlive_s),
            kwargs={"backend": kind.rpartition(" ")[2]},
        )
        thread.start()
        try:
            until(lambda: held.came)
            yield held
        finally:
            held.go.set()
            thread.join()
        return
    settings: Any = {"ack_timeout_s": ACK_TIMEOUT_S, "outlive_s": outlive_s, "concurrency": 1}
    with listening(kind, address, {(subject,): held}, group="g", **settings):
        try:
            until(lambda: held.came)
            yield held
        finally:
            held.go.set()


def asked(server: FakeServer, operation: str) -> list[dict[str, Any]]:
    return [request.arguments for request in server.requests if request.operation == operation]


@pytest.mark.parametrize("kind", [*KINDS, "Consumer on trio", "Consumer on asyncio"])
def test_the_next_connection_takes_over_all_that_is_handled_or_waits(server: FakeServer, kind: str) -> None:
    server.leases = True
    with Client(server.address) as client:
        client.send_columns("a", 1, BODIES)
    with consuming(kind, server.address, "a") as held:
        until(lambda: all(message.leased for message in server.messages))
        assert not server.count("extend")
        server.drop_connections()
        until(lambda: server.count("extend"))
    assert all(held.acked)
    (extend, *_) = asked(server, "extend")
    assert extend["outlive_ms"] == OUTLIVE_S * 1000
    assert extend["ack_timeout_ms"] == ACK_TIMEOUT_S * 1000
    assert unpack_column(extend["deliveries"], extend["count"], I64, "d").tolist() == [0, 1, 2]
    assert {pull["outlive_ms"] for pull in asked(server, "pull")} == {OUTLIVE_S * 1000}


@pytest.mark.parametrize("kind", [*KINDS, "Consumer on trio"])
def test_without_the_setting_leases_last_for_their_ack_timeout_in_any_case(server: FakeServer, kind: str) -> None:
    server.leases = True
    with Client(server.address) as client:
        client.send_columns("a", 1, BODIES)
    with consuming(kind, server.address, "a", outlive_s=None) as held:
        pass
    assert all(held.acked)
    assert not any("outlive_ms" in pull for pull in asked(server, "pull"))


def extended(port: MappedPort) -> list[int]:
    """How many leases each `extend` has extended so far."""
    found = []
    for answers in port.answers:
        for payload in FrameDecoder().feed(bytes(answers)):
            result = decode_reply(payload).result or {}
            found += [result["extended"]] if "extended" in result else []
    return found


def comes_once_after_a_cut(node: Server, client: Client, number: int) -> bool:
    """Cut the connections of two consumers at work, and assert that their messages do not come again. False where the next
    connection took the leases over too late: a stall of the machine can take all their time."""
    host, _, port = node.address.rpartition(":")
    kinds = {"threads": f"threads.{number}", "Consumer on asyncio": f"consumer.{number}"}
    with ExitStack() as stack:
        ports = [stack.enter_context(mapped(host, int(port))) for _ in kinds]
        both = []
        for (kind, subject), here in zip(kinds.items(), ports, strict=True):
            client.send(subject, b"long work", delay_ms=0)
            both.append(stack.enter_context(consuming(kind, here.address, subject, CUT_OUTLIVE_S)))
        cut_s = time.monotonic()
        for here in ports:
            here.cut()
        until(lambda: all(extended(here) for here in ports), "the extension over the next connection")
        if time.monotonic() - cut_s > CUT_OUTLIVE_S:
            return False
        assert [extended(here)[0] for here in ports] == [1, 1]
        first, second = kinds.values()
        assert client.pull(first, "g", wait_s=CUT_OUTLIVE_S + 1) == client.pull(second, "g", wait_s=0.5) == []
    assert [[each.attempt for each in held.came] for held in both] == [[1], [1]]
    assert all(acked for held in both for acked in held.acked)
    until(lambda: [group.lag for subject in kinds.values() for group in client.groups(subject)] == [0, 0])
    return True


def test_a_message_whose_handler_runs_on_after_a_broken_connection_does_not_come_twice(node: Server) -> None:
    with Client(node.address) as client:
        assert any(comes_once_after_a_cut(node, client, number) for number in range(10)), "the machine is too slow"
