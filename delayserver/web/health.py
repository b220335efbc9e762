"""`/healthz` and `/readyz`: for those who start, stop and route."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.errors import NotPrimary, NotReady, RequestTimedOut
from delayserver.web.answers import json_answer, read_query
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.queries import ReadyQuery
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
        """The server serves all operations, or follows as a standby that knows its primary."""
        query = read_query(request.query_params.multi_items(), ReadyQuery)
        client = await self._clients.own()
        with anyio.move_on_after(ANSWER_S):
            status = await client.calls.status()
            if not status["ready"]:
                if query.role == "any" and await self._follows(client):
                    return json_answer(Health("follows"))
                raise NotReady(str(status.get("waits_for") or "the server is not ready"), retry_after_ms=1000)
            return json_answer(Health("ready"))
        raise RequestTimedOut(f"the server did not answer within {ANSWER_S:g} s")

    async def _follows(self, client: TokenClient) -> bool:
        """Whether the server is a standby. It says so to any request for the primary."""
        try:
            await client.calls.route(subject="readyz")
        except NotPrimary as error:
            return bool(error.primary)
        except NotReady:
            pass
        return False
