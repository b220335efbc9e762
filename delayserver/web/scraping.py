"""`GET /metrics`: the figures of the server and of the gateway, in the formats of Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

import anyio
from anyio import CapacityLimiter, to_thread
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from delayserver.logs.events import EventLogger
from delayserver.metrics.exposition import OPENMETRICS, exposition
from delayserver.metrics.http_figures import OTHER, HttpFigures
from delayserver.protocol.errors import DelayServerError, NotReady, Refused
from delayserver.web.answers import Send
from delayserver.web.bodies import Receive, Scope
from delayserver.web.clients import Clients

ANSWER_S: Final = 8.0
"""Prometheus gives up after 10 s. A server that has not answered by then is down for this scrape."""
AGAIN_S: Final = 0.25
"""Scrapes within this time get the same bytes, so that many of them cost no more than four a second."""
ROUTE: Final = "delayserver.route"
"""In the scope, the template of the request's path."""
STATUS: Final = "delayserver.status"
"""In the scope, the status code of the answer. 0: the client went away before it had one."""


class Scraping:
    """Answers scrapes. All who may have the figures get the same bytes."""

    def __init__(self, clients: Clients, figures: HttpFigures) -> None:
        self._clients = clients
        self._figures = figures
        self._lock = anyio.Lock()
        # By format: when the last scrape was made, its bytes and their content type.
        self._made: dict[bool, tuple[float, bytes, str]] = {}
        # Writing takes some ten milliseconds with a thousand subjects: one at a time, beside the event loop.
        self._writing = CapacityLimiter(1)

    async def metrics(self, request: Request, names: Mapping[str, str]) -> Response:
        """The figures of now. Raises Unauthenticated, Forbidden."""
        accept = request.headers.get("accept", "")
        try:
            with anyio.fail_after(ANSWER_S):
                await self._clients.require_look(request.scope)
        except Refused:
            raise
        except (DelayServerError, TimeoutError) as error:
            # The server cannot say who may see more than this.
            reply = {"ready": False} if isinstance(error, NotReady) else None
            return _answer(*exposition(reply, CollectorRegistry(), accept))
        async with self._lock:
            at_s, body, content_type = self._made.get(OPENMETRICS in accept, (-AGAIN_S, b"", ""))
            if anyio.current_time() - at_s >= AGAIN_S:
                figures = await self._read()
                registry = self._figures.registry
                body, content_type = await to_thread.run_sync(
                    exposition, figures, registry, accept, limiter=self._writing
                )
                self._made[OPENMETRICS in accept] = anyio.current_time(), body, content_type
        return _answer(body, content_type)

    async def _read(self) -> Mapping[str, Any] | None:
        """The reply of the server; None: it is down."""
        client = await self._clients.own()
        try:
            with anyio.fail_after(ANSWER_S):
                return await client.calls.metrics()
        except NotReady:
            return {"ready": False}
        except (DelayServerError, TimeoutError):
            return None


def _answer(body: bytes, content_type: str) -> Response:
    return Response(body, headers={"cache-control": "no-store"}, media_type=content_type)


events = EventLogger("delayserver.http")

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def measured(application: Application, figures: HttpFigures) -> Application:
    """The application, whose requests are counted, and whose bugs are logged. It notes `ROUTE` and `STATUS`."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        begin_s = perf_counter()
        scope[ROUTE], scope[STATUS] = OTHER, 0
        figures.begin()
        try:
            await application(scope, receive, send)
        except Exception as error:
            route = scope[ROUTE]
            events.error("http_bug", "bug while answering {method} {route}", error, method=scope["method"], route=route)
            raise
        finally:
            figures.end(scope["method"], scope[ROUTE], scope[STATUS], perf_counter() - begin_s)

    return run
