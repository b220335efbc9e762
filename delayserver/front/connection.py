"""One client connection: reads frames, calls the handlers, sends replies, and bounds memory and time.

A client without rights, on a server that asks for tokens, sends small frames alone. All such clients share the time of one.
A quick handler is called at once and replies now or later through `reply`. A slow handler is a task of the connection's
nursery. A client that stops reading, sends half a frame or sends nonsense loses only its own connection.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import trio

from delayserver.config.settings import ListenSettings
from delayserver.front.unsent import Unsent
from delayserver.front.waits import Waits
from delayserver.logs.events import EventLogger
from delayserver.net.transport import Transport
from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.nodes.servers import Peer
from delayserver.protocol import operation_names as names_of
from delayserver.protocol.arguments import integer
from delayserver.protocol.errors import (
    DeadlinePassed,
    DelayServerError,
    FrameTimeout,
    FrameTooLarge,
    InternalError,
    ProtocolError,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    TooManyConnections,
    Unauthenticated,
    UnknownOperation,
    kept,
)
from delayserver.protocol.foreign import HTTP, HTTP_ANSWER
from delayserver.protocol.frames import (
    FirstFrames,
    FrameDecoder,
    OneWayRefused,
    RequestFrame,
    decode_request,
    encode_error,
    encode_reply,
    peek_operation,
    with_refused,
)
from delayserver.runtime.damage import DamageReport, as_disk_error, named
from delayserver.runtime.fair_shares import Account, Ticket
from delayserver.runtime.fair_turns import REQUEST_US, SLICE_ITEMS, STEP_US_MAX, TASK_US, FairTurns, Work
from delayserver.state.connections.broadcasts import Broadcasts
from delayserver.state.connections.connection_memory import FrameTurns
from delayserver.state.connections.connections import Connections
from delayserver.state.connections.newcomers import Newcomer
from delayserver.state.connections.parties import Party
from store.errors import StoreError

Read = TypeVar("Read")

QuickHandler = Callable[["Connection", RequestFrame], None]
# The awaitable gives the result, or None if the handler has replied itself. The call that makes the awaitable runs at
# once, in the order of the requests. Tasks that begin in the same event-loop iteration run in no fixed order.
SlowHandler = Callable[["Connection", RequestFrame], Awaitable[dict[str, Any] | None]]

# Slow requests (pulls, lookups) of one connection in parallel; each is a task of a few KiB.
SLOW_REQUESTS_MAX = 1024
# Requests that wait for messages and end in one turn when their connection ends: a millisecond. Each is a task to cancel.
WAITS_AT_ONCE = 32
# Pings of one connection that wait for one-way requests.
UNTIL_TOLD_MAX = 64
# The cost of beginning a request is measured from this frame size on. A smaller frame that comes alone is not measured.
LARGE_FRAME_BYTES = 4096
# A frame of a client without rights. A `hello` with a token has a few hundred bytes.
FIRST_FRAME_BYTES_MAX = 4096
# An unfinished frame is looked at so many times within `idle_frame_timeout_ms`.
FRAME_LOOKS = 6
# Operations that go through their items one by one. Their requests are large with more than LARGE_ITEMS items.
ITEM_OPERATIONS = frozenset(
    {
        names_of.CANCEL,
        names_of.LOOKUP,
        names_of.RESCHEDULE,
        names_of.REDISPATCH,
        names_of.GROUPS,
        names_of.ACK,
        names_of.NACK,
        names_of.EXTEND,
    }
)
LARGE_ITEMS = 64
# Deliveries that follow one another cost little, so a request with as many as a pull hands out is not large.
DELIVERIES_OPERATIONS = frozenset({names_of.ACK, names_of.NACK, names_of.EXTEND})
LARGE_DELIVERIES = 16_384

_numbers = itertools.count(1)

events = EventLogger()


class Handlers:
    """The handlers by operation, and the counters that all connections of this front share."""

    def __init__(self, damage: DamageReport) -> None:
        self.quick: dict[str, QuickHandler] = {}
        self.slow: dict[str, SlowHandler] = {}
        self.damage = damage
        # Requests so far that became tasks.
        self.slow_begun = 0
        self.closed = False
        # Whether clients need a token.
        self.guarded = False

    def count_slow(self) -> None:
        """Counts a request that became a task."""
        self.slow_begun += 1

    def serve(self, quick: Mapping[str, QuickHandler], slow: Mapping[str, SlowHandler]) -> None:
        """Replaces all handlers by these."""
        self.quick, self.slow = dict(quick), dict(slow)

    def guard(self) -> None:
        """From now on clients need a token."""
        self.guarded = True

    def close(self) -> None:
        """Refuses all new requests: the files are about to be closed, which a running handler may meet."""
        self.closed = True
        self.quick = dict.fromkeys([*self.quick, *self.slow], _refuse)


class Connection:
    """Serves one transport until it ends."""

    __slots__ = (
        "_account",
        "_again",
        "_at_end",
        "_blocked",
        "_came_bytes",
        "_cancelled",
        "_connections",
        "_decoder",
        "_fair",
        "_first",
        "_frame_waits",
        "_handlers",
        "_large_runs",
        "_large_waits",
        "_last_one_way",
        "_long",
        "_making_bytes",
        "_memory",
        "_new",
        "_notices",
        "_nursery",
        "_party",
        "_pauses",
        "_reading",
        "_ready",
        "_ready_bytes",
        "_refused",
        "_sent_bytes",
        "_settings",
        "_share",
        "_slow",
        "_ticket",
        "_unsent",
        "_until_told",
        "_untold",
        "_watching_frame",
        "_watching_unsent",
        "_writing",
        "access",
        "broadcasts",
        "open",
        "peer",
        "transport",
        "waits",
    )

    def __init__(
        self,
        transport: Transport,
        handlers: Handlers,
        settings: ListenSettings,
        connections: Connections,
        fair: FairTurns,
        party: Party,
    ) -> None:
        """`party`: the client by its address."""
        self.transport = transport
        self._handlers = handlers
        self._settings = settings
        self._connections = connections
        self._memory = connections.memory
        self._share = connections.memory.join(party, FrameTurns(self._frame_granted, self._frame_withdrawn))
        self._fair = fair
        self._party = party
        connections.parties.join(party)
        self._account = Account(party.account)
        # Set while the next requests wait for a turn.
        self._ticket: Ticket | None = None
        # True if the last measured request took at least LONG_US.
        self._long = False
        # `_large_runs`: a large request runs. `_large_waits`: another large one and all requests behind it wait for it.
        self._large_runs = False
        self._large_waits = False
        self._decoder = FrameDecoder(settings.frame_bytes_max)
        # `_ready`: frames of requests that have not begun. `_blocked`: actions that make replies when there is room.
        self._ready: deque[bytes | memoryview] = deque()
        self._ready_bytes = 0
        self._blocked: deque[Callable[[], None]] = deque()
        self._unsent = Unsent()
        # The size of a reply that is being made in slices; 0 while there is none. Until it is made there is no room for
        # other large ones, so that it is the only one that the memory holds.
        self._making_bytes = 0
        # The refusals of one-way requests since the last reply.
        self._refused: OneWayRefused | None = None
        # One-way requests under way, by their numbers, and the actions that wait for the end of all of them.
        self._untold: set[int] = set()
        self._last_one_way = 0
        self._until_told: list[Callable[[], None]] = []
        # Bytes received, and bytes that the kernel took, since the connection was accepted.
        self._came_bytes = 0
        self._sent_bytes = 0
        self._reading = True
        self._pauses = 0
        self._frame_waits = False
        self._writing = False
        self._watching_frame = False
        self._watching_unsent = False
        self._slow = 0
        # Held while a read goes on whose result had no room.
        self._again: trio.Lock | None = None
        # True if the client understands notices.
        self._notices = False
        self._nursery: trio.Nursery | None = None
        # Then no task can be started, and what the peer does not take now it never gets.
        self._cancelled = False
        # What is called with its number when it has ended.
        self._at_end: set[Callable[[int], None]] = set()
        # Numbers count the connections of this process in the order in which they were accepted.
        self.peer = Peer(next(_numbers), transport.peer)
        self.open = True
        self.broadcasts = Broadcasts()
        self.waits = Waits()
        # The rights of the client. `EVERYTHING` until it gives a token; a guarded front takes that for no rights.
        self.access: Access = EVERYTHING
        # True until it is known that a client is behind the connection. `_first`: the bytes of a client without rights.
        self._new = True
        self._first: FirstFrames | None = None
        connections.newcomers.add(self.peer.number, Newcomer(party, fair.now_us(), self.end))
        if handlers.guarded:
            self._expect_token()

    async def run(self) -> None:
        """Reads and answers until the peer closes, sends a fatal error, or the task is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self.transport.feed(self._received)
                except OSError:
                    pass
                except trio.Cancelled:
                    self._cancelled = True
                    raise
                # No request begins from here on: tasks that end meanwhile may let the next ones take their turn.
                self.close()
                while self.waits.cancel_some(WAITS_AT_ONCE):
                    await self._fair.take(self._account, WAITS_AT_ONCE)
                nursery.cancel_scope.cancel()
        except* OSError:
            pass
        finally:
            self.close()
            self._nursery = None

    def authorise(self, access: Access) -> None:
        """The client has these rights from the next request on. Raises TooManyConnections if it has as many connections as
        a client may have."""
        party = self._connections.parties.of_token(access.token_id)
        if party is not self._party and party.connections >= self._settings.connections_of_client_max:
            raise TooManyConnections(
                f"the token {access.token_id} has {party.connections} connections already: share them, or raise "
                "listen.connections_of_client_max",
                retry_after_ms=1000,
            )
        self.access = access
        self._belong(party)

    def believe(self) -> None:
        """The peer has proven that it is a server."""
        if self._first is not None:
            self._belong(self._connections.parties.alone())

    def _belong(self, party: Party) -> None:
        """The connection is one of this client from now on."""
        parties = self._connections.parties
        parties.join(party)
        parties.leave(self._party)
        self._party = party
        self._memory.move(self._share, party)
        self._account.move(party.account)
        if self._first is not None:
            self.transport.limit(0)
        self._known()

    def _known(self) -> None:
        """A client is behind the connection."""
        self._new = False
        self._connections.newcomers.remove(self.peer.number)

    def expect_token(self) -> None:
        """The server asks for tokens from now on. Ends the connection if it is in the middle of a request."""
        if self._ready or self._decoder.buffered_bytes:
            self.end(Unauthenticated("this server asks for a token from now on"))
        elif self.open:
            newcomer = Newcomer(self._party, self._fair.now_us(), self.end)
            newcomer.speak()
            self._connections.newcomers.add(self.peer.number, newcomer)
            self._expect_token()

    def _expect_token(self) -> None:
        self._new = True
        self._first = FirstFrames(FIRST_FRAME_BYTES_MAX)
        self.transport.limit(FIRST_FRAME_BYTES_MAX)
        self._account.move(self._connections.parties.strangers)

    def take_notices(self) -> None:
        """The client understands notices."""
        self._notices = True

    def notice(self, frame: bytes) -> None:
        """Sends a notice, unless the client would not understand it. A client with unread replies gets it behind them."""
        if self._notices:
            self.reply(frame)

    def at_end(self, action: Callable[[int], None]) -> bool:
        """Calls `action` once with the number of this connection when it has ended. False if it has ended already."""
        if self.open:
            self._at_end.add(action)
        return self.open

    def end(self, error: DelayServerError) -> None:
        """Names the reason to the client, then closes. Requests in flight have an unknown result."""
        self._refuse(error)

    def close(self) -> None:
        """Closes at once, frees the memory, and calls `lost` of every reply that was not sent. Idempotent."""
        if not self.open:
            return
        self.open = False
        self._connections.newcomers.remove(self.peer.number)
        self._connections.parties.leave(self._party)
        self._leave_turn()
        self._decoder.drop()
        self._ready.clear()
        self._ready_bytes = 0
        self._blocked.clear()
        self.broadcasts.end()
        lost = self._unsent.drop()
        self.transport.close()
        self._memory.leave(self._share)
        for give_back in lost:
            give_back()
        for action in self._at_end:
            action(self.peer.number)

    # -- requests

    def _received(self, data: bytes) -> None:
        if self._new and self._first is not None:
            self._first.feed(data)
            self._begin_first()
            return
        self._came_bytes += len(data)
        try:
            payloads = self._decoder.feed(data)
        except ProtocolError as error:
            self._refuse(error)
            return
        if payloads:
            if self._new:
                self._known()
            if self._share.frame_bytes:
                self._memory.end_frame(self._share)
            if len(payloads) == 1 and len(payloads[0]) < LARGE_FRAME_BYTES and not self._ready and not self._long:
                self._begin_usual(payloads[0])
            else:
                self._ready.extend(payloads)
                self._ready_bytes += sum(map(len, payloads))
                self._begin_ready()
        if self._decoder.buffered_bytes and self.open:
            self._await_rest_of_frame()

    def _begin_first(self) -> None:
        """Begins requests of a client without rights. All such clients together have the time that is left of a step, or
        turns that one account pays for."""
        first, fair = self._first, self._fair
        assert first is not None
        try:
            while self._new and self._may_begin():
                if fair.step_left_us <= 0:
                    self._wait_for_turn()
                    break
                begun_us = fair.now_us()
                payload = first.next()
                if payload is None:
                    break
                self._connections.newcomers.spoke(self.peer.number)
                self._handle(payload)
                fair.spend(self._account, begun_us, REQUEST_US)
        except FrameTooLarge as error:
            self._refuse(error if error.speaks else Unauthenticated(f"{error.message}: say hello with a token first"))
        except ProtocolError as error:
            self._refuse(error)
        if self._new:
            self._read_or_pause()
            return
        self._first = None
        self._read_or_pause()
        rest = first.take()
        if rest and self.open:
            self._received(rest)

    def _begin_usual(self, payload: bytes | memoryview) -> None:
        """Begins a small request that came alone, without measuring it, or lets it wait."""
        try:
            if self._may_begin():
                self._handle(payload)
            else:
                self._ready.append(payload)
                self._ready_bytes += len(payload)
        except ProtocolError as error:
            self._refuse(error)
        if self._ready or self._share.ready_bytes:
            self._hold_rest()

    def _begin_ready(self) -> None:
        """Begins the next requests in order, or waits for a turn. This, `_begin_usual` and `_take_turn` begin requests."""
        ready = self._ready
        if self._first is not None:
            self._begin_first()
            return
        if self._long and ready and self.open:
            self._wait_for_turn()
        try:
            self._begin_some()
        except ProtocolError as error:
            self._refuse(error)
        if ready or self._share.ready_bytes:
            self._hold_rest()

    def _begin_some(self) -> None:
        """Begins at least one request, and more while the step or turn has time. The rest waits for the next turn."""
        ready, fair, handlers = self._ready, self._fair, self._handlers
        begun = False
        while ready and self._may_begin():
            if fair.step_left_us <= (0 if begun else -STEP_US_MAX):
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
        """True for a large frame of an operation with items. `_is_large` judges smaller frames after decoding."""
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
        if self._first is not None:
            self._begin_first()
            return
        try:
            self._begin_some()
        except ProtocolError as error:
            self._refuse(error)
        self._hold_rest()

    def _hold_rest(self) -> None:
        """Counts the memory of requests that have not begun. The connection reads nothing while there are any."""
        self._memory.hold_ready(self._share, self._ready_bytes)
        self._read_or_pause()

    def _may_begin(self) -> bool:
        """True if the connection waits for no turn and no large request, and has room for replies."""
        return (
            self.open
            and self._ticket is None
            and not self._large_waits
            and (not self._unsent.bytes or self._has_room())
        )

    def _has_room(self) -> bool:
        """False while the client has too much unread, a reply is being made, or earlier replies wait for room."""
        if self._making_bytes:
            return False
        return self.open and (not self._unsent.bytes or (not self._blocked and self._memory.may_begin(self._share)))

    def _read_or_pause(self) -> None:
        """Stops or resumes reading. Unread bytes stay in the kernel, so TCP slows the client down."""
        reading = not self._ready and not self._frame_waits and (self._first is None or self._may_begin())
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
        if not self._memory.begin_frame(self._share, decoder.wanted_bytes, decoder.buffered_bytes):
            self._frame_waits = True
            self._read_or_pause()
        if not self._watching_frame:
            assert self._nursery is not None
            self._watching_frame = True
            self._nursery.start_soon(self._watch_frame)

    def _frame_granted(self) -> None:
        self._frame_waits = False
        self._read_or_pause()

    def _frame_withdrawn(self) -> None:
        self._frame_waits = True
        self._read_or_pause()

    async def _watch_frame(self) -> None:
        """Refuses a peer that sends a part of a frame and then nothing within `idle_frame_timeout_ms`, or too little in one
        look while other frames wait for its room. A look in which the server paused reading is not counted."""
        look_ms = self._settings.idle_frame_timeout_ms / FRAME_LOOKS
        still = 0
        while self._decoder.buffered_bytes:
            came, pauses, wanted = self._came_bytes, self._pauses, self._memory.hurry_bytes(self._share)
            await trio.sleep(look_ms / 1000)
            if not self._reading or pauses != self._pauses or not self._decoder.buffered_bytes:
                still = 0
                continue
            came = self._came_bytes - came
            still = 0 if came else still + 1
            if came < wanted or still >= FRAME_LOOKS:
                looks_ms = look_ms * max(still, 1)
                self._refuse(FrameTimeout(f"of the rest of a frame {came} bytes came within {looks_ms:.0f} ms"))
        self._watching_frame = False

    def _refuse(self, error: DelayServerError) -> None:
        """Sends the error and closes, because frame boundaries cannot be trusted after such an error."""
        self._connections.count_error(error.name)
        speaks_http = isinstance(error, FrameTooLarge) and error.speaks == HTTP
        self.reply(HTTP_ANSWER if speaks_http else encode_error(error.request_id, error))
        self.close()

    def _handle(self, payload: bytes | memoryview) -> None:
        try:
            request = decode_request(payload, self._settings.frame_items_max)
        except DelayServerError as error:
            if not error.request_id:
                raise
            self.fail(error.request_id, error)
            return
        last_one_way = self._last_one_way
        try:
            if "deadline_ms" in request.arguments:
                self._require_time(request)
            quick = self._handlers.quick.get(request.operation)
            if quick is not None:
                quick(self, request)
            else:
                self._begin_slow(request, payload)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not end the other clients
            self._answer_error(request, self._named(request.operation, error))
            self._end_one_way_behind(last_one_way)

    def _require_time(self, request: RequestFrame) -> None:
        """Raises DeadlinePassed for a request whose `deadline_ms` came before its turn, and InvalidArgument."""
        deadline_ms = request.arguments.get("deadline_ms")
        if deadline_ms is not None and self._fair.has_passed(integer(request.arguments, "deadline_ms", 0, 1 << 62)):
            raise DeadlinePassed(f"its turn came after its deadline_ms, {deadline_ms}; nothing of it was done")

    def _begin_slow(self, request: RequestFrame, payload: bytes | memoryview) -> None:
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
        self._handlers.count_slow()
        # The task does not get the request, so that an operation that waits does not keep the arguments in memory.
        self._nursery.start_soon(self._serve_slow, answer, request.id, request.operation)

    def _begin_large(self, slow: SlowHandler, request: RequestFrame, payload: bytes | memoryview) -> None:
        """Begins a large request, one at a time. A second one waits undecoded and is decoded again when it begins."""
        if self._large_runs:
            self._ready.appendleft(payload)
            self._ready_bytes += len(payload)
            self._large_waits = True
            return
        assert self._nursery is not None
        self._large_runs = True
        self._slow += 1
        self._handlers.count_slow()
        self._nursery.start_soon(self._serve_large, slow, request)

    async def _serve_large(self, slow: SlowHandler, request: RequestFrame) -> None:
        """Takes a turn, then serves a request with many items."""
        try:
            await self._fair.take(self._account, SLICE_ITEMS)
            try:
                self._require_time(request)
                answer = slow(self, request)
            except DelayServerError as error:
                self._slow -= 1
                self.fail(request.id, error)
                return
            await self._serve_slow(answer, request.id, request.operation)
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
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not end the other clients
            self.fail(request_id, self._named(operation, error))
        finally:
            self._slow -= 1

    def goes_on(self, request: RequestFrame, answer: Callable[[], Awaitable[dict[str, Any] | None]]) -> bool:
        """Whether a quick request goes on as a task, which replies. Not where as many requests wait as may wait."""
        if not self.open or self._nursery is None or self._slow >= SLOW_REQUESTS_MAX:
            return False
        self._slow += 1
        self._handlers.count_slow()
        self._nursery.start_soon(self._serve_slow, answer(), request.id, request.operation)
        return True

    def work(self) -> Work:
        """The slices of work of a request that begins now."""
        return Work(self._fair, self._account)

    def _reply_result(self, request_id: int, result: dict[str, Any]) -> None:
        self.reply(encode_reply(request_id, result))

    def _answer_error(self, request: RequestFrame, error: DelayServerError) -> None:
        """Tells the client of an error of its request: in a reply, or in the next one."""
        if is_one_way(request):
            self.refuse_one_way(_messages_of(request), error)
        else:
            self.fail(request.id, error)

    def _named(self, operation: str, error: Exception) -> DelayServerError:
        """What a client is told of an error of its request. An error of the disk goes to the operator too, and a bug to the
        log. What a stopping server interrupted has an unknown result."""
        if isinstance(error, DelayServerError):
            return error
        if self._handlers.closed:
            return StorageFailed("the server stopped while it worked on this; look when it is back")
        if isinstance(error, StoreError | FileNotFoundError):
            refused = as_disk_error(error)
            self._handlers.damage.report(refused)
            return named(refused)
        events.error("request_bug", "bug while answering {operation}", error, operation=operation)
        return InternalError(f"{operation} met a bug of the server; its log says more")

    def fail(self, request_id: int, error: DelayServerError) -> None:
        """Answers a request with a named error."""
        self._connections.count_error(error.name)
        self.reply(encode_error(request_id, error))

    def refuse_one_way(self, messages: int, error: DelayServerError) -> None:
        """Counts refused messages of a one-way request. The next reply of this connection has their number and the first
        error."""
        self._connections.count_error(error.name)
        self._connections.count_one_way_refused(messages)
        before = self._refused
        self._refused = (
            OneWayRefused(messages, kept(error))
            if before is None
            else OneWayRefused(before.messages + messages, before.first)
        )

    def begin_one_way(self) -> int:
        """Notes that a one-way request is under way; returns its number in this connection."""
        self._last_one_way += 1
        self._untold.add(self._last_one_way)
        return self._last_one_way

    def end_one_way(self, *numbers: int) -> None:
        """Notes that it is known what was refused of one-way requests."""
        self._untold.difference_update(numbers)
        if not self._untold and self._until_told:
            actions, self._until_told = self._until_told, []
            for action in actions:
                action()

    def _end_one_way_behind(self, number: int) -> None:
        """Ends what a handler began that failed."""
        self.end_one_way(*range(number + 1, self._last_one_way + 1))

    def when_refusals_known(self, action: Callable[[], None]) -> None:
        """Calls `action` when it is known what was refused of all one-way requests that came before: in this call, or
        later. At once beyond UNTIL_TOLD_MAX of them."""
        if self._untold and len(self._until_told) < UNTIL_TOLD_MAX:
            self._until_told.append(action)
        else:
            action()

    # -- replies

    def reply_bytes(self) -> int:
        """Bytes allowed for a reply whose size the handler chooses. At 0 the handler must wait with `when_room`."""
        return 0 if self._making_bytes else self._memory.reply_bytes(self._share)

    def begin_making(self, size_bytes: int) -> None:
        """A reply of about this size is made in slices from now on. To be called only where there is room for it."""
        self._making_bytes = max(size_bytes, 1)
        self._hold_unsent()

    def end_making(self) -> None:
        """The reply is made, or given up. Others that waited for room are made now."""
        self._making_bytes = 0
        if self.open:
            self._hold_unsent()
            self._go_on()

    def _hold_unsent(self) -> None:
        self._memory.hold_unsent(self._share, self._unsent.bytes + self._making_bytes)

    def when_room(self, action: Callable[[], None]) -> None:
        """Calls `action`, which makes a reply, when the client has read enough: in this call, or later in call order.
        Never calls it if the connection ends before."""
        if self._has_room():
            action()
        elif self.open:
            self._blocked.append(action)

    async def room(self) -> None:
        """Returns when the client has read enough of the earlier replies that a large one may be made."""
        if not self._has_room():
            room = trio.Event()
            self.when_room(room.set)
            await room.wait()

    async def in_room(self, read: Callable[[bool], Awaitable[Read]]) -> Read:
        """The result of `read`, when the client has room for it. A result without room holds no memory: it is read again
        when there is room, one after the other. `read` gets whether it may wait for messages."""
        await self.room()
        result = await read(True)
        if self._has_room():
            return result
        del result
        if self._again is None:
            self._again = trio.Lock()
        async with self._again:
            await self.room()
            return await read(False)

    def reply(self, frame: bytes, lost: Callable[[], None] | None = None) -> None:
        """Sends a frame and keeps the bytes that the kernel does not take yet.

        Calls `lost` if the connection closes before the last byte is sent."""
        if self._refused is not None:
            frame, self._refused = with_refused(frame, self._refused), None
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
        self._hold_unsent()
        if not self._writing and not self._cancelled and self._nursery is not None:
            self._writing = True
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        """Sends the kept bytes as the peer takes them, and ends when none are left."""
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
                self._unsent.remove_sent(taken)
                self._hold_unsent()
                self._go_on()
        except OSError:
            self.close()
        finally:
            self._writing = False

    def _go_on(self) -> None:
        """Makes the replies that waited for room, then begins the next requests."""
        blocked = self._blocked
        while blocked and self.open and not self._making_bytes and self._memory.may_begin(self._share):
            blocked.popleft()()
        self._begin_ready()

    async def _watch_unsent(self) -> None:
        """Closes the connection of a client that has unread replies and reads too little in `unsent_timeout_ms`."""
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


def is_one_way(request: RequestFrame) -> bool:
    """True if the request gets no reply."""
    return request.operation in names_of.ONE_WAY and request.arguments.get("one_way") is True


def _messages_of(request: RequestFrame) -> int:
    """The number of messages of a request that was refused as a whole; 1 if the request does not name it."""
    messages, count = request.arguments.get("messages"), request.arguments.get("count")
    if type(messages) is list:
        return max(len(messages), 1)
    return count if type(count) is int and 0 < count < 1 << 31 else 1


def _is_large(request: RequestFrame) -> bool:
    """True if the request has more than LARGE_ITEMS items, or LARGE_DELIVERIES deliveries.

    `redispatch` and `groups` are always large: their counts are unknown."""
    if request.operation in (names_of.REDISPATCH, names_of.GROUPS):
        return True
    arguments = request.arguments
    count = arguments.get("count")
    if request.operation in DELIVERIES_OPERATIONS:
        return type(count) is int and count > LARGE_DELIVERIES
    if type(count) is int and count > LARGE_ITEMS:
        return True
    lists = (arguments.get("receipts"), arguments.get("messages"), arguments.get("items"))
    return any(type(items) is list and len(items) > LARGE_ITEMS for items in lists)


def _refuse(_connection: Connection, _request: RequestFrame) -> None:
    raise ShuttingDown("the server is stopping", retry_after_ms=1000)
