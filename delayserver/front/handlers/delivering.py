"""`deliver` and `window_complete`, requests of other servers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.front.connection import Connection
from delayserver.front.handlers.reading import optional_ragged
from delayserver.operations.nodes.delivering import Delivering, HandOver, HandOverAnswer, NameColumn
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol.arguments import boolean, integer, invalid, server_number
from delayserver.protocol.columns import I64, U32, pack_column, unpack_column, unpack_count, unpack_ragged
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame, encode_reply
from store.records.shared_column import REDELIVERY


class DeliveringHandlers:
    """Requests of servers that use this one as a node."""

    def __init__(self, delivering: Delivering, servers: Servers) -> None:
        self._delivering = delivering
        self._servers = servers

    def deliver(self, connection: Connection, request: RequestFrame) -> Awaitable[dict[str, Any]]:
        """Stores messages at once, in the order of the requests, and replies when they are durable."""
        self._servers.check(connection.peer)  # before anything of it is read
        return _stored(self._delivering.deliver(connection.peer, _read_delivery(request.arguments)))

    def window_complete(self, connection: Connection, request: RequestFrame) -> None:
        """Takes windows from which the server delivers no more messages, unless it opens them again."""
        windows = request.arguments.get("window_ms")
        if type(windows) is not list or not all(type(window) is int for window in windows):
            raise invalid("window_ms", "a list of integers", windows)
        server_id = server_number(request.arguments.get("server_id"))
        self._delivering.window_complete(connection.peer, server_id, windows)
        connection.reply(encode_reply(request.id, {}))


async def _stored(answer: Awaitable[HandOverAnswer]) -> dict[str, Any]:
    stored = await answer
    # Two servers have the same id. A server that gets this field shows it in its log and status.
    return {"outcome": pack_column(stored.outcome)} | ({"duplicate_server_id": True} if stored.contested else {})


def _read_delivery(arguments: dict[str, Any]) -> HandOver:
    """Raises InvalidArgument."""
    get = arguments.get
    count = unpack_count(get("count"), 1 << 20)
    if not count:
        raise InvalidArgument("count must be at least 1")
    names = ("sequence", "due_ms", "accepted_us", "dispatched_us", "expires_ms", "origin_sequence")
    return HandOver(
        ids=unpack_ragged(get("message_ids"), get("message_id_length"), count, "message_ids", "message_id_length"),
        properties=unpack_ragged(get("properties"), get("properties_length"), count, "properties", "properties_length"),
        bodies=unpack_ragged(get("bodies"), get("body_length"), count, "bodies", "body_length"),
        **{name: unpack_column(get(name), count, I64, name) for name in names},
        server_id=server_number(get("server_id")),
        window_ms=integer(arguments, "window_ms", 0, 1 << 62),
        subjects=_names(arguments, count, "subjects", "subject_index", 0),
        target_groups=_names(arguments, count, "target_groups", "target_group_index", 1),
        redelivery=_redelivery(arguments, count),
        uncertain=boolean(arguments, "uncertain"),
        tags=None if get("tags") is None else _names(arguments, count, "tags", "tag_index", 1),
        order_keys=optional_ragged(arguments, count, "order_keys", "order_key_length"),
    )


def _redelivery(arguments: dict[str, Any], count: int) -> NDArray[np.uint32]:
    """Redelivery numbers and unanswered hand-overs to other nodes, packed u32[n]. Older servers send no hand-overs."""
    number = unpack_column(arguments.get("redelivery"), count, U32, "redelivery")
    given = arguments.get("unanswered")
    if given is None and int(number.max()) <= REDELIVERY.number_max:
        return number
    unanswered = unpack_column(0 if given is None else given, count, U32, "unanswered")
    return REDELIVERY.pack(number, unanswered)


def _names(arguments: dict[str, Any], count: int, field: str, index_field: str, first: int) -> NameColumn:
    """A list of names, and a column of indexes into it that begin with `first`. Raises InvalidArgument."""
    names = arguments.get(field)
    if type(names) is not list or not all(type(name) is str and name and name.isprintable() for name in names):
        raise InvalidArgument(f"{field} must be a list of non-empty texts without control characters")
    index = unpack_column(arguments.get(index_field), count, U32, index_field)
    if int(index.max()) >= first + len(names):
        raise InvalidArgument(f"{index_field} points behind the end of {field}")
    return NameColumn(names, index)
