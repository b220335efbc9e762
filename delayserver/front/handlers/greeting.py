"""`hello` and `prove`: both sides of a connection identify themselves."""

from __future__ import annotations

from delayserver.front.audit import asker, tell_refused_token
from delayserver.front.connection import Connection
from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.nodes.server_identity import Identity
from delayserver.operations.nodes.servers import Servers
from delayserver.protocol.errors import Unauthenticated
from delayserver.protocol.frames import RequestFrame, encode_reply
from delayserver.protocol.limits import Limits
from delayserver.protocol.operation_names import PROTOCOL_VERSION
from delayserver.protocol.schema.greetings import Challenge, Hello, Prove, ServerInfo
from delayserver.protocol.schema.structs import read_request, result_of
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
        self._levels_ms = levels_ms
        self._servers = servers
        self._tokens = tokens
        self._clock = clock

    def hello(self, connection: Connection, request: RequestFrame) -> None:
        """Agrees on a protocol version, and gives the client the rights of its token. Replies with the server's identity,
        clock and limits."""
        asked = read_request(request.arguments, Hello)
        if asked.instance is not None or asked.server_id is not None:
            self._servers.hello(connection.peer, asked.instance, asked.server_id)
        if asked.notices:
            connection.take_notices()
        if asked.token is not None:
            self._authenticate(connection, request, asked.token)
        access, identity = connection.access, self._identity
        is_known = access is not EVERYTHING
        info = ServerInfo(
            version=PROTOCOL_VERSION,
            server_id=identity.server_id,
            server_us=self._clock.now_us(),
            role=identity.role,
            software=f"delayserver {identity.version}",
            limits=self._limits,
            delay_levels_ms=self._levels_ms,
            needs_token=self._tokens.enabled.is_set(),
            token_id=access.token_id if is_known else "",
            roles=tuple(sorted(access.roles)) if is_known else (),
            subjects=access.subjects if is_known else (),
            shards=len(identity.map.shown.shards),
        )
        connection.reply(encode_reply(request.id, result_of(info)))

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
        proof = read_request(request.arguments, Prove).proof
        if proof is None:
            reply = Challenge(self._servers.challenge(connection.peer))
        else:
            self._servers.prove(connection.peer, proof)
            connection.believe()
            reply = Challenge()
        connection.reply(encode_reply(request.id, result_of(reply)))
