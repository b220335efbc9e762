"""`hello` and `prove`: both sides of a connection identify themselves."""

from __future__ import annotations

from typing import Any

from delayserver.front.audit import asker, tell_refused_token
from delayserver.front.connection import Connection
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.nodes.server_identity import Identity
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol.arguments import boolean, shown
from delayserver.protocol.errors import Unauthenticated, UnsupportedVersion
from delayserver.protocol.frames import RequestFrame, encode_reply
from delayserver.protocol.limits import Limits
from delayserver.protocol.operation_names import PROTOCOL_VERSION, SUPPORTED_VERSIONS
from delayserver.runtime.clock import Clock


class GreetingHandlers:
    """Requests at the beginning of a connection."""

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        levels_ms: tuple[int, ...],
        servers: Servers,
        tokens: TokenBook,
        clock: Clock,
    ) -> None:
        """`levels_ms`: the named delay levels."""
        self._identity = identity
        self._limits = limits
        self._levels_ms = list(levels_ms)
        self._servers = servers
        self._tokens = tokens
        self._clock = clock

    def hello(self, connection: Connection, request: RequestFrame) -> None:
        """Agrees on a protocol version, and gives the client the rights of its token. Replies with the server's identity,
        clock and limits."""
        arguments = request.arguments
        versions = arguments.get("versions")
        if type(versions) is not list or not set(SUPPORTED_VERSIONS) & {v for v in versions if type(v) is int}:
            raise UnsupportedVersion(
                f"this server speaks {list(SUPPORTED_VERSIONS)}, the client gives {shown(versions)}"
            )
        instance, server_id = arguments.get("instance"), arguments.get("server_id")
        if instance is not None or server_id is not None:
            self._servers.hello(connection.peer, instance, server_id)
        if "notices" in arguments and boolean(arguments, "notices"):
            connection.take_notices()
        token = arguments.get("token")
        if token is not None:
            self._authenticate(connection, request, token)
        identity = self._identity
        reply: dict[str, Any] = {
            "version": PROTOCOL_VERSION,
            "server_id": identity.server_id,
            "server_us": self._clock.now_us(),
            "role": identity.role,
            "software": f"delayserver {identity.version}",
            "limits": self._limits.to_map(),
            "delay_levels_ms": self._levels_ms,
        }
        if self._tokens.enabled.is_set():
            reply["needs_token"] = True
        access = connection.access
        if access is not EVERYTHING:
            reply |= {"token_id": access.token_id, "roles": sorted(access.roles), "subjects": list(access.subjects)}
        connection.reply(encode_reply(request.id, reply))

    def _authenticate(self, connection: Connection, request: RequestFrame, token: object) -> None:
        """Raises Unauthenticated. A server without tokens takes any: clients may be given theirs before it has one."""
        try:
            access, parsed = self._tokens.authenticate(token)
        except Unauthenticated:
            if self._tokens.enabled.is_set():
                tell_refused_token(asker(connection, request))
                raise
            return
        connection.authorise(access)
        ended = Unauthenticated("the token of this connection was revoked or has expired")
        self._tokens.bind(connection.peer.number, parsed, lambda: connection.end(ended))

    def prove(self, connection: Connection, request: RequestFrame) -> None:
        """Replies with a challenge if `proof` is missing. A correct `proof` makes the peer count as a server."""
        proof = request.arguments.get("proof")
        if proof is None:
            reply = {"challenge": self._servers.challenge(connection.peer)}
        else:
            self._servers.prove(connection.peer, proof)
            connection.believe()
            reply = {}
        connection.reply(encode_reply(request.id, reply))
