"""The binary front of a server: which operation is answered by what, whether it may be, and who may connect."""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol

import trio

from delayserver.config.settings import ListenSettings
from delayserver.front.connection import Connection, Handlers, QuickHandler, SlowHandler
from delayserver.net.transport import RECEIVE_BYTES, Listener, Transport
from delayserver.operations.servers import Servers
from delayserver.protocol import operations as names_of
from delayserver.protocol.errors import TooManyConnections
from delayserver.protocol.frames import Request, encode_error, encode_reply
from delayserver.runtime.fair_turns import FairTurns
from delayserver.runtime.runtime import Runtime
from delayserver.state.connections import Connections
from delayserver.state.readiness import Readiness, Stage

logger = logging.getLogger("delayserver")

SERVER, BROKER = "server", "broker"

# What only a server with a delay pipeline for clients has.
_DELAY_OPERATIONS = frozenset(
    {names_of.SEND, names_of.CANCEL, names_of.RESCHEDULE, names_of.LOOKUP, names_of.REDISPATCH}
)
_LOOKING = frozenset({names_of.HELLO, names_of.PING, names_of.STATUS, names_of.ROUTE, names_of.PROVE})
_CONSUMING = frozenset(
    {
        names_of.GROUPS,
        names_of.PULL,
        names_of.CANCEL_WAIT,
        names_of.ACK,
        names_of.DELIVER,
        names_of.WINDOW_COMPLETE,
    }
)
_SERVED = {
    Stage.OPENING: frozenset({names_of.PING}),
    Stage.REPLAYING: _LOOKING,
    Stage.DELIVERING: _LOOKING | _CONSUMING,
    Stage.READY: names_of.OPERATIONS,
}


class Steps(Protocol):
    """What the connections hand in between the two calls, without a pause, is committed as one group."""

    def begin_step(self) -> None:
        """The hub begins to read what has come."""

    def end_step(self) -> bool:
        """All of it was read. False where something is left for a task."""


class Table(Protocol):
    """Handlers by the names of their operations: `quick` ones reply in the step of the request, `slow` ones are awaited."""

    quick: dict[str, QuickHandler]
    slow: dict[str, SlowHandler]


class Front:
    """Accepts connections, and lets each operation be answered from the stage on that serves it."""

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
        """Before the data directory is open: every request is refused with the reason, but for `ping`."""
        self._settings = settings
        self._names = names_of.OPERATIONS if role == SERVER else names_of.OPERATIONS - _DELAY_OPERATIONS
        self._readiness = readiness
        self._connections = connections
        self._servers = servers
        self._fair = fair
        self._clock = runtime.clock
        self.handlers = Handlers(runtime.damage)
        self._slow_before = 0
        self._steps: Steps | None = None
        self._quick: dict[str, QuickHandler] = {names_of.PING: self._ping}
        self._slow: dict[str, SlowHandler] = {}
        self.enter(Stage.OPENING)

    def enter(self, stage: Stage) -> None:
        """Serve what a server of this stage serves; the rest is refused as `not_ready`."""
        refused: dict[str, QuickHandler] = dict.fromkeys(self._names - _SERVED[stage], self._refuse)
        quick = {name: handler for name, handler in self._quick.items() if name not in refused}
        slow = {name: handler for name, handler in self._slow.items() if name not in refused}
        self.handlers.serve(quick | refused, slow)

    def _refuse(self, _connection: Connection, _request: Request) -> None:
        raise self._readiness.refusal()

    def _ping(self, connection: Connection, request: Request) -> None:
        """The server's clock."""
        connection.reply(encode_reply(request.id, {"server_us": self._clock.now_us()}))

    def opened(self, steps: Steps, table: Table) -> None:
        """The data directory is open: these handlers answer, each from the stage on that serves its operation. `steps` hears
        of each step that reads requests."""
        self._steps = steps
        self._quick |= table.quick
        self._slow |= table.slow

    # -- connections

    async def accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        """Accept and serve connections until the listener closes or the task is cancelled."""
        nursery.start_soon(listener.run, self._begin_step, self._end_step)
        nursery.start_soon(self._fair.run)
        while True:
            try:
                transport = await listener.accept()
            except (OSError, trio.ClosedResourceError) as error:
                if self._readiness.stopping.is_set():
                    return
                logger.warning("cannot accept a connection: %s", error)  # out of file descriptors, mostly
                await self._clock.sleep_ms(100)
                continue
            if self._connections.open >= self._settings.connections_max:
                self._connections.count_error(TooManyConnections.error)
                with contextlib.suppress(OSError):  # it is gone again
                    transport.send_now(encode_error(0, TooManyConnections("try again later", retry_after_ms=1000)))
                transport.close()
                continue
            self._connections.began()
            nursery.start_soon(self._serve, transport)

    def _begin_step(self) -> int:
        self._slow_before = self.handlers.slow_begun
        self._fair.begin_step()
        if self._steps is not None:
            self._steps.begin_step()
        memory = self._connections.memory
        return memory.allowance_bytes if memory.used_bytes and memory.short else RECEIVE_BYTES

    def _end_step(self) -> bool:
        done = self._steps is None or self._steps.end_step()
        return done and self.handlers.slow_begun == self._slow_before

    async def _serve(self, transport: Transport) -> None:
        connection = Connection(transport, self.handlers, self._settings, self._connections, self._fair)
        try:
            await connection.run()
        finally:
            self._connections.ended()
            self._servers.closed(connection.peer)
