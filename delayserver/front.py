"""The front of a server: which operation is answered by what, whether it may be, and who may connect."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import trio

from delayserver.broker_service import EmbeddedNode
from delayserver.connection import Connection, Handlers
from delayserver.operations import Operations
from delayserver.protocol import operations as names_of
from delayserver.protocol.errors import DiskFull, InvalidArgument, NotReady, NotRouted, ShuttingDown, TooManyConnections
from delayserver.protocol.frames import encode_error
from delayserver.protocol.limits import Limits
from delayserver.redispatch import Redispatch
from delayserver.redispatch_reading import RedispatchReader
from delayserver.settings import Settings
from delayserver.transport import Listener, Transport

if TYPE_CHECKING:
    from delayserver.server import DelayServer

logger = logging.getLogger("delayserver")

SERVER, BROKER = "server", "broker"


def limits_of(settings: Settings) -> Limits:
    """What `hello` tells clients."""
    message, listen, broker = settings.message, settings.listen, settings.broker
    return Limits(
        frame_bytes_max=listen.frame_bytes_max,
        batch_messages_max=message.batch_messages_max,
        body_bytes_max=message.body_bytes_max,
        subject_bytes_max=message.subject_bytes_max,
        message_id_bytes_max=message.message_id_bytes_max,
        properties_bytes_max=message.properties_bytes_max,
        delay_ms_max=message.delay_ms_max,
        pull_messages_max=broker.pull_messages_max,
        wait_ms_max=broker.wait_ms_max,
    )


class Front:
    """Handlers and connections of one server."""

    def __init__(self, server: DelayServer) -> None:
        self._server = server
        self.handlers = Handlers({}, {})
        self.handlers.on_bug = _log_bug
        self.connections = 0
        self._slow_before = 0
        self._add_handlers(server)

    def _add_handlers(self, server: DelayServer) -> None:
        operations = Operations(
            server.opened.directory.server_id,
            server.role,
            limits_of(server.settings),
            server.intake,
            server.commit,
            server.cancellation,
            server.lookup,
            server.opened.names,
            server.status.to_map,
            self.route,
            self.admit,
            server.clock,
        )
        service = server.broker_service
        self.handlers.quick |= {
            names_of.HELLO: operations.hello,
            names_of.PING: operations.ping,
            names_of.STATUS: operations.status,
            names_of.ROUTE: operations.route,
            names_of.WINDOW_COMPLETE: service.window_complete,
        }
        self.handlers.slow |= {
            names_of.PULL: service.pull,
            names_of.ACK: service.ack,
            names_of.NACK: service.nack,
            names_of.DELIVER: service.deliver,
        }
        if server.role == SERVER:
            self.handlers.quick[names_of.SEND] = operations.send
            self.handlers.slow |= {
                names_of.CANCEL: operations.cancel,
                names_of.RESCHEDULE: operations.reschedule,
                names_of.LOOKUP: operations.lookup,
                names_of.REDISPATCH: self._redispatch(server).redispatch,
            }

    def _redispatch(self, server: DelayServer) -> Redispatch:
        opened, window_ms = server.opened, server.settings.storage.window_ms
        server_id = opened.directory.server_id
        schedule, names, clock = opened.schedule, opened.names, server.clock
        reader = RedispatchReader(schedule, opened.dispatch, server.recorder, server.fs, clock)
        return Redispatch(server_id, schedule, reader, server.commit, names, self.admit, window_ms, clock)

    # -- what handlers ask

    def admit(self) -> None:
        """Whether messages may be accepted now. Raises NotReady, ShuttingDown, DiskFull."""
        server = self._server
        if server.stopping.is_set():
            raise ShuttingDown("the server is stopping", retry_after_ms=1000)
        if not server.ready:
            raise NotReady("the server is still recovering", retry_after_ms=100)
        if server.housekeeping.disk_low:
            free_mib = server.settings.storage.free_bytes_min >> 20
            raise DiskFull(
                f"less than {free_mib} MiB are free on the disk, besides what accepted messages take",
                retry_after_ms=1000,
            )

    def route(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The nodes of a group, by its name or by a subject. Raises InvalidArgument, NotRouted."""
        server = self._server
        name = arguments.get("group")
        if name is None:
            subject = arguments.get("subject")
            if type(subject) is not str:
                raise InvalidArgument("give group or subject")
            route = server.routes.match(subject)
            # What no pattern matches goes to the first group.
            name = route.groups[0] if route is not None else next(iter(server.groups.values())).name
        group = next((group for group in server.groups.values() if group.name == name), None)
        if group is None:
            raise NotRouted(f"there is no broker group {name!r:.80}")
        own = f"{server.address[0]}:{server.address[1]}"
        nodes = []
        for node in group.nodes:
            address = node.broker.address
            nodes.append({"address": own if address == EmbeddedNode.address else address, "weight": node.weight})
        return {"group": group.name, "nodes": nodes}

    # -- connections

    async def accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        """Accept and serve connections until the listener closes or the task is cancelled."""
        server = self._server
        nursery.start_soon(listener.run, self._begin_step, self._end_step)
        while True:
            try:
                transport = await listener.accept()
            except (OSError, trio.ClosedResourceError) as error:
                if server.stopping.is_set():
                    return
                logger.warning("cannot accept a connection: %s", error)  # out of file descriptors, mostly
                await server.clock.sleep_ms(100)
                continue
            if self.connections >= server.settings.listen.connections_max:
                self.handlers.count_error(TooManyConnections.error)
                with contextlib.suppress(OSError):  # it is gone again
                    transport.send_now(encode_error(0, TooManyConnections("try again later", retry_after_ms=1000)))
                transport.close()
                continue
            self.connections += 1
            nursery.start_soon(self._serve, transport)

    def _begin_step(self) -> None:
        self._slow_before = self.handlers.slow_begun
        self._server.commit.begin_step()

    def _end_step(self) -> bool:
        done = self._server.commit.end_step()
        return done and self.handlers.slow_begun == self._slow_before

    async def _serve(self, transport: Transport) -> None:
        try:
            await Connection(transport, self.handlers, self._server.settings.listen).run()
        finally:
            self.connections -= 1


def _log_bug(operation: str, error: BaseException) -> None:
    logger.error("bug while answering %s", operation, exc_info=error)
