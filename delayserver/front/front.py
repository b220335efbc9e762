"""The binary front of a server: accepts connections and decides which operations the present stage serves."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from delayserver.config.settings import ListenSettings
from delayserver.front.audit import audited
from delayserver.front.connection import Connection, Handlers, QuickHandler, SlowHandler
from delayserver.front.guard import Guard
from delayserver.logs.events import EventLogger
from delayserver.net.socket_hub import READY_MAX
from delayserver.net.transport import RECEIVE_BYTES, StreamListener, Transport
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol import operation_names as names_of
from delayserver.protocol.errors import TooManyConnections
from delayserver.protocol.frames import CLOCK_STEPPED, RequestFrame, encode_error, encode_notice, encode_reply
from delayserver.runtime.fair_turns import FairTurns
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.steps import Step
from delayserver.state.connections.connections import Connections
from delayserver.state.connections.parties import Party
from delayserver.state.positions.readiness import Readiness, Stage
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.leading import Leading

T = TypeVar("T")

events = EventLogger()

SERVER, BROKER = "server", "broker"

# Operations that a lone broker does not have.
_DELAY_OPERATIONS = frozenset(
    {
        names_of.SEND,
        names_of.CANCEL,
        names_of.RESCHEDULE,
        names_of.LOOKUP,
        names_of.REDISPATCH,
        names_of.PREPARE,
        names_of.COMMIT,
        names_of.ROLLBACK,
        names_of.TRANSACTIONS,
        names_of.PENDING,
    }
)
_LOOKING = frozenset(
    {
        names_of.HELLO,
        names_of.PING,
        names_of.STATUS,
        names_of.METRICS,
        names_of.ROUTE,
        names_of.PROVE,
        names_of.CLUSTER,
        names_of.MAP,
    }
)
_CONSUMING = frozenset(
    {
        names_of.GROUPS,
        names_of.SUBJECTS,
        names_of.GROUP,
        names_of.SEEK,
        names_of.REMOVE_GROUP,
        names_of.READ,
        names_of.FIND,
        names_of.PULL,
        names_of.CANCEL_WAIT,
        names_of.ACK,
        names_of.DELIVER,
        names_of.WINDOW_COMPLETE,
    }
)
# They concern this process, whoever leads.
_OF_THIS_MEMBER = _LOOKING - {names_of.ROUTE} | {names_of.RELOAD, names_of.SNAPSHOT, names_of.CANCEL_WAIT}
# They are answered when their record came back from the shared log, so they need no lease.
_APPENDED = frozenset({names_of.SEND, names_of.PUBLISH, names_of.PREPARE})
# They change nothing, so a lease that ended meanwhile makes their answers worth nothing.
_READS = frozenset(
    {
        names_of.LOOKUP,
        names_of.GROUPS,
        names_of.GROUP,
        names_of.SUBJECTS,
        names_of.READ,
        names_of.FIND,
        names_of.PENDING,
        names_of.TRANSACTIONS,
    }
)
_SERVED = {
    Stage.OPENING: frozenset({names_of.PING}),
    Stage.REPLAYING: _LOOKING,
    # A standby is the member whose directory is best copied: nobody waits for it.
    Stage.FOLLOWING: _LOOKING - {names_of.ROUTE} | {names_of.SNAPSHOT},
    Stage.DELIVERING: _LOOKING | _CONSUMING,
    Stage.READY: names_of.OPERATIONS,
}


@dataclass(frozen=True, slots=True)
class HandlersByName:
    """Handlers by operation name. `quick` handlers run in the step of the request; `slow` handlers are awaited."""

    quick: dict[str, QuickHandler]
    slow: dict[str, SlowHandler]

    def __or__(self, other: HandlersByName) -> HandlersByName:
        """The handlers of both. No operation is in both."""
        return HandlersByName(self.quick | other.quick, self.slow | other.slow)


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that a front serves when the data directory is open. `steps` is called at each step that reads
    requests. `trusting`: no client needs a token. `leading` is that of a member of a cluster."""

    steps: Step
    table: HandlersByName
    tokens: TokenBook
    trusting: bool
    leading: Leading | None = None


class Front:
    """Accepts connections and serves each operation from its stage on."""

    def __init__(
        self,
        settings: ListenSettings,
        role: str,
        readiness: Readiness,
        connections: Connections,
        servers: Servers,
        fair: FairTurns,
        runtime: Runtime,
    ) -> None:
        """Starts before the data directory is open: refuses every request except `ping`, with the reason."""
        self._settings = settings
        self._names = names_of.OPERATIONS if role == SERVER else names_of.OPERATIONS - _DELAY_OPERATIONS
        self._readiness = readiness
        self._connections = connections
        self._servers = servers
        self._fair = fair
        self._clock = runtime.clock
        self.handlers = Handlers(runtime.damage)
        self._slow_before = 0
        self._decode = runtime.stages.decode
        self._step_began_us = 0
        # As many as `connections_max`.
        self._serving: set[Connection] = set()
        self._service: Service | None = None
        self._guard = Guard(servers)
        self._guarded = False
        self._came = Bell()
        self._stage = Stage.OPENING
        self._quick: dict[str, QuickHandler] = {names_of.PING: self._ping}
        self._slow: dict[str, SlowHandler] = {}
        self.enter(Stage.OPENING)

    def enter(self, stage: Stage) -> None:
        """Serves the operations of this stage and refuses the others as `not_ready`; a standby as `not_primary`."""
        self._stage = stage
        leading = None if self._service is None else self._service.leading
        # A member has its groups when it leads.
        served = _SERVED[Stage.FOLLOWING if leading is not None and stage is Stage.REPLAYING else stage]
        refused: dict[str, QuickHandler] = dict.fromkeys(self._names - served, self._refuse)
        quick = {name: handler for name, handler in self._quick.items() if name not in refused}
        slow = {name: handler for name, handler in self._slow.items() if name not in refused}
        if leading is not None:
            quick = {name: _led(leading, name, handler) for name, handler in quick.items()}
            slow = {name: _led_slow(leading, name, _led(leading, name, handler)) for name, handler in slow.items()}
        if self._guarded:
            quick, slow = self._guard.quick(quick), self._guard.slow(slow)
        self.handlers.serve(quick | refused, audited(slow))

    async def guard(self) -> None:
        """Asks every client for a token, from the moment on at which the server has any."""
        assert self._service is not None
        await self._service.tokens.enabled.wait()
        self._guarded = True
        self._ask_for_tokens()
        if not self.handlers.closed:
            self.enter(self._stage)

    def _ask_for_tokens(self) -> None:
        """New connections are those of strangers from now on, and so are the others that have no rights."""
        if not self.handlers.guarded:
            self.handlers.guard()
            for connection in list(self._serving):
                if connection.access is EVERYTHING and not self._servers.is_proven(connection.peer):
                    connection.expect_token()

    def _refuse(self, _connection: Connection, request: RequestFrame) -> None:
        leading = None if self._service is None else self._service.leading
        if leading is None or self._stage is not Stage.FOLLOWING or request.operation in _OF_THIS_MEMBER:
            raise self._readiness.refusal()
        raise leading.refusal()

    def _ping(self, connection: Connection, request: RequestFrame) -> None:
        """The server's clock. Behind one-way requests the reply waits until it is known what of them was refused."""
        request_id = request.id

        def answer() -> None:
            connection.reply(encode_reply(request_id, {"server_us": self._clock.now_us()}))

        connection.when_refusals_known(answer)

    def open(self, service: Service) -> None:
        """Adds the handlers, because the data directory is open. Each one answers from the stage of its operation
        on."""
        self._service = service
        self._guarded = service.tokens.enabled.is_set() and not service.trusting
        if self._guarded:
            self._ask_for_tokens()
        self._quick |= service.table.quick
        self._slow |= service.table.slow

    async def tell_steps(self, stepped: Bell) -> None:
        """Tells clients of each step of the wall clock, until cancelled. A client counts delays by this clock."""
        while True:
            await stepped.rung()
            stepped.hush()
            frame = encode_notice({CLOCK_STEPPED: self._clock.now_us()})
            for connection in list(self._serving):
                connection.notice(frame)

    async def end_when_divided(self, shards: ClusterMap) -> None:
        """When the cluster gets its second shard, end all connections: clients learn by `hello` that there are several."""
        while len(shards.shown.shards) <= 1:
            before = len(shards.shown.shards)
            await shards.version.reached(shards.version.value + 1)
            if before == 1 < len(shards.shown.shards):
                for connection in list(self._serving):
                    connection.close()

    # -- connections

    async def accept(self, listener: StreamListener, nursery: trio.Nursery) -> None:
        """Accepts and serves connections until the listener closes or the task is cancelled."""
        nursery.start_soon(listener.run, self._begin_step, self._end_step)
        nursery.start_soon(self._fair.run)
        nursery.start_soon(self._watch_new)
        while True:
            try:
                transport = await listener.accept()
            except (OSError, trio.ClosedResourceError) as error:
                if self._readiness.stopping.is_set():
                    return
                # usually out of file descriptors
                events.warning("accept_failed", "cannot accept a connection: {reason}", reason=str(error))
                await self._clock.sleep_ms(100)
                continue
            party = self._connections.parties.of_address(transport.peer)
            refused = self._refusal(party)
            if refused is not None:
                self._connections.count_error(refused.name)
                with contextlib.suppress(OSError):  # the client has closed already
                    transport.send_now(encode_error(0, refused))
                transport.close()
                continue
            self._connections.count_opened()
            self._came.ring()
            nursery.start_soon(self._serve, transport, party)

    def _refusal(self, party: Party) -> TooManyConnections | None:
        """Why one more connection of this client is refused; None: there is a place for it, which a new connection may have
        had to give up."""
        settings, connections = self._settings, self._connections
        if party.connections >= settings.connections_of_client_max:
            return TooManyConnections(
                f"this address has {party.connections} connections already: share them, or raise "
                "listen.connections_of_client_max",
                retry_after_ms=1000,
            )
        newcomers = connections.newcomers
        full = connections.open >= settings.connections_max
        if full and not len(newcomers):
            return TooManyConnections("try again later", retry_after_ms=1000)
        newcomers.make_room(min(settings.connections_new_max, len(newcomers) if full else settings.connections_max))
        return None

    async def _watch_new(self) -> None:
        """Ends connections on which no request comes, until cancelled."""
        timeout_us = self._settings.hello_timeout_ms * 1000
        newcomers, clock = self._connections.newcomers, self._clock
        while True:
            oldest_us = newcomers.oldest_silent_us()
            if oldest_us is None:
                self._came.hush()
                await self._came.rung()
                continue
            left_us = oldest_us + timeout_us - clock.monotonic_us()
            if left_us > 0:
                await clock.sleep_ms(left_us / 1000)
            newcomers.end_silent(clock.monotonic_us() - timeout_us)

    def _begin_step(self) -> int:
        self._step_began_us = self._clock.monotonic_us()
        self._slow_before = self.handlers.slow_begun
        self._fair.begin_step()
        if self._service is not None:
            self._service.steps.begin_step()
        return self._connections.memory.at_once_bytes(RECEIVE_BYTES, READY_MAX)

    def _end_step(self) -> bool:
        decoded_us = self._clock.monotonic_us()
        done = self._service is None or self._service.steps.end_step()
        self._decode.add(decoded_us - self._step_began_us)
        return done and self.handlers.slow_begun == self._slow_before

    async def _serve(self, transport: Transport, party: Party) -> None:
        connection = Connection(transport, self.handlers, self._settings, self._connections, self._fair, party)
        self._serving.add(connection)
        try:
            await connection.run()
        finally:
            self._serving.discard(connection)
            self._connections.count_closed()
            self._servers.forget(connection.peer)
            if self._service is not None:
                self._service.tokens.forget(connection.peer.number)


def _led(
    leading: Leading, name: str, handler: Callable[[Connection, RequestFrame], T]
) -> Callable[[Connection, RequestFrame], T]:
    """The handler of an operation in a member of a cluster, which asks its lease before."""
    if name in _OF_THIS_MEMBER or name == names_of.PING:
        return handler
    require = leading.require_log if name in _APPENDED else leading.require

    def led(connection: Connection, request: RequestFrame) -> T:
        require()
        return handler(connection, request)

    return led


def _led_slow(leading: Leading, name: str, handler: SlowHandler) -> SlowHandler:
    """The handler of a slow operation, which asks the lease behind a read too: the process may have stood still."""
    if name not in _READS:
        return handler

    def led(connection: Connection, request: RequestFrame) -> Awaitable[dict[str, Any] | None]:
        return answer(handler(connection, request))

    async def answer(read: Awaitable[dict[str, Any] | None]) -> dict[str, Any] | None:
        result = await read
        if result is not None:  # else it has replied
            leading.require()
        return result

    return led
