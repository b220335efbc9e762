"""The stream of the asynchronous client on asyncio, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import SocketAttribute

from delayserver.client.connections.asyncio_stream import UNREAD_BYTES_MAX, AsyncioStream

# More than the kernel keeps for a peer that does not read.
MUCH_BYTES = 32 * 1024 * 1024
WAIT_S = 60
# Of the event loop: enough for a stream that reads on to get all of that.
ITERATIONS = 2000


def talk(test: Callable[[AsyncioStream, socket.socket], Awaitable[None]]) -> Callable[[], None]:
    """A test that is a talk between a stream and a socket."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            stream = await AsyncioStream.connect(*listening.getsockname())
            peer, _ = listening.accept()
            peer.setblocking(False)
            with peer, anyio.fail_after(WAIT_S):
                try:
                    await test(stream, peer)
                finally:
                    await stream.aclose()

    return lambda: anyio.run(main, backend="asyncio")


async def _read(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
    return bytes(data)


@talk
async def test_bytes_arrive_in_their_order_and_in_the_size_that_was_asked_for(
    stream: AsyncioStream, peer: socket.socket
) -> None:
    await stream.send(b"ask")
    assert await _read(peer, 3) == b"ask"
    peer.send(b"answer")
    assert [await stream.receive(4), await stream.receive()] == [b"answ", b"er"]


@talk
async def test_a_send_waits_for_a_peer_that_does_not_read(stream: AsyncioStream, peer: socket.socket) -> None:
    body = bytes(range(256)) * (MUCH_BYTES // 256)
    sending = asyncio.ensure_future(stream.send(body))
    await asyncio.sleep(0)
    assert not sending.done()
    assert await _read(peer, len(body)) == body
    await sending


@talk
async def test_a_stream_that_nobody_reads_keeps_little(stream: AsyncioStream, peer: socket.socket) -> None:
    body = bytes(range(256)) * (MUCH_BYTES // 256)
    loop = asyncio.get_running_loop()
    sending = asyncio.ensure_future(loop.sock_sendall(peer, body))
    for _ in range(ITERATIONS):
        await asyncio.sleep(0)
    assert stream.unread_bytes < 2 * UNREAD_BYTES_MAX
    assert not sending.done()
    received = bytearray()
    while len(received) < len(body):
        received += await stream.receive(1 << 20)
    await sending
    assert received == body


@talk
async def test_the_end_of_the_peer_comes_behind_its_bytes(stream: AsyncioStream, peer: socket.socket) -> None:
    peer.send(b"last")
    peer.shutdown(socket.SHUT_WR)
    assert await stream.receive() == b"last"
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.send(b"still")
    assert await _read(peer, 5) == b"still"


@talk
async def test_a_reset_breaks_a_receive_and_the_sends_behind_it(stream: AsyncioStream, peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    with pytest.raises(anyio.BrokenResourceError):
        await stream.receive()
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"more")


@talk
async def test_a_close_ends_a_receive_and_a_send_that_wait(stream: AsyncioStream, peer: socket.socket) -> None:
    waiting = [asyncio.ensure_future(stream.receive()), asyncio.ensure_future(stream.send(bytes(MUCH_BYTES)))]
    await asyncio.sleep(0)
    await stream.aclose()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [anyio.ClosedResourceError, anyio.ClosedResourceError]


@talk
async def test_a_receive_that_is_cancelled_takes_nothing(stream: AsyncioStream, peer: socket.socket) -> None:
    with anyio.move_on_after(0):
        await stream.receive()
    peer.send(b"kept")
    assert await stream.receive() == b"kept"


@talk
async def test_a_stream_gives_its_raw_socket(stream: AsyncioStream, peer: socket.socket) -> None:
    assert stream.extra(SocketAttribute.raw_socket).getpeername() == peer.getsockname()


def test_a_port_where_nobody_listens_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(ConnectionRefusedError):
        anyio.run(AsyncioStream.connect, *address, backend="asyncio")
