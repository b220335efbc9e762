"""A client of the simulation: real frames over the simulated network, one request after the other."""

from __future__ import annotations

from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import FrameDecoder, decode_reply, encode_request
from tests.simulation.network import Network, SimulatedTransport

FRAME_BYTES_MAX = 16 << 20


class Lost(Exception):
    """No answer came: what was asked may have happened or not. `sent` is False if it certainly has not."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Client:
    """One connection at a time, made again when it breaks. For one task."""

    def __init__(self, network: Network, address: str, name: str) -> None:
        self.name = name
        self._network = network
        self._address = address
        self._transport: SimulatedTransport | None = None
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._last_id = 0

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    async def request(self, operation: str, arguments: dict[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """The result of one operation. Raises DelayServerError as the server names it, Lost."""
        try:
            transport = self._transport or await self._connect()
        except OSError as error:
            raise Lost(f"cannot connect: {error}", sent=False) from error
        self._last_id += 1
        time = self._network.time
        # Closed under the feet of who waits: a timer costs a fraction of a scope.
        timeout = time.at(time.now_s + timeout_s, transport.close)
        try:
            await self._send(transport, encode_request(self._last_id, operation, arguments))
            return await self._reply(transport, self._last_id)
        except OSError as error:
            self.close()
            raise Lost(f"no answer: {error!r}", sent=True) from error
        except trio.Cancelled:
            self.close()
            raise
        finally:
            timeout.action = None

    async def sleep(self, duration_s: float) -> None:
        """As `trio.sleep`."""
        await self._network.time.sleep(duration_s)

    async def _connect(self) -> SimulatedTransport:
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._transport = await self._network.connect(self._address)
        return self._transport

    async def _send(self, transport: SimulatedTransport, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[transport.send_now(view) :]
            if view:
                await transport.wait_writable()

    async def _reply(self, transport: SimulatedTransport, request_id: int) -> dict[str, Any]:
        while True:
            data = await transport.receive()
            if not data:
                raise ConnectionResetError("closed by the server")
            for payload in self._decoder.feed(data):
                reply = decode_reply(payload)
                if reply.id != request_id:
                    if reply.id == 0 and reply.error is not None:
                        raise reply.error
                    continue
                if reply.error is not None:
                    raise reply.error
                assert reply.result is not None
                return reply.result


__all__ = ["Client", "DelayServerError", "Lost"]
