"""A client of the simulation: real frames over the simulated network, one request after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import FrameDecoder, ReplyFrame, decode_reply, encode_request
from tests.simulation.failures import SimulationFailure
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
        # Connections that were made, and messages of requests without a reply that the server said it refused, over all.
        self.connections = 0
        self._transports: list[SimulatedTransport] = []
        self.one_way_refused = 0
        self.first_refusal = ""
        self._posted: set[int] = set()
        self._unread: deque[tuple[int, dict[str, Any] | DelayServerError]] = deque()

    @property
    def out_of_range(self) -> int:
        """How often a broker has answered `position_out_of_range`. It says so once, and the answer may get lost with its
        connection."""
        return sum([transport.out_of_range for transport in self._transports])

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    async def request(self, operation: str, arguments: dict[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """The result of one operation. Raises DelayServerError as the server names it, Lost."""
        async with self._exchange(timeout_s) as transport:
            self._last_id += 1
            await self._send(transport, encode_request(self._last_id, operation, arguments))
            return await self._reply(transport, self._last_id)

    async def request_all(
        self, operation: str, many: list[dict[str, Any]], timeout_s: float = 30.0
    ) -> list[dict[str, Any] | DelayServerError | None]:
        """Sends several requests at once. The result or the error of each; None for those without an answer. Raises Lost
        if none of them was sent for certain."""
        ids = [self._last_id + place for place in range(1, len(many) + 1)]
        self._last_id = ids[-1]
        answers: dict[int, dict[str, Any] | DelayServerError] = {}
        frames = [encode_request(number, operation, each) for number, each in zip(ids, many, strict=True)]
        try:
            async with self._exchange(timeout_s) as transport:
                await self._send(transport, b"".join(frames))
                while len(answers) < len(many):
                    number, answer = await self._any_reply(transport)
                    answers[number] = answer
        except Lost as lost:
            if not lost.sent:
                raise
        return [answers.get(number) for number in ids]

    async def post(self, operation: str, arguments: dict[str, Any], timeout_s: float = 30.0) -> None:
        """Send a request that gets no reply. Raises Lost."""
        async with self._exchange(timeout_s) as transport:
            self._last_id += 1
            self._posted.add(self._last_id)
            await self._send(transport, encode_request(self._last_id, operation, arguments | {"one_way": True}))

    @asynccontextmanager
    async def _exchange(self, timeout_s: float) -> AsyncIterator[SimulatedTransport]:
        """The connection for requests and their replies. It ends with an error in between, and after that time. Raises
        Lost."""
        try:
            transport = self._transport or await self._connect()
        except OSError as error:
            raise Lost(f"cannot connect: {error}", sent=False) from error
        time = self._network.time
        # Closed under the feet of who waits: a timer costs a fraction of a scope.
        timeout = time.at(time.now_s + timeout_s, transport.close)
        try:
            yield transport
        except OSError as error:
            self.close()
            raise Lost(f"no answer: {error!r}", sent=True) from error
        except trio.Cancelled:
            self.close()
            raise
        finally:
            timeout.action = None

    @contextmanager
    def noted(self, note: Callable[..., None]) -> Iterator[None]:
        """Note that an act had no answer or was refused, and go on."""
        try:
            yield
        except Lost as error:
            note(self.name, "no answer", why=str(error))
        except DelayServerError as error:
            note(self.name, "refused", error=error.name, message=error.message[:80])

    def _note_refused(self, reply: ReplyFrame) -> None:
        """Count what the reply says of requests without one."""
        if reply.id in self._posted:
            raise SimulationFailure(f"a request without a reply got one: {reply}")
        if reply.refused is not None:
            self.one_way_refused += reply.refused.messages
            self.first_refusal = reply.refused.first.name

    async def _any_reply(self, transport: SimulatedTransport) -> tuple[int, dict[str, Any] | DelayServerError]:
        while not self._unread:
            data = await transport.receive()
            if not data:
                raise ConnectionResetError("closed by the server")
            for payload in self._decoder.feed(data):
                reply = decode_reply(payload)
                if reply.id == 0 and reply.error is not None:
                    raise ConnectionResetError(str(reply.error))
                self._note_refused(reply)
                answer = reply.result if reply.error is None else reply.error
                assert answer is not None
                self._unread.append((reply.id, answer))
        return self._unread.popleft()

    async def sleep(self, duration_s: float) -> None:
        """As `trio.sleep`."""
        await self._network.time.sleep(duration_s)

    async def _connect(self) -> SimulatedTransport:
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._unread.clear()
        self.connections += 1
        self._transport = await self._network.connect(self._address)
        self._transports.append(self._transport)
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
                self._note_refused(reply)
                if reply.id != request_id:
                    if reply.id == 0 and reply.error is not None:
                        raise reply.error
                    continue
                if reply.error is not None:
                    raise reply.error
                assert reply.result is not None
                return reply.result


__all__ = ["Client", "DelayServerError", "Lost"]
