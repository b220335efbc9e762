"""Operations whose requests and replies are types of `protocol/schema`: one handler serves them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from delayserver.front.connection import Connection, SlowHandler
from delayserver.operations.access.access import Access
from delayserver.operations.nodes.servers import Peer
from delayserver.protocol.frames import RequestFrame
from delayserver.protocol.schema.structs import read_request, result_of
from delayserver.runtime.fair_turns import Work

Act: TypeAlias = Callable[[Any, Connection], Awaitable[Struct]]
"""Answers a request of one type."""


def described(acts: Mapping[type[Struct], Act]) -> SlowHandler:
    """The handler of an operation with these types of requests. `action` says which one is meant, if there are several."""
    kinds = tuple(acts)

    async def handle(connection: Connection, request: RequestFrame) -> dict[str, Any]:
        asked = read_request(request.arguments, *kinds)
        return result_of(await acts[type(asked)](asked, connection))

    return handle


def alike(act: Callable[[Any], Awaitable[Struct]]) -> Act:
    """An act that answers every connection alike."""
    return lambda asked, _connection: act(asked)


def for_client(act: Callable[[Any, Work, Access], Awaitable[Struct]]) -> Act:
    """An act in slices of work, that shows what is open to the client."""
    return lambda asked, connection: act(asked, connection.work(), connection.access)


def for_peer(act: Callable[[Any, Peer], Awaitable[Struct]]) -> Act:
    """An act that asks whether the other side is a server or an operator."""
    return lambda asked, connection: act(asked, connection.peer)
