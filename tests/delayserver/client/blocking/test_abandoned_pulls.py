"""What a pull was handed that timed out, or was interrupted, comes back at once."""

from __future__ import annotations

import signal
import threading

import pytest

from delayserver.client import Client
from delayserver.client.blocking import line
from tests.delayserver.client.fake_server import FakeServer, Garbage, Swap
from tests.delayserver.client.listening.listeners import until


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "GIVE_BACK_S", 60.0)


def given_back(server: FakeServer) -> list[tuple[int, int, bool]]:
    nacks = [request.arguments for request in server.requests if request.operation == "nack"]
    return [(nack["count"], nack["delay_ms"], nack["unseen"]) for nack in nacks]


def test_a_pull_that_timed_out_gives_back_what_comes_late(server: FakeServer) -> None:
    server.leases = True
    send(server)
    server.misbehave("pull", Swap())  # it answers behind the `cancel_wait`
    with Client(server.address, timeout_s=0.2, retries=50) as client:
        assert client.pull("a", "g", 3) == [], "the second attempt"
    assert given_back(server) == [(3, 0, True)]


def test_an_interrupted_pull_gives_back_what_comes_late(server: FakeServer) -> None:
    server.leases = True
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: server.count("pull"))
        signal.pthread_kill(main, signal.SIGINT)

    send(server)
    server.misbehave("pull", Swap())
    with Client(server.address, timeout_s=60) as client:
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            client.pull("a", "g", 3, wait_s=20)
        interrupter.join()
        assert given_back(server) == [(3, 0, True)]


def test_an_empty_late_reply_is_dropped(server: FakeServer) -> None:
    server.misbehave("pull", Swap())
    with Client(server.address, timeout_s=0.2, retries=50) as client:
        assert client.pull("a", "g", 3) == []
    assert server.count("cancel_wait") >= 1 and given_back(server) == []


def test_a_server_that_is_silent_does_not_hold_the_caller(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "GIVE_BACK_S", 0.1)
    send(server)
    server.misbehave("pull", Garbage(b""))
    with Client(server.address, timeout_s=0.2, retries=50) as client:
        assert len(client.pull("a", "g", 3)) == 3


def send(server: FakeServer) -> None:
    with Client(server.address, timeout_s=60) as client:
        client.send_columns("a", 1, [b""] * 3)
