"""`pull`, `cancel_wait`, `ack`, `nack` and `extend`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.front.handlers.message_replies import MessagesReply
from delayserver.front.handlers.name_arguments import read_name, read_names
from delayserver.operations.groups.broadcasting import Broadcasting
from delayserver.operations.groups.consuming import (
    ACK_TIMEOUT_MS_MAX,
    DELAY_MS_MAX,
    Consuming,
    Pull,
    PullFilter,
    PullRoom,
    start_of,
)
from delayserver.protocol.arguments import boolean, integer, invalid
from delayserver.protocol.columns import I64, unpack_column, unpack_count
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import REQUEST_ID_MAX, RequestFrame, encode_reply
from delayserver.protocol.schema.words import REASON_BYTES_MAX
from delayserver.state.shard.leading import Leading

# So long may leases outlive the connection that wants them to end with it. The server remembers it meanwhile.
OUTLIVE_MS_MAX = 60_000


class ConsumingHandlers:
    """Requests of consumers."""

    def __init__(
        self,
        consuming: Consuming,
        broadcasting: Broadcasting,
        settings: BrokerSettings,
        levels_ms: tuple[int, ...],
        leading: Leading | None,
    ) -> None:
        """`levels_ms`: the named delay levels. `leading` is that of a member of a cluster."""
        self._consuming = consuming
        self._broadcasting = broadcasting
        self._settings = settings
        self._levels_ms = levels_ms
        self._leading = leading

    # -- pull

    def pull(self, connection: Connection, request: RequestFrame) -> Awaitable[dict[str, Any] | None]:
        """Pulls messages. The step that hands messages out sends their reply; the awaitable gives an empty reply."""
        arguments, settings = request.arguments, self._settings
        columns = boolean(arguments, "columns")
        ack = arguments.get("ack")
        if ack is not None and type(ack) is not dict:
            raise invalid("ack", "a map of count and deliveries", ack)
        pull = Pull(
            read_name(arguments, "subject"),
            read_name(arguments, "group"),
            integer(arguments, "max_messages", 1, settings.pull_messages_max, 1),
            integer(arguments, "max_bytes", 1, 1 << 62, 8 << 20),
            integer(arguments, "wait_ms", 0, settings.wait_ms_max, 0),
            integer(arguments, "ack_timeout_ms", 1, ACK_TIMEOUT_MS_MAX, settings.ack_timeout_ms),
            start_of(arguments.get("start")),
            _filter(arguments),
            self._owner(connection, arguments),
            arguments.get("deadline_ms"),  # the connection has checked it
        )
        acks = None if ack is None else _deliveries(ack)
        broadcast = boolean(arguments, "broadcast")
        # Noted before the task begins, so that a `cancel_wait` right behind the pull finds it.
        waiting = connection.waits.begin(request.id) if pull.wait_ms else trio.CancelScope()
        if broadcast:
            return self._broadcast(connection, request.id, columns, pull, waiting)
        return self._pull(connection, request.id, columns, pull, acks, waiting)

    def _owner(self, connection: Connection, arguments: dict[str, Any]) -> int:
        """The number of the connection if the leases of the request shall end with it, otherwise 0."""
        if arguments.get("outlive_ms") is None:
            return 0
        outlive_ms = integer(arguments, "outlive_ms", 0, OUTLIVE_MS_MAX)
        if not connection.at_end(self._consuming.end_owner):
            return 0
        self._consuming.own(connection.peer.number, outlive_ms)
        return connection.peer.number

    def _room_of(self, connection: Connection) -> PullRoom:
        """How much a pull may hand out now: nothing past the lease of a primary, also to a pull that has waited."""
        leading = self._leading
        if leading is None:
            return PullRoom(connection.reply_bytes, connection.when_room)

        def when_room(action: Callable[[], None]) -> None:
            if leading.left_us:
                connection.when_room(action)
            else:
                leading.call_when_held(partial(connection.when_room, action))

        return PullRoom(lambda: connection.reply_bytes() if leading.left_us else 0, when_room)

    async def _pull(
        self,
        connection: Connection,
        request_id: int,
        columns: bool,
        pull: Pull,
        acks: NDArray[np.int64] | None,
        waiting: trio.CancelScope,
    ) -> dict[str, Any] | None:
        reply = MessagesReply(connection, request_id, pull.subject, columns, self._consuming.name)
        answer = self._consuming.pull(
            pull,
            acks,
            reply.give,
            self._room_of(connection),
            waiting,
            connection.work(),
        )
        del pull, acks  # they are views of the request, whose memory is freed before the wait
        try:
            answered = await answer
        except BaseException:
            reply.give_up()
            raise
        finally:
            connection.waits.end(request_id, waiting)
        await reply.finish()
        return None if answered else reply.nothing()

    async def _broadcast(
        self, connection: Connection, request_id: int, columns: bool, pull: Pull, waiting: trio.CancelScope
    ) -> dict[str, Any] | None:
        """Pulls for a broadcast group of the connection."""
        reply = MessagesReply(connection, request_id, pull.subject, columns, self._consuming.name)
        pulled = None
        try:
            if pull.filter is not None:
                raise InvalidArgument("a broadcast group has no filter: leave out tags and where, or broadcast")
            with waiting:
                pulled = await self._broadcasting.pull(connection.broadcasts, pull, connection.in_room)
        finally:
            connection.waits.end(request_id, waiting)
        if pulled is None:
            return reply.nothing()
        await reply.send(pulled, {})
        return None

    def cancel_wait(self, connection: Connection, request: RequestFrame) -> None:
        """Ends a waiting pull of the same connection. Messages that were handed out stay leased."""
        request_id = integer(request.arguments, "id", 1, REQUEST_ID_MAX)
        connection.reply(encode_reply(request.id, {"ended": connection.waits.cancel(request_id)}))

    # -- ack, nack and extend

    async def ack(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """Acks deliveries, durable before the reply. Those of a broadcast group are done already."""
        names, deliveries = read_names(request.arguments), _deliveries(request.arguments)
        if names in connection.broadcasts:
            return {"acked": len(deliveries), "unknown": 0}
        acked = await self._consuming.ack(*names, deliveries, connection.work())
        return {"acked": acked.acked, "unknown": acked.unknown}

    async def nack(self, _connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """Nacks deliveries. Their redelivery is durable before the reply."""
        arguments = request.arguments
        nacked = await self._consuming.nack(
            *read_names(arguments),
            _deliveries(arguments),
            self._nack_delay_ms(arguments),
            None if boolean(arguments, "unseen") or boolean(arguments, "snooze") else _read_reason(arguments),
        )
        rest = {"expired": nacked.expired, "dead_lettered": nacked.dead_lettered}
        counts = {"nacked": nacked.nacked, "unknown": nacked.unknown}
        return counts | {name: count for name, count in rest.items() if count}

    async def extend(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """Extends leases. Those of a broadcast group have none, and count as extended."""
        arguments = request.arguments
        names, deliveries = read_names(arguments), _deliveries(arguments)
        timeout_ms = integer(arguments, "ack_timeout_ms", 1, ACK_TIMEOUT_MS_MAX, self._settings.ack_timeout_ms)
        if names in connection.broadcasts:
            return {"extended": len(deliveries), "unknown": 0}
        owner = self._owner(connection, arguments)
        extended = await self._consuming.extend(*names, deliveries, timeout_ms, owner)
        return {"extended": extended.extended, "unknown": extended.unknown}

    def _nack_delay_ms(self, arguments: dict[str, Any]) -> int | None:
        """The delay that a nack asks for, by itself or by the number of a delay level; None if it asks for none."""
        given = [name for name in ("delay_ms", "delay_level") if arguments.get(name) is not None]
        if len(given) > 1:
            raise InvalidArgument("give either delay_ms or delay_level, not both")
        if given == ["delay_level"]:
            return self._levels_ms[integer(arguments, "delay_level", 1, len(self._levels_ms)) - 1]
        return integer(arguments, "delay_ms", 0, DELAY_MS_MAX) if given else None


def _filter(arguments: dict[str, Any]) -> PullFilter | None:
    """The filter of a pull; None if it names none. Raises InvalidArgument."""
    tags, where = arguments.get("tags"), arguments.get("where")
    if tags is None and where is None:
        return None
    for name, text in (("tags", tags), ("where", where)):
        if text is not None and type(text) is not str:
            raise invalid(name, "a text", text)
    return PullFilter(tags, where)


def _deliveries(arguments: dict[str, Any]) -> NDArray[np.int64]:
    count = unpack_count(arguments.get("count"), 1 << 20)
    return unpack_column(arguments.get("deliveries"), count, I64, "deliveries")


def _read_reason(arguments: dict[str, Any]) -> str:
    """The text that a request gives as a reason; empty without one. Raises InvalidArgument."""
    reason = arguments.get("reason")
    if reason is None:
        return ""
    if type(reason) is not str or len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise invalid("reason", f"a text of at most {REASON_BYTES_MAX} bytes", reason)
    return reason
