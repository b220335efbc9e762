"""The checks that every request passes before the gateway: its site and its token. They also set headers of each answer.

A token comes in `Authorization: Bearer`, or by the cookie of a session. The server judges it, over the connection of that
token; the gateway does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final

from delayserver.config.settings import HttpSettings
from delayserver.protocol.token_text import parse_token
from delayserver.web.answers import Send, problem_answer
from delayserver.web.bodies import TOKEN, Receive, Scope
from delayserver.web.clients import STRANGE_HOST
from delayserver.web.origins import check_site, is_loopback_name
from delayserver.web.problems import Problem
from delayserver.web.scraping import STATUS
from delayserver.web.sessions import LASTS, Sessions, session_id_of
from delayserver.web.signing_in import LOGIN, LOGOUT

# Paths of the console's files: a person may follow a link to them from anywhere.
_API: Final = ("/v1/", "/metrics", LOGIN, LOGOUT)

_COMMON: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_NOTHING: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_CONSOLE: Final = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    b"manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
)
_OF_API: Final = (*_COMMON, _NOTHING, (b"cache-control", b"no-store"))
_OF_CONSOLE: Final = (*_COMMON, _CONSOLE)

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """An ASGI application around the gateway."""

    def __init__(self, inner: Application, sessions: Sessions, settings: HttpSettings, *, loopback: bool) -> None:
        """`loopback`: the gateway listens on loopback alone."""
        self._inner = inner
        self._sessions = sessions
        self._hosts = frozenset(settings.allowed_hosts.lower().split())
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path"]
        api = path.startswith(_API)
        send = _with_headers(scope, send, _OF_API if api else _OF_CONSOLE)
        try:
            if api:
                check_site(scope["headers"])
            scope[TOKEN] = self._token(scope)
        except Problem as problem:
            await problem_answer(problem)(dict(scope), receive, send)
            return
        await self._inner(scope, _while_it_lasts(scope, receive), send)

    def _token(self, scope: Scope) -> str:
        """The token of a request; empty for none. Raises `Problem`."""
        given = cookies = host = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if given is not None:
                    raise Problem(401, "unauthenticated", "give one Authorization header")
                given = value
            elif name == b"cookie":
                cookies = value
            elif name == b"host":
                host = value
        strange = scope[STRANGE_HOST] = self._strange_host(host)
        if given is not None:
            scheme, _, text = given.decode("latin-1").strip().partition(" ")
            token: str = text.strip()
            if scheme.lower() != "bearer" or parse_token(token) is None:
                raise Problem(
                    401, "unauthenticated", "the Authorization header is no Bearer and a token of delayserver"
                )
            return token
        if cookies is not None:
            session_id = session_id_of(cookies.decode("latin-1"), (host or b"").decode("latin-1"))
            signed_in = self._sessions.token_of(session_id)
            if signed_in is not None:
                scope[LASTS] = partial(self._sessions.lasts, session_id)
                return signed_in
        if strange is not None:
            raise strange
        return ""

    def _strange_host(self, host: bytes | None) -> Problem | None:
        """The problem of a request under a name that is not this machine's, on a gateway that only this machine should
        reach. It counts for requests without a token. A page may also invent one: `Clients` looks whether the server asks
        for any."""
        if not self._loopback or host is None:
            return None
        name = host.decode("latin-1").lower()
        if is_loopback_name(name) or name in self._hosts or name.rpartition(":")[0] in self._hosts:
            return None
        return Problem(
            403,
            "host_unknown",
            f"this gateway serves this machine alone, not {name[:100]!r}; name the host in http.allowed_hosts",
        )


def _while_it_lasts(scope: Scope, receive: Receive) -> Receive:
    """A `receive` that says that the client is gone from the end of its session on: a body of lines may go on for ever."""
    lasts = scope.get(LASTS)
    if lasts is None:
        return receive

    async def receiving() -> MutableMapping[str, Any]:
        message = await receive()
        return message if lasts() else {"type": "http.disconnect"}

    return receiving


def _with_headers(scope: Scope, send: Send, common: tuple[tuple[bytes, bytes], ...]) -> Send:
    """A `send` that notes the status, and adds common headers where the answer does not have its own."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            scope[STATUS] = message["status"]
            headers = message.get("headers", ())
            names = {name for name, _ in headers}
            message = {**message, "headers": [*headers, *[each for each in common if each[0] not in names]]}
        await send(message)

    return sending
