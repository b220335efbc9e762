"""One blocking connection: its deadline, and frames larger than a socket takes at once."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from delayserver.client import Client
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.protocol.errors import RequestTimedOut
from delayserver.protocol.frames import ReplyFrame, encode_notice, encode_reply, encode_request
from delayserver.protocol.keepalive import IDLE_S
from tests.delayserver.client.both import no_notice
from tests.delayserver.client.fake_server import FakeServer
from tests.delayserver.net.sockets import socket_of

SIGNALS_S = 0.05


@pytest.fixture
def signals() -> Iterator[None]:
    """A program with a timer of its own, as profilers and watchdogs are."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, SIGNALS_S, SIGNALS_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A listener that answers nothing, and hangs up after a long time, so that a test that waits for ever ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hang_up = threading.Timer(10, listener.shutdown, [socket.SHUT_RDWR])
        hang_up.start()
        yield listener
        hang_up.cancel()


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("body_bytes", [0, 64 * 1024 * 1024])
def test_the_timeout_comes_also_in_a_program_with_periodic_signals(mute: socket.socket, body_bytes: int) -> None:
    connection = SocketConnection(mute.getsockname(), 5.0, no_notice)
    with pytest.raises(RequestTimedOut):
        connection.exchange(1, encode_request(1, "ping", {"body": bytes(body_bytes)}), 4 * SIGNALS_S)
    assert not connection.usable(repeatable=True)


@pytest.mark.usefixtures("signals")
def test_signals_harm_no_large_frame(server: FakeServer) -> None:
    bodies = [bytes([number]) * 700_000 for number in range(20)]
    with Client(server.address, retries=0) as client:
        client.send_columns("a", 1, bodies)
        assert client.pull_columns("a", "g").bodies.rows() == bodies
    assert server.connections == 1


def test_a_call_may_have_a_timeout_longer_than_a_poll_can_wait(server: FakeServer) -> None:
    with Client(server.address, timeout_s=1e9) as client:
        assert client.ping() > 0


def test_a_connection_asks_after_a_silent_server(mute: socket.socket) -> None:
    connection = SocketConnection(mute.getsockname(), 5.0, no_notice)
    connected = socket_of(connection)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_S
    connection.close()


def test_an_idle_connection_reads_a_notice_and_stays_usable_until_something_else_comes(mute: socket.socket) -> None:
    noticed: list[ReplyFrame] = []
    connection = SocketConnection(mute.getsockname(), 5.0, noticed.append)
    peer, _ = mute.accept()
    with peer:
        assert connection.read_ahead()
        peer.sendall(encode_notice({"news": 1}))
        assert connection.usable(repeatable=False)
        assert [notice.result for notice in noticed] == [{"news": 1}]
        peer.sendall(encode_reply(7, {}))
        assert not connection.read_ahead(), "a reply without a request"
    connection.close()
