"""A blocking client that is closed, or called by a signal handler, while it waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from delayserver.client import Client
from delayserver.client.calls.core import Call
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument, NotReady
from delayserver.protocol.limits import Limits
from tests.delayserver.client.fake_server import Fail, FakeServer, Garbage, Late

T = TypeVar("T")


@contextmanager
def handling(handle: Callable[[], None], server: FakeServer) -> Iterator[None]:
    """A signal comes while a pull waits."""

    def interrupt() -> None:
        wait_for(server, "pull")
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, lambda *_: handle())
    interrupter = threading.Thread(target=interrupt, daemon=True)
    interrupter.start()
    try:
        yield
    finally:
        interrupter.join()
        signal.signal(signal.SIGALRM, before)


class Calling:
    """A call in a thread of its own, and how it ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.error: DelayServerError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except DelayServerError as error:
            self.error = error

    def assert_closed(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the call still waits"
        assert isinstance(self.error, ConnectionLost)
        assert self.error.message == "the client was closed"


def wait_for(server: FakeServer, operation: str) -> None:
    end_s = time.monotonic() + 60
    while not server.count(operation):
        assert time.monotonic() < end_s, f"no client has asked for a {operation}"
        time.sleep(0.01)


def test_a_signal_handler_that_calls_the_client_it_interrupts_gets_an_error_and_harms_nothing(
    server: FakeServer,
) -> None:
    server.misbehave("pull", Late(2.0))
    told: list[BaseException] = []
    with Client(server.address) as client:

        def ping() -> None:
            try:
                client.ping()
            except Exception as error:  # noqa: BLE001
                told.append(error)

        with handling(ping, server):
            assert client.pull("a", "g") == []
        assert [type(error) for error in told] == [InvalidArgument]
        assert "signal handler" in str(told[0])
        assert client.ping() > 0
    assert server.connections == 1
    assert server.count("pull") == 1


def test_a_signal_handler_ends_a_pull_by_closing_the_client(server: FakeServer) -> None:
    server.misbehave("pull", Garbage(b""))
    with Client(server.address) as client:
        with handling(client.close, server), pytest.raises(ConnectionLost, match="the client was closed"):
            client.pull("a", "g", wait_s=60)
        server.wait_for_open(0)
        assert server.count("pull") == 1
        assert client.pull("a", "g") == []
    assert server.connections == 2


def test_another_thread_ends_a_pull_by_closing_the_client(server: FakeServer) -> None:
    server.misbehave("pull", Garbage(b""))
    with Client(server.address) as client:
        pulling = Calling(lambda: client.pull("a", "g", wait_s=60))
        wait_for(server, "pull")
        client.close()
        pulling.assert_closed()
        assert server.count("pull") == 1
        assert client.ping() > 0


class ClosedBetweenRequests(Client):
    """As by a signal that comes when the first of several requests is answered."""

    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        result = super()._run(call, close_count)
        if call.operation == "pull":
            self.close()
        return result


def test_a_pull_of_several_requests_is_ended_between_them() -> None:
    with FakeServer(limits=Limits(wait_ms_max=10)) as server, ClosedBetweenRequests(server.address) as client:
        with pytest.raises(ConnectionLost, match="the client was closed"):
            client.pull("a", "g", wait_s=1)
        assert server.count("pull") == 1


def test_a_pause_before_another_attempt_ends_when_the_client_is_closed(server: FakeServer) -> None:
    server.misbehave("pull", Fail(NotReady("recovering", retry_after_ms=50_000)))
    with Client(server.address) as client:
        pulling = Calling(lambda: client.pull("a", "g"))
        wait_for(server, "pull")
        client.close()
        pulling.assert_closed()
    assert server.count("pull") == 1


def test_a_client_that_just_connects_can_be_closed(server: FakeServer) -> None:
    server.misbehave("hello", Garbage(b""))
    client = Client(server.address, timeout_s=60)
    connecting = Calling(client.ping)
    wait_for(server, "hello")
    client.close()
    connecting.assert_closed()
    assert server.connections == 1


def test_a_forked_process_that_closes_the_client_leaves_the_connection_of_its_parent(server: FakeServer) -> None:
    with Client(server.address) as client:
        child = os.fork()
        if not child:
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert client.ping() > 0
    assert server.connections == 1
