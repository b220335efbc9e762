"""Asks the front of another server whether it answers."""

from __future__ import annotations

import trio

from delayserver.net.transport import Connect, Transport
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import FrameDecoder, encode_request
from delayserver.protocol.operation_names import PING


async def answers(connect: Connect, address: str) -> bool:
    """Whether a server at an address answers `ping`, with a result or an error. Waits as long as it takes."""
    try:
        transport = await connect(address)
    except OSError:
        return False
    answered = False

    def received(data: bytes) -> None:
        nonlocal answered
        if decoder.feed(data):
            answered = True
            nursery.cancel_scope.cancel()

    decoder = FrameDecoder()
    try:
        async with trio.open_nursery() as nursery:
            # It is sent while the stream is read: a handshake needs both.
            nursery.start_soon(_ask, transport)
            await transport.feed(received)
            nursery.cancel_scope.cancel()
    except* (OSError, DelayServerError):
        pass
    finally:
        transport.close()
    return answered


async def _ask(transport: Transport) -> None:
    """Raises OSError."""
    request = memoryview(encode_request(1, PING, {}))
    while request:
        request = request[transport.send_now(request) :]
        if request:
            await transport.wait_writable()
