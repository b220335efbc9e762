"""`pull`, `cancel_wait`, `ack`, `nack` and `groups`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import BrokerSettings
from delayserver.front.connection import Connection
from delayserver.operations.consuming import ACK_TIMEOUT_MS_MAX, DELAY_MS_MAX, Consuming, Pull, Pulled
from delayserver.protocol.arguments import boolean, integer, invalid, shown
from delayserver.protocol.columns import I64, U32, pack_column, unpack_column, unpack_count
from delayserver.protocol.errors import SubjectInvalid
from delayserver.protocol.frames import REQUEST_ID_MAX, Request, encode_bulk_reply, encode_reply
from delayserver.protocol.receipts import derived_message_id
from store.records.batches import StoredBatch
from store.records.columns import constant_column, ragged_offsets

# Consumer groups in one reply.
GROUPS_AT_ONCE_MAX = 256


class ConsumingHandlers:
    """Requests of consumers."""

    def __init__(self, consuming: Consuming, settings: BrokerSettings) -> None:
        self._consuming = consuming
        self._settings = settings
        # Waiting pulls by connection number and request id.
        self._waits: dict[tuple[int, int], trio.CancelScope] = {}

    # -- pull

    def pull(self, connection: Connection, request: Request) -> Awaitable[dict[str, Any] | None]:
        """Pulls messages. The step that hands messages out sends their reply; the awaitable gives an empty reply."""
        arguments, settings = request.arguments, self._settings
        columns = boolean(arguments, "columns")
        ack = arguments.get("ack")
        if ack is not None and type(ack) is not dict:
            raise invalid("ack", "a map of count and deliveries", ack)
        pull = Pull(
            _name(arguments, "subject"),
            _name(arguments, "group"),
            integer(arguments, "max_messages", 1, settings.pull_messages_max, 1),
            integer(arguments, "max_bytes", 1, 1 << 62, 8 << 20),
            integer(arguments, "wait_ms", 0, settings.wait_ms_max, 0),
            integer(arguments, "ack_timeout_ms", 1, ACK_TIMEOUT_MS_MAX, settings.ack_timeout_ms),
        )
        acks = None if ack is None else _deliveries(ack)
        waiting = trio.CancelScope()
        if pull.wait_ms:
            # Entered before the task begins, so that a `cancel_wait` right behind the pull finds it.
            self._waits[connection.peer.number, request.id] = waiting
        return self._pull(connection, request.id, columns, pull, acks, waiting)

    async def _pull(
        self,
        connection: Connection,
        request_id: int,
        columns: bool,
        pull: Pull,
        acks: NDArray[np.int64] | None,
        waiting: trio.CancelScope,
    ) -> dict[str, Any] | None:
        subject = pull.subject

        def handed(pulled: Pulled, lost: Callable[[], None]) -> None:
            connection.reply(encode_bulk_reply(request_id, _reply(subject, columns, pulled)), lost)

        answer = self._consuming.pull(pull, acks, handed, connection, waiting)
        del pull, acks  # they are views of the request, whose memory is freed before the wait
        try:
            answered = await answer
        finally:
            key = connection.peer.number, request_id
            if self._waits.get(key) is waiting:
                del self._waits[key]
        return None if answered else _reply(subject, columns, None)

    def cancel_wait(self, connection: Connection, request: Request) -> None:
        """Ends a waiting pull of the same connection. Messages that were handed out stay leased."""
        request_id = integer(request.arguments, "id", 1, REQUEST_ID_MAX)
        waiting = self._waits.pop((connection.peer.number, request_id), None)
        if waiting is not None:
            waiting.cancel()
        connection.reply(encode_reply(request.id, {"ended": waiting is not None}))

    # -- ack, nack and groups

    async def ack(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Acks deliveries, durable before the reply."""
        arguments = request.arguments
        acked = await self._consuming.ack(*_names(arguments), _deliveries(arguments))
        return {"acked": acked.acked, "unknown": acked.unknown}

    async def nack(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Nacks deliveries. Their redelivery is durable before the reply."""
        arguments = request.arguments
        own = arguments.get("delay_ms") is not None
        nacked = await self._consuming.nack(
            *_names(arguments),
            _deliveries(arguments),
            integer(arguments, "delay_ms", 0, DELAY_MS_MAX) if own else None,
        )
        result = {"nacked": nacked.nacked, "unknown": nacked.unknown}
        return result | {"expired": nacked.expired} if nacked.expired else result

    async def groups(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """A page of consumer groups with their backlogs."""
        arguments = request.arguments
        count_max = integer(arguments, "max", 1, GROUPS_AT_ONCE_MAX, GROUPS_AT_ONCE_MAX)
        page = await self._consuming.groups(arguments.get("subject"), _group_cursor(arguments.get("after")), count_max)
        return {
            "groups": [asdict(each.row) | {"subject": each.subject, "group": each.group} for each in page.groups],
            "next": None if page.next is None else list(page.next),
        }


def _group_cursor(after: object) -> tuple[int, int]:
    """The group behind which the page begins. Raises InvalidArgument."""
    if after is None:
        return (0, 0)
    if type(after) is not list or len(after) != 2 or not all(type(part) is int for part in after):
        raise invalid("after", "the `next` of the reply before", after)
    return (after[0], after[1])


def _names(arguments: dict[str, Any]) -> tuple[str, str]:
    """Subject and group of a request. Raises SubjectInvalid."""
    return _name(arguments, "subject"), _name(arguments, "group")


def _name(arguments: dict[str, Any], what: str) -> str:
    name = arguments.get(what)
    if type(name) is not str:
        raise SubjectInvalid(f"a {what} is a text of at least one character, not {shown(name)}")
    return name


def _deliveries(arguments: dict[str, Any]) -> NDArray[np.int64]:
    count = unpack_count(arguments.get("count"), 1 << 20)
    return unpack_column(arguments.get("deliveries"), count, I64, "deliveries")


# -- messages in a reply


def _reply(subject: str, columns: bool, pulled: Pulled | None) -> dict[str, Any]:
    if columns:
        return _as_columns(subject, pulled)
    return {"messages": _as_rows(subject, pulled) if pulled is not None else []}


def _as_columns(subject: str, pulled: Pulled | None) -> dict[str, Any]:
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
    }


def _as_rows(subject: str, pulled: Pulled) -> list[dict[str, Any]]:
    batch = pulled.batch
    servers, index = _server_ids(batch)
    ids = _rows(batch.ids, batch.ids_length)
    properties = _rows(batch.properties, batch.properties_length)
    bodies = _rows(batch.bodies, batch.bodies_length)
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
        )
    ]
    return [
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
        }
        for row, (sequence, due_ms, accepted_us, dispatched_us, expires_ms, attempt, server, delivery) in enumerate(
            zip(*columns, pulled.delivery.tolist(), strict=True)
        )
    ]


def _server_ids(batch: StoredBatch) -> tuple[list[str], NDArray[np.uint32]]:
    server_id = batch.server_id
    if len(server_id) and bool((server_id == server_id[0]).all()):  # the usual case, ten times faster than np.unique
        return [f"{int(server_id[0]):012x}"], constant_column(0, len(server_id), U32)
    numbers, index = np.unique(server_id, return_inverse=True)
    return [f"{number:012x}" for number in numbers.tolist()], index.astype(np.uint32)


def _rows(blob: memoryview, lengths: NDArray[np.uint32]) -> list[bytes]:
    data = bytes(blob)
    return [data[start:end] for start, end in pairwise(ragged_offsets(lengths).tolist())]
