"""The threads of a listener on a system that has no room for them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from delayserver.client import Client, Delivery
from tests.delayserver.cli.conftest import serving
from tests.delayserver.client.listening.listeners import listening, until


def no_room_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The system starts no handler's thread from this number on."""
    start = threading.Thread.start

    def start_if_there_is_room(thread: threading.Thread) -> None:
        _, _, its = thread.name.rpartition("for shop) ")
        if its.isdigit() and int(its) >= number:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_there_is_room)


def test_threads_that_cannot_be_started_leave_their_messages_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room_from(monkeypatch, 2)
    bodies: list[bytes] = []
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        client.send_columns("a", client.ping() // 1000, [b"%d" % number for number in range(20)])

        def handle(message: Delivery) -> None:
            time.sleep(0.01)
            bodies.append(message.body)

        with listening("threads", server.address, {("a",): handle}, concurrency=4) as listener:
            until(lambda: listener.ended or listener.stats.acked == 20)
        assert sorted(bodies) == sorted(b"%d" % number for number in range(20))


def test_a_listener_without_any_thread_fails_and_gives_its_messages_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room_from(monkeypatch, 1)
    with (
        serving(tmp_path / "data", "--set", "broker.redelivery_first_ms=100") as server,
        Client(server.address) as client,
    ):
        client.send_columns("a", client.ping() // 1000, [b"1", b"2"])
        with (
            pytest.raises(RuntimeError, match="can't start new thread"),
            listening("threads", server.address, {("a",): print}, concurrency=4) as listener,
        ):
            until(lambda: listener.ended)
        got: list[bytes] = []
        deadline_s = time.monotonic() + 20
        while len(got) < 2 and time.monotonic() < deadline_s:
            got += [delivery.body for delivery in client.pull("a", "shop", 10, wait_s=1)]
        assert sorted(got) == [b"1", b"2"]
