"""`GET /v1/live`: the server's figures as server-sent events, one JSON object a second, made once for all listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.errors import DelayServerError
from delayserver.web.answers import event, event_stream
from delayserver.web.clients import TOKEN, Clients
from delayserver.web.problems import problem_of
from delayserver.web.streams import Streams

PERIOD_S: Final = 1.0

_encode = msgspec.json.Encoder().encode


class Live:
    """Reads the figures while somebody listens. All listeners get the same bytes."""

    def __init__(self, clients: Clients, streams: Streams) -> None:
        self._clients = clients
        self._streams = streams
        self._listeners = 0
        self._wanted = anyio.Event()
        self._arrived = anyio.Event()
        self._latest = b""

    async def run(self) -> None:
        """Read the figures until cancelled."""
        while True:
            await self._wanted.wait()
            self._latest = event(_encode(await self._figures()))
            self._arrived.set()
            self._arrived = anyio.Event()
            await anyio.sleep(PERIOD_S)
            if not self._listeners:
                self._wanted = anyio.Event()

    async def live(self, request: Request, names: Mapping[str, str]) -> Response:
        """The stream of a listener."""
        await self._clients.require_look(request.scope)
        return event_stream(self._events(self._streams.begin(), request.scope))

    async def _events(self, place: Streams.Place, scope: Mapping[str, Any]) -> AsyncIterator[bytes]:
        with place:
            self._listeners += 1
            self._wanted.set()
            try:
                while True:
                    arrived = self._arrived
                    await arrived.wait()
                    if scope.get(TOKEN) and not await self._may_look(scope):
                        return
                    yield self._latest
            finally:
                self._listeners -= 1

    async def _may_look(self, scope: Mapping[str, Any]) -> bool:
        """False from the end of its token on."""
        try:
            await self._clients.require_look(scope)
        except DelayServerError:
            return False
        return True

    async def _figures(self) -> dict[str, Any]:
        client = await self._clients.own()
        try:
            return await client.calls.status()
        except DelayServerError as error:
            return {"problem": problem_of(error).document()}
