"""`token`: makes, lists, revokes and rotates access tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from delayserver.front.connection import Connection
from delayserver.front.handlers.described import Act
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol.schema.tokens import CreateToken, ListTokens, RevokeToken, RotateToken


def token_acts(tokens: TokenBook, servers: Servers) -> Mapping[type[Struct], Act]:
    """What answers each kind of request. As long as there is no token, only operators get an answer."""

    def of_operator(act: Callable[[Any, int], Awaitable[Struct]]) -> Act:
        async def answer(asked: Struct, connection: Connection) -> Struct:
            if connection.access is EVERYTHING:
                servers.check_operator(connection.peer)
            return await act(asked, connection.peer.number)

        return answer

    return {
        CreateToken: of_operator(tokens.create),
        ListTokens: of_operator(tokens.listed),
        RevokeToken: of_operator(tokens.revoke),
        RotateToken: of_operator(tokens.rotate),
    }
