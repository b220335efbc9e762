"""One client connection: frames in, requests to their handlers, replies out, and all the bounds of it.

A handler is either quick (called at once, replies now or later through `reply`) or slow (a task of this connection's
nursery). A client that stops reading, sends half a frame and goes, or sends nonsense costs its own connection only.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio

from delayserver.config.settings import ListenSettings
from delayserver.front.unsent import Unsent
from delayserver.net.transport import Transport
from delayserver.operations.servers import Peer
from delayserver.protocol import operations as names_of
from delayserver.protocol.errors import (
    DelayServerError,
    FrameTimeout,
    InternalError,
    ProtocolError,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    UnknownOperation,
)
from delayserver.protocol.frames import (
    FrameDecoder,
    Request,
    decode_request,
    encode_error,
    encode_reply,
    peek_operation,
)
from delayserver.runtime.damage import DamageReport, as_disk_error, named
from delayserver.runtime.fair_shares import Account, Ticket
from delayserver.runtime.fair_turns import REQUEST_US, SLICE_ITEMS, TASK_US, FairTurns, Work
from delayserver.state.connections import Connections
from store.errors import StoreError

QuickHandler = Callable[["Connection", Request], None]
# The result, or None where the handler has replied. What a handler does before it gives its awaitable is done at once, in
# the order of the requests; tasks that begin in the same pass of the event loop have no order.
SlowHandler = Callable[["Connection", Request], Awaitable[dict[str, Any] | None]]

# Slow requests (pulls, lookups) of one connection at the same time; each is a task of a few KiB.
SLOW_REQUESTS_MAX = 1024
# A frame from this size on is measured while it is begun; what a smaller one costs, when it comes alone, is not.
LARGE_FRAME_BYTES = 4096
# The operations that go through their items one by one, and with how many of them a request is large.
ITEM_OPERATIONS = frozenset({names_of.CANCEL, names_of.LOOKUP, names_of.RESCHEDULE, names_of.REDISPATCH})
LARGE_ITEMS = 64

_numbers = itertools.count(1)

logger = logging.getLogger("delayserver")


class Handlers:
    """What answers which operation, and the counters that all connections of this front share."""

    def __init__(self, damage: DamageReport) -> None:
        self.quick: dict[str, QuickHandler] = {}
        self.slow: dict[str, SlowHandler] = {}
        self.damage = damage
        # Requests so far that became tasks of their own.
        self.slow_begun = 0
        self.closed = False

    def began_slow(self) -> None:
        """A request became a task of its own."""
        self.slow_begun += 1

    def serve(self, quick: Mapping[str, QuickHandler], slow: Mapping[str, SlowHandler]) -> None:
        """From now on these answer."""
        self.quick, self.slow = dict(quick), dict(slow)

    def close(self) -> None:
        """Refuse whatever comes: the files are about to be closed. A handler that has begun may still meet that."""
        self.closed = True
        self.quick = dict.fromkeys([*self.quick, *self.slow], _refuse)


class Connection:
    """Serves one transport until it ends."""

    __slots__ = (
        "_account",
        "_blocked",
        "_came_bytes",
        "_connections",
        "_decoder",
        "_fair",
        "_frame_waits",
        "_handlers",
        "_large_runs",
        "_large_waits",
        "_long",
        "_memory",
        "_nursery",
        "_pauses",
        "_reading",
        "_ready",
        "_ready_bytes",
        "_sent_bytes",
        "_settings",
        "_share",
        "_slow",
        "_ticket",
        "_unsent",
        "_watching_frame",
        "_watching_unsent",
        "_writing",
        "open",
        "peer",
        "transport",
    )

    def __init__(
        self,
        transport: Transport,
        handlers: Handlers,
        settings: ListenSettings,
        connections: Connections,
        fair: FairTurns,
    ) -> None:
        self.transport = transport
        self._handlers = handlers
        self._settings = settings
        self._connections = connections
        self._memory = connections.memory
        self._share = connections.memory.join()
        self._fair = fair
        self._account = Account()
        # Its next requests wait for a turn.
        self._ticket: Ticket | None = None
        # Whether the last request that was measured took long.
        self._long = False
        # A large request runs, and the next one waits for its end, with all behind it.
        self._large_runs = False
        self._large_waits = False
        self._decoder = FrameDecoder(settings.frame_bytes_max)
        # Requests that have come and are not begun, and actions of begun ones that make their replies when there is room.
        self._ready: deque[bytes | memoryview] = deque()
        self._ready_bytes = 0
        self._blocked: deque[Callable[[], None]] = deque()
        self._unsent = Unsent()
        # Since the beginning: what came, and what the kernel took.
        self._came_bytes = 0
        self._sent_bytes = 0
        self._reading = True
        self._pauses = 0
        self._frame_waits = False
        self._writing = False
        self._watching_frame = False
        self._watching_unsent = False
        self._slow = 0
        self._nursery: trio.Nursery | None = None
        # Numbers count the connections of this process in the order in which they were accepted.
        self.peer = Peer(next(_numbers), transport.peer)
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
            self._nursery = None

    def close(self) -> None:
        """Close at once. All that the connection held is freed, and what was handed out in replies that are not sent is
        given back."""
        if not self.open:
            return
        self.open = False
        self._leave_turn()
        self._decoder.drop()
        self._ready.clear()
        self._ready_bytes = 0
        self._blocked.clear()
        lost = self._unsent.drop()
        self.transport.close()
        self._memory.leave(self._share)
        for give_back in lost:
            give_back()

    # -- what comes

    def _received(self, data: bytes) -> None:
        self._came_bytes += len(data)
        try:
            payloads = self._decoder.feed(data)
        except ProtocolError as error:
            self._refuse(error)
            return
        if payloads:
            if self._share.frame_bytes:
                self._memory.end_frame(self._share)
            self._ready.extend(payloads)
            self._ready_bytes += sum(map(len, payloads))
            self._begin_ready()
        if self._decoder.buffered_bytes and self.open:
            self._await_rest_of_frame()

    def _begin_ready(self) -> None:
        """Begin the next requests of this connection, in the order in which they came. Nothing else begins a request, so it
        is decided here when it is a connection's turn."""
        ready = self._ready
        if self._long and ready and self.open:
            self._wait_for_turn()
        try:
            if len(ready) == 1 and len(ready[0]) < LARGE_FRAME_BYTES:  # the usual request
                if self._may_begin():
                    payload = ready.popleft()
                    self._ready_bytes -= len(payload)
                    self._handle(payload)
            else:
                self._begin_some()
        except ProtocolError as error:
            self._refuse(error)
        if ready or self._share.ready_bytes:
            self._hold_rest()

    def _begin_some(self) -> None:
        """Begin requests while the step or the turn has time for them, at least one; the rest waits for the next turn."""
        ready, fair, handlers = self._ready, self._fair, self._handlers
        begun = False
        while ready and self._may_begin():
            if begun and fair.step_left_us <= 0:
                self._wait_for_turn()
                return
            if self._large_runs and self._is_large_unread(ready[0]):
                self._large_waits = True
                return
            tasks, begun_us, begun = handlers.slow_begun, fair.now_us(), True
            payload = ready.popleft()
            self._ready_bytes -= len(payload)
            self._handle(payload)
            least_us = REQUEST_US if tasks == handlers.slow_begun else TASK_US
            self._long = fair.spend(self._account, begun_us, least_us)
            if self._long and ready and self.open:
                self._wait_for_turn()

    def _is_large_unread(self, payload: bytes | memoryview) -> bool:
        """Whether a request that is not decoded is a large one; of a smaller frame decoding tells."""
        return len(payload) >= LARGE_FRAME_BYTES and peek_operation(payload) in ITEM_OPERATIONS

    def _wait_for_turn(self) -> None:
        if self._ticket is None:
            self._ticket = self._fair.join(self._account, self._take_turn)

    def _leave_turn(self) -> None:
        if self._ticket is not None:
            self._fair.shares.leave(self._ticket)
            self._ticket = None

    def _take_turn(self) -> None:
        self._ticket = None
        try:
            self._begin_some()
        except ProtocolError as error:
            self._refuse(error)
        self._hold_rest()

    def _hold_rest(self) -> None:
        """What is not begun is counted, and while it is there nothing more is read."""
        self._memory.hold_ready(self._share, self._ready_bytes)
        self._read_or_pause()

    def _may_begin(self) -> bool:
        """Not before its turn, nor while it has no room for replies."""
        return (
            self.open
            and self._ticket is None
            and not self._large_waits
            and (not self._unsent.bytes or self._has_room())
        )

    def _has_room(self) -> bool:
        """Not while too much is unread, nor before begun requests whose replies wait for that."""
        return self.open and (not self._unsent.bytes or (not self._blocked and self._memory.may_begin(self._share)))

    def _read_or_pause(self) -> None:
        """What is not read stays in the kernel, and so with the client."""
        reading = not self._ready and not self._frame_waits
        if reading == self._reading or not self.open:
            return
        self._reading = reading
        if reading:
            self.transport.resume()
        else:
            self._pauses += 1
            self.transport.pause()

    def _await_rest_of_frame(self) -> None:
        decoder = self._decoder
        if not self._memory.begin_frame(self._share, decoder.wanted_bytes, decoder.buffered_bytes, self._frame_granted):
            self._frame_waits = True
            self._read_or_pause()
        if not self._watching_frame:
            assert self._nursery is not None
            self._watching_frame = True
            self._nursery.start_soon(self._watch_frame)

    def _frame_granted(self) -> None:
        self._frame_waits = False
        self._read_or_pause()

    async def _watch_frame(self) -> None:
        """Give up on a peer that sends a part of a frame and then nothing, or too little, for too long. Time in which the
        server did not read is not counted."""
        timeout_ms = self._settings.idle_frame_timeout_ms
        while self._decoder.buffered_bytes:
            came, pauses = self._came_bytes, self._pauses
            wanted = self._memory.progress_bytes(self._share, self._decoder.wanted_bytes - self._decoder.buffered_bytes)
            await trio.sleep(timeout_ms / 1000)
            if not self._reading or pauses != self._pauses or not self._decoder.buffered_bytes:
                continue
            came = self._came_bytes - came
            if came < wanted:
                self._refuse(FrameTimeout(f"of the rest of a frame {came} bytes came within {timeout_ms} ms"))
        self._watching_frame = False

    def _refuse(self, error: DelayServerError) -> None:
        """Tell the peer why, then close: behind such an error no frame boundary can be trusted."""
        self._connections.count_error(error.name)
        self.reply(encode_error(error.request_id, error))
        self.close()

    def _handle(self, payload: bytes | memoryview) -> None:
        try:
            request = decode_request(payload, self._settings.frame_items_max)
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
                self._begin_slow(request, payload)
        except DelayServerError as error:
            self.fail(request.id, error)
        except (StoreError, FileNotFoundError) as error:
            self._refused_by_disk(request.id, error)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not end the other clients
            self._bug(request.id, request.operation, error)

    def _begin_slow(self, request: Request, payload: bytes | memoryview) -> None:
        slow = self._handlers.slow.get(request.operation)
        if slow is None:
            known = ", ".join(sorted([*self._handlers.quick, *self._handlers.slow]))
            raise UnknownOperation(f"{request.operation[:64]!r} is not one of: {known}")
        if self._slow >= SLOW_REQUESTS_MAX:
            raise QueueFull(f"{SLOW_REQUESTS_MAX} requests of this connection wait already")
        assert self._nursery is not None
        if request.operation in ITEM_OPERATIONS and _is_large(request):
            self._begin_large(slow, request, payload)
            return
        answer = slow(self, request)
        self._slow += 1
        self._handlers.began_slow()
        # Without the arguments: an operation that waits keeps only what it needs of them.
        self._nursery.start_soon(self._serve_slow, answer, request.id, request.operation)

    def _begin_large(self, slow: SlowHandler, request: Request, payload: bytes | memoryview) -> None:
        """One at a time. Another one waits as bytes and is decoded once more when it is begun."""
        if self._large_runs:
            self._ready.appendleft(payload)
            self._ready_bytes += len(payload)
            self._large_waits = True
            return
        assert self._nursery is not None
        self._large_runs = True
        self._slow += 1
        self._handlers.began_slow()
        self._nursery.start_soon(self._serve_large, slow, request)

    async def _serve_large(self, slow: SlowHandler, request: Request) -> None:
        """Serve a request with many items. It takes a turn before it does anything."""
        try:
            await self._fair.take(self._account, SLICE_ITEMS)
            await self._serve_slow(slow(self, request), request.id, request.operation)
        finally:
            self._large_ended()

    def _large_ended(self) -> None:
        self._large_runs = False
        if self._large_waits:
            self._large_waits = False
            if self.open:
                self._wait_for_turn()

    async def _serve_slow(self, answer: Awaitable[dict[str, Any] | None], request_id: int, operation: str) -> None:
        try:
            result = await answer
            if result is not None:
                if not self._unsent.bytes:
                    self.reply(encode_reply(request_id, result))
                else:
                    self.when_room(partial(self._reply_result, request_id, result))
        except DelayServerError as error:
            self.fail(request_id, error)
        except (StoreError, FileNotFoundError) as error:
            self._refused_by_disk(request_id, error)
        except Exception as error:  # noqa: BLE001 - as above
            self._bug(request_id, operation, error)
        finally:
            self._slow -= 1

    def work(self) -> Work:
        """The slices of a request that begins."""
        return Work(self._fair, self._account)

    def _reply_result(self, request_id: int, result: dict[str, Any]) -> None:
        self.reply(encode_reply(request_id, result))

    def _refused_by_disk(self, request_id: int, error: StoreError | FileNotFoundError) -> None:
        """Answer with the name of what the disk did; the operator hears of it without a traceback."""
        if self._handlers.closed:
            self._cut_off(request_id)
            return
        refused = as_disk_error(error)
        self._handlers.damage.report(refused)
        self.fail(request_id, named(refused))

    def _cut_off(self, request_id: int) -> None:
        """What the request did until the server stopped is not known."""
        self.fail(request_id, StorageFailed("the server stopped while it worked on this; look when it is back"))

    def _bug(self, request_id: int, operation: str, error: Exception) -> None:
        if self._handlers.closed:
            self._cut_off(request_id)
            return
        logger.error("bug while answering %s", operation, exc_info=error)
        self.fail(request_id, InternalError(f"{operation} met a bug of the server; its log says more"))

    def fail(self, request_id: int, error: DelayServerError) -> None:
        """Answer a request with a named error."""
        self._connections.count_error(error.name)
        self.reply(encode_error(request_id, error))

    # -- what goes

    def reply_bytes(self) -> int:
        """How large a reply may be whose size is free to choose; 0: none is to be made before `when_room` says so."""
        return self._memory.reply_bytes(self._share)

    def when_room(self, action: Callable[[], None]) -> None:
        """Make a reply as soon as the client has read enough: in this call, or later in the order of the calls, or never
        where the connection ends before."""
        if self._has_room():
            action()
        elif self.open:
            self._blocked.append(action)

    async def room(self) -> None:
        """Return when a large reply may be made: the client has read enough of what was sent before."""
        if not self._has_room():
            room = trio.Event()
            self.when_room(room.set)
            await room.wait()

    def reply(self, frame: bytes, lost: Callable[[], None] | None = None) -> None:
        """Send a frame, or keep what the peer does not take yet. `lost` is called if its last byte is never sent."""
        if not self.open:
            if lost is not None:
                lost()
            return
        taken = 0
        if not self._unsent.bytes:
            try:
                taken = self.transport.send_now(frame)
            except OSError:
                self.close()
                if lost is not None:
                    lost()
                return
            self._sent_bytes += taken
            if taken == len(frame):
                return
        self._unsent.add(memoryview(frame)[taken:], lost)
        self._memory.hold_unsent(self._share, self._unsent.bytes)
        if not self._writing and self._nursery is not None:
            self._writing = True
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Send what is kept, as the peer takes it. Runs only while something is kept."""
        assert self._nursery is not None
        if not self._watching_unsent:
            self._watching_unsent = True
            self._nursery.start_soon(self._watch_unsent)
        try:
            while self._unsent.bytes:
                await self.transport.wait_writable()
                if not self._unsent.bytes:  # closed meanwhile
                    return
                taken = self.transport.send_now(self._unsent.first())
                self._sent_bytes += taken
                self._unsent.sent(taken)
                self._memory.hold_unsent(self._share, self._unsent.bytes)
                self._go_on()
        except OSError:
            self.close()
        finally:
            self._writing = False

    def _go_on(self) -> None:
        """Some of the replies went out: make those that wait for it, then begin the next requests."""
        blocked = self._blocked
        while blocked and self.open and self._memory.may_begin(self._share):
            blocked.popleft()()
        self._begin_ready()

    async def _watch_unsent(self) -> None:
        """Cut off a client that has unread replies and reads nothing, or too little, for too long."""
        while self._unsent.bytes:
            received = self._sent_bytes - self.transport.unacknowledged_bytes()
            wanted = self._memory.progress_bytes(self._share, self._unsent.bytes)
            await trio.sleep(self._settings.unsent_timeout_ms / 1000)
            if not self._unsent.bytes:
                break
            if self._sent_bytes - self.transport.unacknowledged_bytes() - received < wanted:
                self._connections.count_error("client_stopped_reading")
                self.close()
        self._watching_unsent = False


def _is_large(request: Request) -> bool:
    """Whether it has many items. How many a `redispatch` finds is not known before."""
    if request.operation == names_of.REDISPATCH:
        return True
    arguments = request.arguments
    count = arguments.get("count")
    if type(count) is int and count > LARGE_ITEMS:
        return True
    lists = (arguments.get("receipts"), arguments.get("messages"), arguments.get("items"))
    return any(type(items) is list and len(items) > LARGE_ITEMS for items in lists)


def _refuse(_connection: Connection, _request: Request) -> None:
    raise ShuttingDown("the server is stopping", retry_after_ms=1000)
