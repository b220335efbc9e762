"""`pull`, `cancel_wait`, `ack`, `nack`, `extend` and `groups`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgpack
import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.front.handlers.names import read_name, read_names
from delayserver.operations.groups.broadcasting import Broadcasting
from delayserver.operations.groups.consuming import (
    ACK_TIMEOUT_MS_MAX,
    DELAY_MS_MAX,
    Consuming,
    Pull,
    Pulled,
    PullFilter,
    PullRoom,
)
from delayserver.operations.groups.positions import EARLIEST, LATEST, TIME, Goal
from delayserver.protocol.arguments import boolean, integer, invalid
from delayserver.protocol.columns import I64, U32, pack_column, unpack_column, unpack_count
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import REQUEST_ID_MAX, Request, encode_bulk_reply, encode_reply
from delayserver.protocol.receipts import derived_message_id
from store.records.batches import StoredBatch
from store.records.columns import constant_column, has_any, ragged_rows

# Consumer groups in one reply.
GROUPS_AT_ONCE_MAX = 256
# So long may leases outlive the connection that wants them to end with it. The server remembers it meanwhile.
OUTLIVE_MS_MAX = 60_000
# Times in milliseconds since 1970 stay below it, so that microseconds fit into 63 bits.
TIME_MS_MAX = 1 << 53
# A dead letter keeps the reason of its last nack beside its properties: an error and where it came from, no log.
REASON_BYTES_MAX = 1024


class ConsumingHandlers:
    """Requests of consumers."""

    def __init__(
        self, consuming: Consuming, broadcasting: Broadcasting, settings: BrokerSettings, levels_ms: tuple[int, ...]
    ) -> None:
        """`levels_ms`: the named delay levels."""
        self._consuming = consuming
        self._broadcasting = broadcasting
        self._settings = settings
        self._levels_ms = levels_ms

    # -- pull

    def pull(self, connection: Connection, request: Request) -> Awaitable[dict[str, Any] | None]:
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

    async def _pull(
        self,
        connection: Connection,
        request_id: int,
        columns: bool,
        pull: Pull,
        acks: NDArray[np.int64] | None,
        waiting: trio.CancelScope,
    ) -> dict[str, Any] | None:
        subject, name = pull.subject, self._consuming.name

        def handed(pulled: Pulled, lost: Callable[[], None]) -> None:
            connection.reply(encode_bulk_reply(request_id, reply_of(subject, columns, pulled, name)), lost)

        answer = self._consuming.pull(
            pull, acks, handed, PullRoom(connection.reply_bytes, connection.when_room), waiting
        )
        del pull, acks  # they are views of the request, whose memory is freed before the wait
        try:
            answered = await answer
        finally:
            connection.waits.end(request_id, waiting)
        return None if answered else reply_of(subject, columns, None, name)

    async def _broadcast(
        self, connection: Connection, request_id: int, columns: bool, pull: Pull, waiting: trio.CancelScope
    ) -> dict[str, Any] | None:
        """Pulls for a broadcast group of the connection."""
        pulled = None
        try:
            if pull.filter is not None:
                raise InvalidArgument("a broadcast group has no filter: leave out tags and where, or broadcast")
            with waiting:
                pulled = await self._broadcasting.pull(connection.broadcasts, pull, connection.in_room)
        finally:
            connection.waits.end(request_id, waiting)
        subject, name = pull.subject, self._consuming.name
        if pulled is None:
            return reply_of(subject, columns, None, name)
        # The room of before may have gone to other replies.
        connection.when_room(
            lambda: connection.reply(encode_bulk_reply(request_id, reply_of(subject, columns, pulled, name)))
        )
        return None

    def cancel_wait(self, connection: Connection, request: Request) -> None:
        """Ends a waiting pull of the same connection. Messages that were handed out stay leased."""
        request_id = integer(request.arguments, "id", 1, REQUEST_ID_MAX)
        connection.reply(encode_reply(request.id, {"ended": connection.waits.cancel(request_id)}))

    # -- ack, nack, extend and groups

    async def ack(self, connection: Connection, request: Request) -> dict[str, Any]:
        """Acks deliveries, durable before the reply. Those of a broadcast group are done already."""
        names, deliveries = read_names(request.arguments), _deliveries(request.arguments)
        if names in connection.broadcasts:
            return {"acked": len(deliveries), "unknown": 0}
        acked = await self._consuming.ack(*names, deliveries)
        return {"acked": acked.acked, "unknown": acked.unknown}

    async def nack(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Nacks deliveries. Their redelivery is durable before the reply."""
        arguments = request.arguments
        nacked = await self._consuming.nack(
            *read_names(arguments),
            _deliveries(arguments),
            self._nack_delay_ms(arguments),
            None if boolean(arguments, "unseen") else _reason(arguments),
        )
        rest = {"expired": nacked.expired, "dead_lettered": nacked.dead_lettered}
        counts = {"nacked": nacked.nacked, "unknown": nacked.unknown}
        return counts | {name: count for name, count in rest.items() if count}

    async def extend(self, connection: Connection, request: Request) -> dict[str, Any]:
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

    async def groups(self, connection: Connection, request: Request) -> dict[str, Any]:
        """A page of consumer groups with their backlogs, of subjects that are open to the client."""
        arguments = request.arguments
        count_max = integer(arguments, "max", 1, GROUPS_AT_ONCE_MAX, GROUPS_AT_ONCE_MAX)
        page = await self._consuming.groups(arguments.get("subject"), _group_cursor(arguments.get("after")), count_max)
        return {
            "groups": [
                asdict(each.row) | {"subject": each.subject, "group": each.group, "dead_letters": each.dead_letters}
                for each in page.groups
                if connection.access.may(each.subject)
            ],
            "next": None if page.next is None else list(page.next),
        }


def _reason(arguments: dict[str, Any]) -> str:
    """The text that a consumer gives with a nack; empty without one. Raises InvalidArgument."""
    reason = arguments.get("reason")
    if reason is None:
        return ""
    if type(reason) is not str or len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise invalid("reason", f"a text of at most {REASON_BYTES_MAX} bytes", reason)
    return reason


def _filter(arguments: dict[str, Any]) -> PullFilter | None:
    """The filter of a pull; None if it names none. Raises InvalidArgument."""
    tags, where = arguments.get("tags"), arguments.get("where")
    if tags is None and where is None:
        return None
    for name, text in (("tags", tags), ("where", where)):
        if text is not None and type(text) is not str:
            raise invalid(name, "a text", text)
    return PullFilter(tags, where)


def _group_cursor(after: object) -> tuple[int, int]:
    """The group behind which the page begins. Raises InvalidArgument."""
    if after is None:
        return (0, 0)
    if type(after) is not list or len(after) != 2 or not all(type(part) is int for part in after):
        raise invalid("after", "the `next` of the reply before", after)
    return (after[0], after[1])


def start_of(start: object) -> Goal | None:
    """Where a pull lets a new group begin. Raises InvalidArgument."""
    if start is None:
        return None
    if start in (EARLIEST, LATEST):
        return Goal(str(start))
    if type(start) is int and 0 <= start < TIME_MS_MAX:
        return Goal(TIME, start * 1000)
    raise invalid("start", f'"{EARLIEST}", "{LATEST}" or milliseconds since 1970', start)


def _deliveries(arguments: dict[str, Any]) -> NDArray[np.int64]:
    count = unpack_count(arguments.get("count"), 1 << 20)
    return unpack_column(arguments.get("deliveries"), count, I64, "deliveries")


# -- messages in a reply


def reply_of(subject: str, columns: bool, pulled: Pulled | None, name: Callable[[int], str]) -> dict[str, Any]:
    """The result of a pull, in columns or rows. `name` gives the text of a tag's code."""
    if columns:
        return _as_columns(subject, pulled, name)
    return {"messages": _as_rows(subject, pulled, name) if pulled is not None else []}


def _as_columns(subject: str, pulled: Pulled | None, name: Callable[[int], str]) -> dict[str, Any]:
    if pulled is None:
        pulled = Pulled(StoredBatch.filled(0), np.empty(0, np.int64), np.empty(0, np.uint32))
    batch = pulled.batch
    servers, index = _server_ids(batch)
    return {
        "count": len(batch),
        "subject": subject,
        "server_ids": servers,
        "server_index": pack_column(index, U32),
        "sequence": pack_column(batch.sequence),
        "due_ms": pack_column(batch.due_ms),
        "accepted_us": pack_column(batch.accepted_us),
        "dispatched_us": pack_column(batch.dispatched_us),
        "expires_ms": pack_column(batch.expires_ms),
        "attempt": pack_column(pulled.attempt, U32),
        "message_ids": batch.ids,
        "message_id_length": pack_column(batch.ids_length),
        "properties": batch.properties,
        "properties_length": pack_column(batch.properties_length),
        "bodies": batch.bodies,
        "body_length": pack_column(batch.bodies_length),
        "delivery": pack_column(pulled.delivery),
        "position": pack_column(positions_of(batch)),
        **_rare_columns(batch, name),
    }


def _rare_columns(batch: StoredBatch, name: Callable[[int], str]) -> dict[str, Any]:
    """Tags and order keys, if a message has one."""
    fields: dict[str, Any] = {}
    if has_any(batch.tag):
        codes, index = np.unique(batch.tag, return_inverse=True)
        fields["tags"] = [name(code) for code in codes.tolist() if code]
        fields["tag_index"] = pack_column((index + (codes[0] != 0)).astype(np.uint32), U32)
    if len(batch.order_keys):
        fields |= {"order_keys": batch.order_keys, "order_key_length": pack_column(batch.order_keys_length)}
    return fields


def put_rare(rows: list[dict[str, Any]], batch: StoredBatch, name: Callable[[int], str]) -> None:
    """Enters tags and order keys into the rows of those messages that have one."""
    if has_any(batch.tag):
        for row, code in zip(rows, batch.tag.tolist(), strict=True):
            if code:
                row["tag"] = name(code)
    if len(batch.order_keys):
        for row, key in zip(rows, ragged_rows(batch.order_keys, batch.order_keys_length), strict=True):
            if key:
                row["order_key"] = key.decode()


def _as_rows(subject: str, pulled: Pulled, name: Callable[[int], str]) -> list[dict[str, Any]]:
    batch = pulled.batch
    servers, index = _server_ids(batch)
    ids = ragged_rows(batch.ids, batch.ids_length)
    properties = ragged_rows(batch.properties, batch.properties_length)
    bodies = ragged_rows(batch.bodies, batch.bodies_length)
    origin = np.where(batch.origin_sequence != 0, batch.origin_sequence, batch.sequence).tolist()
    columns = [
        column.tolist()
        for column in (
            batch.sequence,
            batch.due_ms,
            batch.accepted_us,
            batch.dispatched_us,
            batch.expires_ms,
            pulled.attempt,
            index,
            positions_of(batch),
        )
    ]
    rows = [
        {
            "message_id": ids[row].decode() if ids[row] else derived_message_id(servers[server], origin[row]),
            "subject": subject,
            "sequence": sequence,
            "server_id": servers[server],
            "due_ms": due_ms,
            "accepted_us": accepted_us,
            "dispatched_us": dispatched_us,
            "expires_ms": expires_ms,
            "attempt": attempt,
            "body": bodies[row],
            "properties": msgpack.unpackb(properties[row]) if properties[row] else {},
            "delivery": delivery,
            "position": position,
        }
        for row, (
            sequence,
            due_ms,
            accepted_us,
            dispatched_us,
            expires_ms,
            attempt,
            server,
            position,
            delivery,
        ) in enumerate(zip(*columns, pulled.delivery.tolist(), strict=True))
    ]
    put_rare(rows, batch, name)
    return rows


def positions_of(batch: StoredBatch) -> NDArray[np.int64]:
    """The position of each message in its subject, i64[n]; -1 for a redelivery, which lies in a queue of its group."""
    target_group = batch.target_group
    if len(target_group) and target_group.strides == (0,) and not target_group[0]:
        return batch.position
    return np.where(target_group != 0, np.int64(-1), batch.position)


def _server_ids(batch: StoredBatch) -> tuple[list[str], NDArray[np.uint32]]:
    server_id = batch.server_id
    if len(server_id) and bool((server_id == server_id[0]).all()):  # the usual case, ten times faster than np.unique
        return [f"{int(server_id[0]):012x}"], constant_column(0, len(server_id), U32)
    numbers, index = np.unique(server_id, return_inverse=True)
    return [f"{number:012x}" for number in numbers.tolist()], index.astype(np.uint32)
