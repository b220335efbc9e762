"""`token`: makes, lists, revokes and rotates access tokens."""

from __future__ import annotations

from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol.arguments import integer, invalid
from delayserver.protocol.frames import Request
from delayserver.protocol.tokens import OVERLAP_MS_DEFAULT
from delayserver.tokens.changes import NewToken
from store.tables.tokens import StoredToken

_ACTIONS: Final = ("create", "list", "revoke", "rotate")
# A year: a secret that is valid for longer beside its successor was not rotated.
_OVERLAP_MS_MAX: Final = 366 * 86_400_000


class TokenHandlers:
    """Requests of operators about tokens."""

    def __init__(self, tokens: TokenBook, servers: Servers) -> None:
        self._tokens = tokens
        self._servers = servers

    async def token(self, connection: Connection, request: Request) -> dict[str, Any]:
        """Does what `action` says. Only the replies to `create` and `rotate` have the text of a token."""
        arguments, asking = request.arguments, connection.peer.number
        if connection.access is EVERYTHING:  # no token exists yet
            self._servers.check_operator(connection.peer)
        action = arguments.get("action")
        if action == "list":
            return {"tokens": [token_map(token) for token in self._tokens.tokens()]}
        if action == "create":
            token, text = await self._tokens.create(_wanted(arguments))
            return token_map(token) | {"token": text}
        if action == "revoke":
            return token_map(await self._tokens.revoke(arguments.get("id"), asking))
        if action != "rotate":
            raise invalid("action", f"one of {', '.join(_ACTIONS)}", action)
        overlap_ms = integer(arguments, "overlap_ms", 0, _OVERLAP_MS_MAX, OVERLAP_MS_DEFAULT)
        token, text = await self._tokens.rotate(arguments.get("id"), overlap_ms, asking)
        return token_map(token) | {"token": text}


def _wanted(arguments: dict[str, Any]) -> NewToken:
    get = arguments.get
    return NewToken(
        get("roles"),
        get("subjects", ["*"]),
        get("name", ""),
        *[get(name, 0) for name in ("expires_ms", "rate", "bytes_rate", "pending_max")],
    )


def token_map(token: StoredToken) -> dict[str, Any]:
    """A token as a list shows it: never a secret, nor its digest."""
    return {
        "id": token.token_id,
        "name": token.name,
        "roles": list(token.roles),
        "subjects": list(token.subjects),
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "rate": token.rate,
        "bytes_rate": token.bytes_rate,
        "pending_max": token.pending_max,
        "old_until_ms": max([secret.until_ms for secret in token.secrets]),
    }
