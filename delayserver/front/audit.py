"""The audit log `delayserver.audit`: an event for each administrative act, with who asked for what, and how it ended, and
for each token that was refused. `log.audit_file` keeps it in a file."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from delayserver.front.connection import Connection, SlowHandler
from delayserver.logs.events import AUDIT_LOGGER, EventLogger
from delayserver.protocol import operation_names as names_of
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import RequestFrame

events = EventLogger(AUDIT_LOGGER)

# Operations that change what others rely on. Of some, only certain requests do.
AUDITED: Final = frozenset(
    {
        names_of.TOKEN,
        names_of.SEEK,
        names_of.REMOVE_GROUP,
        names_of.POLICY,
        names_of.DEAD_LETTERS,
        names_of.REDISPATCH,
        names_of.RELOAD,
        names_of.SNAPSHOT,
        names_of.CLUSTER,
    }
)
# Arguments that say what was asked for. None of them is a secret or a body.
_TOLD: Final = ("action", "id", "name", "subject", "group", "member")
_TEXT_CHARACTERS_MAX: Final = 255
_ADDRESS_CHARACTERS_MAX: Final = 64
_UNKNOWN: Final = "unknown"
"""The result of an act that was cut off, mostly by the end of its connection."""


def audited(handlers: Mapping[str, SlowHandler]) -> dict[str, SlowHandler]:
    """The handlers. Those of administrative acts also write a line of the audit log."""
    return {name: _told(handler) if name in AUDITED else handler for name, handler in handlers.items()}


def tell_reload_by_signal(result: str) -> None:
    """SIGHUP made the server read its configuration again. `result`: `done`, or the name of the error."""
    _tell_act("the operator of the process", "this machine", names_of.RELOAD, "", result)


def asker(connection: Connection, request: RequestFrame) -> str:
    """The address of the client that asks. A gateway names its client; since it may be any peer, its own address stands
    beside."""
    claimed = request.arguments.get("client_address")
    if type(claimed) is not str or len(claimed) > _ADDRESS_CHARACTERS_MAX:
        return connection.peer.address
    try:
        return f"{ipaddress.ip_address(claimed)} by way of {connection.peer.address}"
    except ValueError:
        return connection.peer.address


def tell_refused_token(address: str) -> None:
    """A client gave a token that is not valid."""
    events.info("token_refused", "a client at {address} gave a token that is not valid", address=address)


def _told(handler: SlowHandler) -> SlowHandler:
    def telling(connection: Connection, request: RequestFrame) -> Awaitable[dict[str, Any] | None]:
        if not _is_act(request):
            return handler(connection, request)
        try:
            answer = handler(connection, request)
        except DelayServerError as error:
            _tell(connection, request, error.name)
            raise
        return _answered(answer, connection, request)

    return telling


async def _answered(
    answer: Awaitable[dict[str, Any] | None], connection: Connection, request: RequestFrame
) -> dict[str, Any] | None:
    try:
        result = await answer
    except BaseException as error:
        # A client that closes its connection cancels the act, which may have been done by then.
        _tell(connection, request, error.name if isinstance(error, DelayServerError) else _UNKNOWN)
        raise
    _tell(connection, request, "done", result)
    return result


def _is_act(request: RequestFrame) -> bool:
    """False for requests of these operations that only look."""
    arguments = request.arguments
    if request.operation == names_of.POLICY:
        return arguments.get("set") is not None or bool(arguments.get("reset"))
    if request.operation == names_of.CLUSTER:
        return arguments.get("action") != "show"
    return not (request.operation in (names_of.TOKEN, names_of.DEAD_LETTERS) and arguments.get("action") == "list")


def _tell(connection: Connection, request: RequestFrame, result: str, reply: dict[str, Any] | None = None) -> None:
    arguments = request.arguments
    what = {name: arguments[name][:_TEXT_CHARACTERS_MAX] for name in _TOLD if type(arguments.get(name)) is str}
    if request.operation == names_of.TOKEN and reply is not None and "id" not in what:
        what["id"] = str(reply.get("id", ""))
    _tell_act(
        f"token {connection.access.token_id}" if connection.access.token_id else "no token",
        asker(connection, request),
        request.operation,
        " ".join([f"{name}={value!r}" for name, value in what.items()]),
        result,
    )


def _tell_act(who: str, address: str, operation: str, asked: str, result: str) -> None:
    events.info(
        "administrative_act",
        "{who} at {address}: {operation} {asked}: {result}",
        who=who,
        address=address,
        operation=operation,
        asked=asked,
        result=result,
    )
