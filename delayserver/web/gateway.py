"""The ASGI application: the table of endpoints, and what every request has in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from delayserver.config.settings import HttpSettings
from delayserver.protocol.errors import DelayServerError
from delayserver.web.answers import EVENTS, Send, json_answer, problem_answer
from delayserver.web.bodies import BodyReader, Receive, Scope
from delayserver.web.clients import Clients
from delayserver.web.consuming import Consuming
from delayserver.web.health import Probes
from delayserver.web.live import Live
from delayserver.web.messages import Messages
from delayserver.web.problems import Problem, problem_of
from delayserver.web.queries import LookupQuery
from delayserver.web.router import Answer, Endpoint, Router
from delayserver.web.schemas import (
    AckReply,
    AckRequest,
    Ended,
    Fate,
    Health,
    NackReply,
    NackRequest,
    PullReply,
    PullRequest,
)
from delayserver.web.sending import Sending
from delayserver.web.streams import Streams

CONSOLE: Final = Path(__file__).parent / "console"
MESSAGES: Final = "/v1/messages"
GROUP: Final = "/v1/subjects/{subject}/groups/{group}"


class Gateway:
    """The application. It answers every request, with a problem document if need be."""

    def __init__(self, clients: Clients, settings: HttpSettings) -> None:
        bodies, streams = BodyReader(), Streams(settings.streams_max)
        self._clients = clients
        self._sending = Sending(clients, bodies)
        self.live = Live(clients, streams)
        self._static = StaticFiles(directory=CONSOLE, html=True)
        self.router = Router(self._endpoints(Messages(clients), Consuming(clients, bodies), Probes(clients)))

    def _endpoints(self, messages: Messages, consuming: Consuming, probes: Probes) -> list[Endpoint]:
        receipt = f"{MESSAGES}/{{receipt}}"
        return [
            Endpoint(
                "GET", receipt, messages.get_message, "What became of a message",
                {200: Answer("The fate of the message", Fate)}, query=LookupQuery, errors=(404, 421),
            ),
            Endpoint(
                "DELETE", receipt, messages.cancel_message, "Cancel a message",
                {200: Answer("Whether it was cancelled, or why not", Ended)}, errors=(404, 421),
            ),
            Endpoint(
                "POST", f"{GROUP}/pull", consuming.pull, "Receive messages that are due",
                {200: Answer("The messages", PullReply)}, body=PullRequest,
            ),
            Endpoint(
                "POST", f"{GROUP}/ack", consuming.ack, "Say that deliveries are done",
                {200: Answer("How many ended now", AckReply)}, body=AckRequest,
            ),
            Endpoint(
                "POST", f"{GROUP}/nack", consuming.nack, "Give deliveries back",
                {200: Answer("How many were given back", NackReply)}, body=NackRequest,
            ),
            Endpoint(
                "GET", "/v1/status", self.status, "What the server holds and how late it is",
                {200: Answer("The status map of the server", dict[str, object])},
            ),
            Endpoint(
                "GET", "/v1/live", self.live.live, "The server's figures, once a second",
                {200: Answer("A stream of events; the data of each is a JSON object", media=EVENTS)},
            ),
            Endpoint("GET", "/healthz", probes.healthz, "Does the server answer?", {200: Answer("It does", Health)}),
            Endpoint("GET", "/readyz", probes.readyz, "Does the server serve?", {200: Answer("It does", Health)}),
        ]  # fmt: skip

    async def status(self, request: Request, names: Mapping[str, str]) -> Response:
        """The server's status."""
        client = await self._clients.of_request(request.scope)
        return json_answer(await client.calls.status())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            if scope["path"] == MESSAGES and scope["method"] == "POST":
                await self._sending.send_message(scope, receive, send)
            else:
                await (await self._answer(scope, receive))(dict(scope), receive, send)
        except Problem as problem:
            await problem_answer(problem)(dict(scope), receive, send)
        except DelayServerError as error:
            await problem_answer(problem_of(error))(dict(scope), receive, send)
        except ClientDisconnect:
            pass  # There is nobody to answer.

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """The response of every request but the hottest."""
        found = self.router.find(scope["method"], scope["raw_path"].decode("latin-1"))
        request = Request(dict(scope), receive)
        if found is not None:
            endpoint, names = found
            return await endpoint.handler(request, names)
        try:
            return await self._static.get_response(self._static.get_path(request.scope), request.scope)
        except HTTPException:
            raise Problem(404, "path_unknown", f"nothing is at {scope['path'][:200]}") from None
