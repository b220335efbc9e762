"""The client of today with a server of before: it is answered with the bytes that older programs sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delayserver.client import Client
from delayserver.client.values.messages import Message
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import FrameDecoder, decode_request, encode_reply
from tests.delayserver.upgrade.directories import ARCHIVES, Past, past
from tests.delayserver.upgrade.test_upgrade import result_in
from tests.fakes.host import FRAME_BYTES_MAX


class OlderServer:
    """Answers each request with what the older program answered to the same operation, in the order of its replies."""

    def __init__(self, old: Past) -> None:
        # By operation, and whether it was asked in columns.
        self._replies: dict[tuple[str, bool], list[bytes]] = {}
        self._numbers: dict[bytes, int] = {}
        for number, exchange in enumerate(old.exchanges, 1):
            (payload,) = FrameDecoder(FRAME_BYTES_MAX).feed(exchange.request)
            form = (exchange.operation, "count" in decode_request(payload).arguments)
            self._replies.setdefault(form, []).append(exchange.reply)
            self._numbers[exchange.reply] = number
        self.asked: list[tuple[str, dict[str, object]]] = []

    def serve(self, listener: socket.socket) -> None:
        """One connection, to its end."""
        connection, _ = listener.accept()
        frames = FrameDecoder(FRAME_BYTES_MAX)
        with connection:
            while data := connection.recv(65_536):
                for payload in frames.feed(data):
                    request = decode_request(payload)
                    self.asked.append((request.operation, request.arguments))
                    replies = self._replies[request.operation, "count" in request.arguments]
                    reply = replies.pop(0) if len(replies) > 1 else replies[0]
                    result = result_in(reply, self._numbers[reply])
                    connection.sendall(encode_reply(request.id, result))


@contextmanager
def older_server(old: Past) -> Iterator[tuple[OlderServer, Client]]:
    server = OlderServer(old)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        with Client(f"127.0.0.1:{listener.getsockname()[1]}", retries=0) as client:
            yield server, client
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture(params=ARCHIVES)
def old(request: pytest.FixtureRequest) -> Past:
    """Each archive in turn."""
    return past(request.param)


def test_the_client_of_today_understands_an_older_server(old: Past) -> None:
    receipts = list(old.receipts.values())
    with older_server(old) as (server, client):
        status = client.status()
        assert int(status["accepted"]) == old.balance["accepted"]
        assert client.route(subject="orders").group == "default"
        assert client.route(group="default").nodes
        # What became due between the last balance and these replies has gone out.
        found = dict(zip(old.receipts, client.lookup_many(receipts), strict=True))
        outcomes = {name: row.outcome.label for name, row in found.items() if not isinstance(row, DelayServerError)}
        assert outcomes == old.outcomes
        sent = client.send_columns("columns", due_ms=[1, 2, 3], bodies=[b"one", b"two", b"three"])
        assert (sent.accepted, sent.rejected, len(sent.due_ms)) == (3, [], 3)
        cancelled = client.cancel_many(receipts[:8])
        assert [type(row).__name__ for row in cancelled[:-1]] == ["CancelResult"] * 7
        pulled = client.pull_columns("columns", "new")
        assert (pulled.count, pulled.bodies.rows()) == (3, [b"one", b"two", b"three"])
        assert client.ack("orders", "billing", pulled).acked == 2
    assert [operation for operation, _ in server.asked if operation not in ("hello", "ping")] == [
        "status", "route", "route", "lookup", "send", "cancel", "pull", "ack",
    ]  # fmt: skip


def test_the_client_of_today_asks_an_older_server_for_nothing_that_it_does_not_know(old: Past) -> None:
    known = {exchange.operation for exchange in old.exchanges}
    with older_server(old) as (server, client):
        client.status()
        client.lookup_many(list(old.receipts.values()))
        client.send_many([Message("columns", "row", due_ms=1)] * 3)
    assert {operation for operation, _ in server.asked} <= known
    (sent,) = [arguments for operation, arguments in server.asked if operation == "send"]
    # A program of before tags refuses neither, but it would not keep them: the client names them only when they are used.
    assert "tags" not in sent and "order_keys" not in sent
