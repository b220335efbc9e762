"""Real sockets behind one task: everything comes, an end and a failure are those of one connection, steps enclose."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from delayserver.net.socket_hub import STEPS_MAX
from delayserver.net.transport import RECEIVE_BYTES, HubTransport, SocketListener, Transport
from delayserver.protocol.keepalive import IDLE_S, INTERVAL_S, PROBES
from tests.delayserver.net.sockets import socket_of


@asynccontextmanager
async def listening(begin: Callable[[], None], end: Callable[[], object]) -> AsyncIterator[SocketListener]:
    def began() -> int:
        begin()
        return RECEIVE_BYTES

    def ended() -> bool:
        return end() is not False

    listener = SocketListener(["127.0.0.1"], 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, began, ended)
        yield listener
        nursery.cancel_scope.cancel()
    listener.close()


async def pair(listener: SocketListener) -> tuple[socket.socket, Transport]:
    near = socket.create_connection(listener.address)
    far = await listener.accept()
    assert isinstance(far, HubTransport)
    return near, far


def run_bounded(test: Callable[..., Awaitable[None]], **options: Any) -> None:
    async def bounded(*arguments: Any) -> None:
        with trio.fail_after(30):
            await test(*arguments)

    trio.run(bounded, **options)


pytestmark = pytest.mark.trio(run=run_bounded)


async def test_received_bytes_are_handed_over_within_a_step() -> None:
    seen: list[object] = []
    async with listening(lambda: seen.append("begin"), lambda: seen.append("end")) as listener:
        near, far = await pair(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.feed, seen.append)
            near.sendall(b"one")
            while "end" not in seen:
                await trio.sleep(0.001)
            near.close()
        far.close()
    first = seen.index(b"one")
    assert seen[first - 1 : first + 2] == ["begin", b"one", "end"]


async def test_bytes_that_arrive_during_a_step_are_in_it_and_each_connection_is_read_once() -> None:
    seen: list[object] = []
    async with listening(lambda: seen.append("begin"), lambda: seen.append("end")) as listener:
        (first, first_far), (second, second_far) = await pair(listener), await pair(listener)

        def first_received(data: bytes) -> None:
            seen.append(data)
            if data == b"one":
                first.sendall(b"three")
                second.sendall(b"two")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first_far.feed, first_received)
            nursery.start_soon(second_far.feed, seen.append)
            first.sendall(b"one")
            while b"three" not in seen:
                await trio.sleep(0.001)
            first.close()
            second.close()
        first_far.close()
        second_far.close()
    start = seen.index(b"one")
    assert seen[start - 1 : start + 6] == ["begin", b"one", b"two", "end", "begin", b"three", "end"]


class Passes(trio.abc.Instrument):
    """Notes the passes of the event loop."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    def after_io_wait(self, timeout: float) -> None:
        self._note()


@pytest.mark.parametrize("done", [True, False])
async def test_a_step_follows_at_once_where_nothing_is_left_to_other_tasks(done: bool) -> None:
    seen: list[object] = []

    def end() -> bool:
        if seen[-1] == b"one":
            seen.append("end")
            near.sendall(b"two")
        return done

    trio.lowlevel.add_instrument(Passes(lambda: seen.append("pass")))
    async with listening(lambda: None, end) as listener:
        near, far = await pair(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.feed, seen.append)
            near.sendall(b"one")
            while b"two" not in seen:
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        near.close()
        far.close()
    between = seen[seen.index("end") + 1 : seen.index(b"two")]
    assert ("pass" in between) != done, seen


async def test_a_connection_that_always_has_more_lets_other_tasks_run() -> None:
    steps = [0]

    def end() -> None:
        steps[-1] += 1
        if len(steps) < 100:
            near.sendall(b"more")

    async with listening(lambda: None, end) as listener:
        near, far = await pair(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.feed, lambda _data: None)
            trio.lowlevel.add_instrument(Passes(lambda: steps.append(0)))
            near.sendall(b"one")
            while len(steps) < 100:
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        near.close()
        far.close()
    assert max(steps) == STEPS_MAX, steps


async def test_many_connections_get_all_of_their_bytes_and_their_ends() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        received: dict[int, bytes] = {}
        accepted: list[Transport] = []
        async with trio.open_nursery() as nursery:
            for number in range(100):
                near, far = await pair(listener)
                accepted.append(far)

                def note(data: bytes, number: int = number) -> None:
                    received[number] = received.get(number, b"") + data

                nursery.start_soon(far.feed, note)
                near.sendall(b"%d " % number * 50)
                near.close()
        for far in accepted:
            far.close()
    assert received == {number: b"%d " % number * 50 for number in range(100)}


async def test_an_error_of_a_receiver_ends_its_own_connection_alone() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        near, far = await pair(listener)
        other_near, other_far = await pair(listener)
        got: list[bytes] = []

        def fail(_data: bytes) -> None:
            raise RuntimeError("a bug")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_far.feed, got.append)
            near.sendall(b"x")
            with pytest.raises(RuntimeError, match="a bug"):
                await far.feed(fail)
            far.close()
            other_near.sendall(b"y")
            other_near.close()
        assert got == [b"y"]
        near.close()
        other_far.close()


async def test_closing_ends_the_feed_also_in_the_middle_of_a_step_and_before_it_began() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        near, far = await pair(listener)
        near.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            await far.feed(lambda _data: far.close())
        near.close()
        near, far = await pair(listener)
        far.close()
        with pytest.raises(ConnectionResetError):
            await far.feed(lambda _data: None)
        near.close()


async def test_connections_outlive_a_listener_that_stopped_reading() -> None:
    async with trio.open_nursery() as nursery:
        async with listening(lambda: None, lambda: None) as listener:
            near, far = await pair(listener)
            nursery.start_soon(far.feed, lambda _data: None)
            await trio.sleep(0.01)
        # A stop ends both at once, in any order.
        nursery.cancel_scope.cancel()
    far.close()
    near.close()


async def test_a_connection_that_comes_in_the_step_that_ends_its_server_ends_with_it() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        near, far = await pair(listener)
    with trio.CancelScope() as scope:
        scope.cancel()
        await far.feed(lambda _: None)
    assert scope.cancelled_caught
    far.close()
    near.close()


async def test_a_paused_connection_hands_over_nothing_until_it_is_resumed() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        (near, far), (other_near, other_far) = await pair(listener), await pair(listener)
        got: list[bytes] = []
        other_got: list[bytes] = []

        def received(data: bytes) -> None:
            got.append(data)
            far.pause()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.feed, received)
            nursery.start_soon(other_far.feed, other_got.append)
            near.sendall(b"one")
            while not got:
                await trio.sleep(0.001)
            near.sendall(b"two")
            other_near.sendall(b"x")
            while not other_got:
                await trio.sleep(0.001)
            assert got == [b"one"]
            far.resume()
            while len(got) < 2:
                await trio.sleep(0.001)
            assert got == [b"one", b"two"]
            nursery.cancel_scope.cancel()
        for each in (near, other_near, far, other_far):
            each.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_peer_that_goes_while_its_connection_is_paused_ends_the_feed(reset: bool) -> None:
    async with listening(lambda: None, lambda: None) as listener:
        near, far = await pair(listener)
        got: list[bytes] = []

        def received(data: bytes) -> None:
            got.append(data)
            far.pause()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.feed, received)
            near.sendall(b"one")
            while not got:
                await trio.sleep(0.001)
            near.sendall(b"unread")
            if reset:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
        assert got == [b"one"]
        far.close()


async def test_a_transport_knows_how_many_bytes_its_peer_has_not_received() -> None:
    async with listening(lambda: None, lambda: None) as listener:
        near, far = await pair(listener)
        sent = 0
        while taken := far.send_now(b"x" * (1 << 20)):
            sent += taken
        assert 0 < far.unacknowledged_bytes() < sent
        while far.unacknowledged_bytes():
            near.recv(1 << 20)
            await trio.sleep(0.001)
        near.close()
        far.close()
        assert far.unacknowledged_bytes() == 0


async def test_accepted_sockets_ask_after_a_silent_peer() -> None:
    listener = SocketListener(["127.0.0.1"], 0)
    near = socket.create_connection(listener.address)
    far = await listener.accept()
    assert isinstance(far, HubTransport)
    accepted = socket_of(far)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == INTERVAL_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == PROBES
    near.close()
    far.close()
    listener.close()
