"""`/healthz` and `/readyz`: for those who start, stop and route."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.errors import NotReady, RequestTimedOut
from delayserver.web.answers import json_answer
from delayserver.web.clients import Clients
from delayserver.web.schemas import Health

ANSWER_S: Final = 5.0
"""A server that does not answer a probe within this time is not well."""


class Probes:
    """Asks the server how it is."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def healthz(self, request: Request, names: Mapping[str, str]) -> Response:
        """The server answers. It may still be starting: who ends it then would have it begin anew."""
        client = await self._clients.own()
        with anyio.move_on_after(ANSWER_S):
            with suppress(NotReady):  # From the first moment of its start it answers, with the reason.
                await client.calls.ping()
            return json_answer(Health("ok"))
        raise RequestTimedOut(f"the server did not answer within {ANSWER_S:g} s")

    async def readyz(self, request: Request, names: Mapping[str, str]) -> Response:
        """The server serves all operations."""
        client = await self._clients.own()
        with anyio.move_on_after(ANSWER_S):
            status = await client.calls.status()
            if not status["ready"]:
                raise NotReady(str(status.get("waits_for") or "the server is not ready"), retry_after_ms=1000)
            return json_answer(Health("ready"))
        raise RequestTimedOut(f"the server did not answer within {ANSWER_S:g} s")
