"""`/login`, `/logout` and `/v1/session`: how a person signs in to the console with a token, and out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.token_text import parse_token
from delayserver.web.answers import json_answer, read_json
from delayserver.web.bodies import TOKEN, BodyReader
from delayserver.web.clients import Clients
from delayserver.web.problems import Problem
from delayserver.web.schemas import LoginRequest, SessionState
from delayserver.web.sessions import AGE_S_MAX, Sessions, cookie_name, session_id_of

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
SESSION: Final = "/v1/session"
_BYTES_MAX: Final = 1024
_decoder = msgspec.json.Decoder(LoginRequest)


class SigningIn:
    """Begins and ends sessions."""

    def __init__(self, clients: Clients, sessions: Sessions, bodies: BodyReader) -> None:
        self._clients = clients
        self._sessions = sessions
        self._bodies = bodies

    async def login(self, request: Request, names: Mapping[str, str]) -> Response:
        """Begin a session of a token that the server takes."""
        body = await self._bodies.read(request.scope, request.receive, _BYTES_MAX)
        token = read_json(body, _decoder).token.strip()
        if parse_token(token) is None:
            raise Problem(401, "unauthenticated", "this is no token of delayserver: it begins with dst_")
        # Raises Unauthenticated for a token that the server does not take.
        state = await self._state(request, token)
        return json_answer(state, headers=_cookie(request, self._sessions.begin(token), int(AGE_S_MAX)))

    async def logout(self, request: Request, names: Mapping[str, str]) -> Response:
        """End the session of the request, if it has one."""
        for cookies in request.headers.getlist("cookie"):
            self._sessions.end(session_id_of(cookies, _host(request)))
        return Response(status_code=204, headers=_cookie(request, "", 0))

    async def session(self, request: Request, names: Mapping[str, str]) -> Response:
        """The caller as the server sees it."""
        return json_answer(await self._state(request, request.scope[TOKEN]))

    async def _state(self, request: Request, token: str) -> SessionState:
        info = await self._clients.who_is(token, request.scope)
        return SessionState(info.needs_token and not info.roles, info.token_id, list(info.roles), list(info.subjects))


def _host(request: Request) -> str:
    return request.headers.get("host", "")


def _cookie(request: Request, value: str, age_s: int) -> dict[str, str]:
    """The header that sets the cookie. No script can read it, and no other site can send it. Behind a proxy that encrypts,
    the browser's `Origin` says that the page came over TLS; the door has compared it with `Host`."""
    encrypted = request.scope.get("scheme") == "https" or request.headers.get("origin", "").startswith("https://")
    secure = "; Secure" if encrypted else ""
    attributes = f"Max-Age={age_s}; HttpOnly; SameSite=Strict; Path=/{secure}"
    return {"set-cookie": f"{cookie_name(_host(request))}={value}; {attributes}"}
