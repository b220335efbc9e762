"""The operations `hello` and `prove`: both sides of a connection say who they are."""

from __future__ import annotations

from typing import Annotated, Any, Final

from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import UnsupportedVersion
from delayserver.protocol.limits import Limits
from delayserver.protocol.operation_names import SUPPORTED_VERSIONS
from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS

_ADDRESS: Final = (
    "For gateways: the IP address of the client for which it asks. The audit log shows it beside that of the gateway. "
    "`token`, `policy`, `seek`, `remove_group`, `dead_letters`, `redispatch` and `reload` take it too."
)
_ROLE: Final = (
    "`server`, or `broker`: a node that only stores and delivers, without `send`, `cancel`, `reschedule`, `lookup`, "
    "`prepare`, `commit`, `rollback`, `redispatch` and `reload`."
)
_ONE_SERVER: Final = "Where servers say who they are. See `hello` of a server."


class Hello(Request, frozen=True):
    """The first request of a connection. Raises UnsupportedVersion."""

    versions: Annotated[
        Any,
        says(
            "The protocol versions of the client, here `[1]`.",
            [1],
            expected="a list of versions",
            error=UnsupportedVersion,
            written="[int]",
        ),
    ]
    # The server takes anything here: it is a name for people.
    client: Annotated[Any, says("Name of the software. The server does not use it at present.", written="text")] = None
    token: Annotated[
        Any,
        says("The access token, `dst_` and 56 characters. A server without tokens ignores it.", written="text"),
    ] = None
    notices: Annotated[bool, says("True: the client understands notices, see section 4.", True)] = False
    server_id: Annotated[Any, says(_ONE_SERVER, "5f3a9c0d2b71", written="text")] = None
    instance: Annotated[Any, says(_ONE_SERVER, "00000000000000aa", written="text")] = None
    client_address: Annotated[Any, says(_ADDRESS, "192.0.2.7", written="text")] = None

    def __post_init__(self) -> None:
        versions = self.versions
        if type(versions) is not list or not set(SUPPORTED_VERSIONS) & {v for v in versions if type(v) is int}:
            raise UnsupportedVersion(
                f"this server speaks {list(SUPPORTED_VERSIONS)}, the client gives {shown(versions)}"
            )


class ServerInfo(Reply, frozen=True, kw_only=True):
    """The server's answer to hello. ``role`` is `server` or `broker`. ``token_id``, ``roles`` and ``subjects`` are those of
    the token that this client gave."""

    version: Annotated[int, says("The protocol version of the connection.", 1)]
    server_id: Annotated[str, says("Names the server: 12 hex digits.", "5f3a9c0d2b71")]
    server_us: Annotated[int, says("The server's clock, in microseconds since 1970.", DUE_MS * 1000)]
    role: Annotated[str, says(_ROLE, "server")]
    software: Annotated[str, says("Name and version of the server, for people.", "delayserver 0.2.0")]
    limits: Annotated[Limits, says("The bounds of section 9.", written="map")]
    delay_levels_ms: Annotated[
        tuple[int, ...],
        says("The delay levels (`message.delay_levels`), level 1 first, in milliseconds.", [1_000, 5_000]),
    ] = ()
    needs_token: Annotated[bool, says("True: the server asks every client for a token.", True, left_out=True)] = False
    token_id: Annotated[str, says("The id of the client's token.", "0a1b2c3d4e5f", left_out=True)] = ""
    roles: Annotated[tuple[str, ...], says("What the token may do.", ["send", "consume"], left_out=True)] = ()
    subjects: Annotated[
        tuple[str, ...], says("Patterns of the subjects that the token opens.", ["orders.*"], left_out=True)
    ] = ()
    shards: Annotated[
        int,
        says(
            "How many shards the cluster has that this server is a member of, see `map`. Without it: no cluster.",
            2,
            left_out=True,
        ),
    ] = 0


class Prove(Request, frozen=True):
    """Asks for a challenge, or answers one."""

    proof: Annotated[
        Any, says("The proof for the challenge. Without it the reply has a challenge.", written="bytes")
    ] = None


class Challenge(Reply, frozen=True):
    """What a proof has to answer. It is empty if the server has no secret. The reply to a proof has none."""

    challenge: Annotated[bytes, says("The challenge.", left_out=True)] | None = None
