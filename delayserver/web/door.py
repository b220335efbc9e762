"""The checks that every request passes before the gateway: its site and its token. They also set headers of each answer.

A token comes in `Authorization: Bearer`, or by the cookie of a session. The server judges it, over the connection of that
token; the gateway does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from delayserver.config.settings import HttpSettings
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.tokens import parse_token
from delayserver.web.answers import Send, json_answer, problem_answer, read_json
from delayserver.web.bodies import Receive, Scope
from delayserver.web.clients import TOKEN, Clients
from delayserver.web.origins import check_site, is_loopback_name
from delayserver.web.problems import Problem, problem_of
from delayserver.web.scraping import STATUS
from delayserver.web.sessions import AGE_S_MAX, COOKIE, Sessions

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
SESSION: Final = "/v1/session"
_LOGIN_BYTES_MAX: Final = 1024
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


class LoginRequest(msgspec.Struct):
    """A token that somebody signs in with."""

    token: str


class SessionState(msgspec.Struct):
    """The caller as the server sees it. ``needs_token``: the server asks for a token, and this request has none that is
    valid."""

    needs_token: bool
    token_id: str
    roles: list[str]
    subjects: list[str]


class Door:
    """An ASGI application around the gateway."""

    def __init__(
        self, inner: Application, clients: Clients, sessions: Sessions, settings: HttpSettings, *, loopback: bool
    ) -> None:
        """`loopback`: the gateway listens on loopback alone."""
        self._inner = inner
        self._clients = clients
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
            if path in (LOGIN, LOGOUT, SESSION):
                await (await self._own(path, scope, receive))(dict(scope), receive, send)
                return
        except Problem as problem:
            await problem_answer(problem)(dict(scope), receive, send)
            return
        except DelayServerError as error:
            await problem_answer(problem_of(error))(dict(scope), receive, send)
            return
        except ClientDisconnect:
            return
        await self._inner(scope, receive, send)

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
        if given is not None:
            scheme, _, text = given.decode("latin-1").strip().partition(" ")
            token: str = text.strip()
            if scheme.lower() != "bearer" or parse_token(token) is None:
                raise Problem(
                    401, "unauthenticated", "the Authorization header is no Bearer and a token of delayserver"
                )
            return token
        if cookies is not None:
            signed_in = self._sessions.token_of(_session_id(cookies))
            if signed_in is not None:
                return signed_in
        self._require_host(host)
        return ""

    def _require_host(self, host: bytes | None) -> None:
        """Raises `Problem` for a request without a token under a name that is not this machine's, on a gateway that only
        this machine should reach."""
        if not self._loopback or host is None:
            return
        name = host.decode("latin-1").lower()
        if not is_loopback_name(name) and name not in self._hosts and name.rpartition(":")[0] not in self._hosts:
            raise Problem(
                403,
                "host_unknown",
                f"this gateway serves this machine alone, not {name[:100]!r}; name the host in http.allowed_hosts",
            )

    # -- sessions

    async def _own(self, path: str, scope: Scope, receive: Receive) -> Response:
        if path == SESSION:
            if scope["method"] not in ("GET", "HEAD"):
                raise _not_allowed(path, ["GET"])
            return json_answer(await self._state(self._token(scope)))
        if scope["method"] != "POST":
            raise _not_allowed(path, ["POST"])
        request = Request(dict(scope), receive)
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        common = f"HttpOnly; SameSite=Strict; Path=/{secure}"
        if path == LOGOUT:
            for name, value in scope["headers"]:
                if name == b"cookie":
                    self._sessions.end(_session_id(value))
            return Response(status_code=204, headers={"set-cookie": f"{COOKIE}=; Max-Age=0; {common}"})
        token = (await self._given(request)).token.strip()
        if parse_token(token) is None:
            raise Problem(401, "unauthenticated", "this is no token of delayserver: it begins with dst_")
        # Raises Unauthenticated for a token that the server does not take.
        state = await self._state(token)
        session_id = self._sessions.begin(token)
        age_s = int(AGE_S_MAX)
        return json_answer(state, headers={"set-cookie": f"{COOKIE}={session_id}; Max-Age={age_s}; {common}"})

    async def _given(self, request: Request) -> LoginRequest:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LOGIN_BYTES_MAX:
                raise Problem(413, "message_too_large", "a login is a token and nothing else")
        return read_json(body, _LOGIN)

    async def _state(self, token: str) -> SessionState:
        info = await self._clients.who_is(token)
        return SessionState(info.needs_token and not info.roles, info.token_id, list(info.roles), list(info.subjects))


_LOGIN: Final = msgspec.json.Decoder(LoginRequest)


def _session_id(cookies: bytes) -> str:
    """The id of the session in a `Cookie` header; empty if it has none."""
    for part in cookies.decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _not_allowed(path: str, methods: list[str]) -> Problem:
    return Problem(405, "method_not_allowed", f"{path} takes {', '.join(methods)}", fields={"allowed": methods})


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
