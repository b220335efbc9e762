"""One client connection: frames in, requests to their handlers, replies out, and all the bounds of it.

A handler is either quick (called at once, replies now or later through `reply`) or slow (a task of this connection's
nursery). A client that stops reading, sends half a frame and goes, or sends nonsense costs its own connection only.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from delayserver.protocol.errors import (
    DelayServerError,
    InternalError,
    MalformedFrame,
    ProtocolError,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    UnknownOperation,
)
from delayserver.protocol.frames import FrameDecoder, Request, decode_request, encode_error, encode_reply
from delayserver.settings import ListenSettings
from delayserver.transport import Transport

QuickHandler = Callable[["Connection", Request], None]
# The result, or None where the handler has replied. What a handler does before it gives its awaitable is done at once, in
# the order of the requests; tasks that begin in the same pass of the event loop have no order.
SlowHandler = Callable[["Connection", Request], Awaitable[dict[str, Any] | None]]

# Slow requests (pulls, lookups) of one connection at the same time; each is a task of a few KiB.
SLOW_REQUESTS_MAX = 1024

_numbers = itertools.count(1)


class Handlers:
    """What answers which operation, and the counters that all connections share."""

    def __init__(self, quick: Mapping[str, QuickHandler], slow: Mapping[str, SlowHandler]) -> None:
        self.quick = dict(quick)
        self.slow = dict(slow)
        self.errors: dict[str, int] = {}
        # Requests so far that became tasks of their own.
        self.slow_begun = 0
        self.on_bug: Callable[[str, BaseException], None] = lambda _operation, _error: None
        self.closed = False

    def close(self) -> None:
        """Refuse whatever comes: the files are about to be closed. A handler that has begun may still meet that."""
        self.closed = True
        self.quick = dict.fromkeys([*self.quick, *self.slow], _refuse)

    def count_error(self, name: str) -> None:
        """One more error of this name went to a client (names come from a fixed set)."""
        self.errors[name] = self.errors.get(name, 0) + 1


class Connection:
    """Serves one transport until it ends."""

    __slots__ = (
        "_decoder",
        "_handlers",
        "_nursery",
        "_reads",
        "_settings",
        "_slow",
        "_unsent",
        "_unsent_bytes",
        "_watching",
        "_writing",
        "number",
        "open",
        "transport",
    )

    def __init__(self, transport: Transport, handlers: Handlers, settings: ListenSettings) -> None:
        self.transport = transport
        self._handlers = handlers
        self._settings = settings
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._writing = False
        self._slow = 0
        self._decoder = FrameDecoder(settings.frame_bytes_max)
        self._reads = 0
        self._watching = False
        self._nursery: trio.Nursery | None = None
        # Counts connections of this process in the order in which they were accepted.
        self.number = next(_numbers)
        self.open = True

    async def run(self) -> None:
        """Read and answer until the peer goes, errs beyond repair, or the task is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self.transport.feed(self._received)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close at once; replies not yet sent are lost."""
        self.open = False
        self.transport.close()

    def _received(self, data: bytes) -> None:
        self._reads += 1
        try:
            for payload in self._decoder.feed(data):
                self._handle(payload)
        except ProtocolError as error:
            self._refuse(error)
        if self._decoder.buffered_bytes and not self._watching and self.open:
            assert self._nursery is not None
            self._watching = True
            self._nursery.start_soon(self._watch_frame)

    async def _watch_frame(self) -> None:
        """Give up on a peer that sends a part of a frame and then nothing for too long."""
        while self._decoder.buffered_bytes:
            reads = self._reads
            await trio.sleep(self._settings.idle_frame_timeout_ms / 1000)
            if self._decoder.buffered_bytes and self._reads == reads:
                self._refuse(MalformedFrame("the rest of a frame did not come in time"))
                break
        self._watching = False

    def _refuse(self, error: DelayServerError) -> None:
        """Tell the peer why, then close: behind such an error no frame boundary can be trusted."""
        self._handlers.count_error(error.name)
        self.reply(encode_error(error.request_id, error))
        self.close()

    def _handle(self, payload: bytes | memoryview) -> None:
        try:
            request = decode_request(payload)
        except DelayServerError as error:
            if not error.request_id:
                raise
            self.fail(error.request_id, error)
            return
        try:
            quick = self._handlers.quick.get(request.operation)
            if quick is not None:
                quick(self, request)
            else:
                self._begin_slow(request)
        except DelayServerError as error:
            self.fail(request.id, error)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not end the other clients
            self._bug(request, error)

    def _begin_slow(self, request: Request) -> None:
        slow = self._handlers.slow.get(request.operation)
        if slow is None:
            known = ", ".join(sorted([*self._handlers.quick, *self._handlers.slow]))
            raise UnknownOperation(f"{request.operation[:64]!r} is not one of: {known}")
        if self._slow >= SLOW_REQUESTS_MAX:
            raise QueueFull(f"{SLOW_REQUESTS_MAX} requests of this connection wait already")
        assert self._nursery is not None
        answer = slow(self, request)
        self._slow += 1
        self._handlers.slow_begun += 1
        self._nursery.start_soon(self._serve_slow, answer, request)

    async def _serve_slow(self, answer: Awaitable[dict[str, Any] | None], request: Request) -> None:
        try:
            result = await answer
            if result is not None:
                self.reply(encode_reply(request.id, result))
        except DelayServerError as error:
            self.fail(request.id, error)
        except Exception as error:  # noqa: BLE001 - as above
            self._bug(request, error)
        finally:
            self._slow -= 1

    def _bug(self, request: Request, error: Exception) -> None:
        if self._handlers.closed:  # what it did until then is not known
            self.fail(request.id, StorageFailed("the server stopped while it worked on this; look when it is back"))
            return
        self._handlers.on_bug(request.operation, error)
        self.fail(request.id, InternalError(f"{request.operation} met a bug of the server; its log says more"))

    def fail(self, request_id: int, error: DelayServerError) -> None:
        """Answer a request with a named error."""
        self._handlers.count_error(error.name)
        self.reply(encode_error(request_id, error))

    def reply(self, frame: bytes) -> None:
        """Send a frame, or keep what the peer does not take yet; past the bound the connection is closed."""
        if not self.open:
            return
        if not self._unsent:
            try:
                taken = self.transport.send_now(frame)
            except OSError:
                self.close()
                return
            if taken == len(frame):
                return
        else:
            taken = 0
        self._unsent.append(memoryview(frame)[taken:])
        self._unsent_bytes += len(frame) - taken
        if self._unsent_bytes > self._settings.unsent_bytes_max:
            self._handlers.count_error("client_stopped_reading")
            self.close()
        elif not self._writing and self._nursery is not None:
            self._writing = True
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Send what is kept, as the peer takes it. Runs only while something is kept."""
        try:
            while self._unsent and self.open:
                await self.transport.wait_writable()
                taken = self.transport.send_now(self._unsent[0])
                self._unsent_bytes -= taken
                if taken == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][taken:]
        except OSError:
            self.close()
        finally:
            self._writing = False


def _refuse(_connection: Connection, _request: Request) -> None:
    raise ShuttingDown("the server is stopping", retry_after_ms=1000)
