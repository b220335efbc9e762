"""Calls of other threads while one waits in a long pull of the same blocking client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import ConnectionLost
from tests.delayserver.client.fake_server import FakeServer, Garbage
from tests.delayserver.client.listening.listeners import until

FOR_EVER = Garbage(b"")


@contextmanager
def pulling(server: FakeServer, client: Client) -> Iterator[threading.Thread]:
    """A thread that waits in a pull which the server does not answer, until the client is closed."""
    server.misbehave("pull", FOR_EVER)

    def pull() -> None:
        with pytest.raises(ConnectionLost):
            client.pull("a", "g", wait_s=600)

    puller = threading.Thread(target=pull)
    puller.start()
    until(lambda: server.count("pull") == 1)
    yield puller
    client.close()
    puller.join(60)
    assert not puller.is_alive()


def test_calls_of_all_kinds_do_not_wait_behind_a_long_pull(server: FakeServer) -> None:
    client = Client(server.address)
    with pulling(server, client):
        sent = client.send("a", b"", delay_ms=0)
        client.send_one_way("a", b"", 1)
        assert client.ping() > 0
        assert client.cancel(sent.receipt).receipt == sent.receipt
        assert server.connections == 2, "one more connection is enough"
    assert len(server.messages) == 2


def test_a_closed_client_calls_again_over_one_connection(server: FakeServer) -> None:
    client = Client(server.address)
    with pulling(server, client):
        client.send("a", b"", due_ms=1)
    before = server.connections
    client.send("a", b"", due_ms=1)
    assert server.connections == before + 1
    client.close()


def test_one_thread_alone_has_one_connection(server: FakeServer) -> None:
    with Client(server.address) as client:
        for _ in range(3):
            client.send("a", b"", due_ms=1)
            client.pull("a", "g", wait_s=0.001)
        assert server.connections == 1
