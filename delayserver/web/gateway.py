"""The ASGI application: the table of endpoints, and what every request has in common."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from delayserver import __version__
from delayserver.client.calls.behalf import CLIENT_ADDRESS
from delayserver.client.calls.policy_calls import GroupPolicy
from delayserver.config.settings import HttpSettings
from delayserver.logs.events import EventLogger
from delayserver.metrics.http_figures import HttpFigures
from delayserver.protocol.errors import DelayServerError, NotPrimary
from delayserver.protocol.figure_fields import reply_type
from delayserver.protocol.figures import ServerStatus
from delayserver.protocol.schema.dead_letters import DropResult
from delayserver.protocol.schema.fates import CancelResult
from delayserver.protocol.schema.groups import ConsumerGroup, Sought
from delayserver.protocol.schema.reload import Changes
from delayserver.protocol.schema.transactions import Ended, OpenTransactionsPage
from delayserver.protocol.schema.waiting_keys import RetryKeysResult, SkipResult
from delayserver.web.answers import EVENTS, JSON, Send, json_answer, problem_answer, read_query
from delayserver.web.bodies import NDJSON, BodyReader, Receive, Scope
from delayserver.web.clients import Clients, at_shard
from delayserver.web.cloud_events import STRUCTURED
from delayserver.web.cluster_view import ClusterView
from delayserver.web.group_acts import GroupActs
from delayserver.web.health import Probes
from delayserver.web.http_consuming import HttpConsuming
from delayserver.web.http_finding import FindQuery, FindReply, HttpFinding
from delayserver.web.http_sending import HttpSending
from delayserver.web.live import Live
from delayserver.web.message_endpoints import Messages
from delayserver.web.openapi import openapi_document
from delayserver.web.origins import DELIBERATE
from delayserver.web.pages import Pages
from delayserver.web.problems import Problem, invalid, problem_of, redirect_of
from delayserver.web.queries import (
    GroupsQuery,
    KeyQuery,
    LettersQuery,
    LookupQuery,
    PendingQuery,
    ReadQuery,
    ReadyQuery,
    SendQuery,
    ShardQuery,
    TransactionsQuery,
    WaitingKeysQuery,
)
from delayserver.web.router import Endpoint, EndpointAnswer, Router
from delayserver.web.schemas import (
    AckReply,
    AckRequest,
    ChosenLetters,
    ClusterShown,
    CommitRequest,
    DeliveriesRequest,
    ExtendReply,
    ExtendRequest,
    Fate,
    Groups,
    Health,
    Letters,
    LoginRequest,
    Moved,
    MoveRequest,
    NackReply,
    NackRequest,
    Pending,
    PolicyChange,
    PrepareRequest,
    Published,
    PublishRequest,
    PullReply,
    PullRequest,
    ReadReply,
    ResendRequest,
    Resent,
    RetryRequest,
    RowProblem,
    Seek,
    SendRequest,
    Sent,
    SessionState,
    SkipRequest,
    WaitingKeysShown,
)
from delayserver.web.scraping import ROUTE, Scraping
from delayserver.web.sessions import Sessions
from delayserver.web.signing_in import LOGIN, LOGOUT, SESSION, SigningIn
from delayserver.web.streams import AT_END, Streams
from delayserver.web.token_routes import NOT_HERE
from delayserver.web.transacting import Transacting

events = EventLogger()

MESSAGES: Final = "/v1/messages"
BY_ID: Final = "/v1/subjects/{subject}/messages/{message_id}"
KEY_HEADER: Final = {
    "Idempotency-Key": "The message id. With a delay, a retry is due when the first try was. Not for a list or lines."
}
PUBLISH_KEY_HEADER: Final = {
    "Idempotency-Key": "The message id, by which consumers recognise it. A repeated publish stores a second message."
}
DELIBERATE_HEADER: Final = {
    DELIBERATE: (
        "Any text, which no link or form of another page can send. `Authorization` does as well, and so does a browser that "
        "says that a page of this gateway asks."
    )
}
GROUP: Final = "/v1/subjects/{subject}/groups/{group}"

STATUS: Final = reply_type(ServerStatus, "Status")


class Gateway:
    """The application. It answers every request, with a problem document if need be."""

    def __init__(self, clients: Clients, sessions: Sessions, settings: HttpSettings, figures: HttpFigures) -> None:
        bodies, streams = BodyReader(), Streams(settings.streams_max)
        self._clients = clients
        self._sending = HttpSending(clients, bodies)
        self.live = Live(clients, streams)
        self._scraping = Scraping(clients, figures)
        self._pages = Pages()
        self.router = Router(
            [
                *self._endpoints(Messages(clients, bodies), HttpConsuming(clients, bodies, streams), Probes(clients)),
                *_of_sessions(SigningIn(clients, sessions, bodies)),
                *_of_groups(GroupActs(clients, bodies)),
                *_of_transactions(Transacting(clients, bodies)),
            ]
        )

    def _endpoints(self, messages: Messages, consuming: HttpConsuming, probes: Probes) -> list[Endpoint]:
        receipt = f"{MESSAGES}/{{receipt}}"
        fate, ended, moved = (
            EndpointAnswer("The fate of the message", Fate),
            EndpointAnswer("Cancelled, now or before", CancelResult),
            EndpointAnswer("Moved", Moved),
        )
        groups = EndpointAnswer("The groups with their lag", Groups)
        stream = EndpointAnswer("A stream of events; the data of each is a message as a pull gives it", media=EVENTS)
        return [
            Endpoint(
                "POST", MESSAGES, None, "Send messages, due later",
                {
                    201: EndpointAnswer("The message is on disk", Sent),
                    200: EndpointAnswer("A result or a problem for each row of a list or of lines", rows=(Sent, RowProblem)),
                },
                body=SendRequest | list[SendRequest], query=SendQuery, errors=(409, 413, 421, 422, 507), headers=KEY_HEADER,
                medias=(JSON, NDJSON, STRUCTURED), direct=self._sending.send_message,
            ),
            Endpoint("GET", receipt, messages.get_message, "What became of a message", {200: fate}, query=LookupQuery,
                     errors=(404, 421)),
            Endpoint("DELETE", receipt, messages.cancel_message, "Cancel a message", {200: ended}, errors=(404, 409, 421)),
            Endpoint("PATCH", receipt, messages.move_message, "Give a message another due time", {200: moved},
                     body=MoveRequest, errors=(404, 409, 413, 421, 422, 507)),
            Endpoint("GET", MESSAGES, messages.get_message_by_key, "What became of a message, by its id", {200: fate},
                     query=KeyQuery, errors=(404,)),
            Endpoint("DELETE", MESSAGES, messages.cancel_message_by_key, "Cancel a message, by its id", {200: ended},
                     query=KeyQuery, errors=(404, 409)),
            Endpoint("PATCH", MESSAGES, messages.move_message_by_key, "Give a message another due time, by its id",
                     {200: moved}, body=MoveRequest, query=KeyQuery, errors=(404, 409, 413, 422, 507)),
            Endpoint("GET", BY_ID, messages.get_message_by_id, "What became of the message with an id",
                     {200: fate}, query=LookupQuery, errors=(404,)),
            Endpoint("DELETE", BY_ID, messages.cancel_message_by_id, "Cancel the message with an id", {200: ended},
                     errors=(404, 409)),
            Endpoint("PATCH", BY_ID, messages.move_message_by_id, "Give the message with an id another due time",
                     {200: moved}, body=MoveRequest, errors=(404, 409, 413, 422, 507)),
            Endpoint("POST", "/v1/subjects/{subject}/publish", consuming.publish, "Store a message for consumers now",
                     {
                         201: EndpointAnswer("The message is on disk", Published),
                         200: EndpointAnswer("A result or a problem for each row of a list", rows=(Published, RowProblem)),
                     },
                     body=PublishRequest | list[PublishRequest], errors=(413, 421, 507), headers=PUBLISH_KEY_HEADER),
            Endpoint("POST", f"{GROUP}/pull", consuming.pull, "Receive messages that are due",
                     {200: EndpointAnswer("The messages", PullReply)}, body=PullRequest, errors=(409, 413, 421, 507)),
            Endpoint("POST", f"{GROUP}/ack", consuming.ack, "Say that deliveries are done",
                     {200: EndpointAnswer("How many ended now", AckReply)}, body=AckRequest, errors=(409, 413)),
            Endpoint("POST", f"{GROUP}/nack", consuming.nack, "Give deliveries back",
                     {200: EndpointAnswer("How many were given back", NackReply)}, body=NackRequest, errors=(409, 413)),
            Endpoint("POST", f"{GROUP}/deliveries", consuming.deliveries, "Receive messages as they become due",
                     {200: stream}, body=DeliveriesRequest, errors=(409, 413, 421, 507)),
            Endpoint("GET", f"{GROUP}/deliveries", consuming.deliveries_for_event_source,
                     "Receive messages as they become due, for clients that can only ask with GET", {200: stream},
                     query=DeliveriesRequest, errors=(409, 421, 507), headers=DELIBERATE_HEADER),
            Endpoint("POST", f"{GROUP}/extend", consuming.extend, "Let leases go on",
                     {200: EndpointAnswer("How many go on", ExtendReply)}, body=ExtendRequest, errors=(409, 413, 421)),
            Endpoint("GET", "/v1/groups", consuming.groups, "Consumer groups", {200: groups}, query=GroupsQuery),
            Endpoint("GET", "/v1/subjects/{subject}/groups", consuming.groups_of_subject, "Consumer groups of a subject",
                     {200: groups}, errors=(421,)),
            Endpoint("GET", "/v1/pending", self.pending, "How many messages are pending, by due time or subject",
                     {200: EndpointAnswer("Times and subjects without any are left out", Pending)}, query=PendingQuery),
            Endpoint("GET", "/v1/find", HttpFinding(self._clients).find, "Messages that the node stores",
                     {200: EndpointAnswer("The messages", FindReply)}, query=FindQuery),
            Endpoint("GET", "/openapi.json", self.openapi, "This document",
                     {200: EndpointAnswer("OpenAPI 3.1", dict[str, Any])}),
            Endpoint("GET", "/v1/status", self.status, "What the server holds and how late it is",
                     {200: EndpointAnswer("The status map of the server", STATUS)}, query=ShardQuery),
            Endpoint("GET", "/v1/cluster", ClusterView(self._clients).cluster, "The shards and members of the cluster",
                     {200: EndpointAnswer("The map, and what each member says of itself now", ClusterShown)}),
            Endpoint("GET", "/v1/live", self.live.live, "The server's figures, once a second",
                     {200: EndpointAnswer("A stream of events `past`, `live` and `coming`, whose data is JSON",
                                          media=EVENTS)}),
            Endpoint("GET", "/metrics", self._scraping.metrics, "The figures of server and gateway for Prometheus",
                     {200: EndpointAnswer("The text format of Prometheus, or OpenMetrics if Accept names it",
                                          media="text/plain")}),
            Endpoint("GET", "/healthz", probes.healthz, "Does the server answer?", {200: EndpointAnswer("It does", Health)}),
            Endpoint("GET", "/readyz", probes.readyz, "Does the server serve, or follow as a standby?",
                     {200: EndpointAnswer("It does", Health)}, query=ReadyQuery),
        ]  # fmt: skip

    async def openapi(self, request: Request, names: Mapping[str, str]) -> Response:
        """The document of the API."""
        return json_answer(openapi_document(self.router.endpoints, __version__))

    async def pending(self, request: Request, names: Mapping[str, str]) -> Response:
        """How many messages are pending, from counters of the server."""
        query = read_query(request.query_params.multi_items(), PendingQuery)
        calls = await at_shard((await self._clients.of_request(request.scope)).calls, query.shard)
        if query.by == "subject":
            if query.from_ms is not None or query.to_ms is not None:
                raise invalid("by=subject counts all times together: leave from and to out")
            subjects = await calls.pending_by_subject()
            return json_answer(Pending(subjects=subjects))
        buckets = await calls.pending(query.by, from_ms=query.from_ms, to_ms=query.to_ms)
        return json_answer(Pending(buckets))

    async def status(self, request: Request, names: Mapping[str, str]) -> Response:
        """The server's status."""
        query = read_query(request.query_params.multi_items(), ShardQuery)
        calls = await at_shard((await self._clients.of_request(request.scope)).calls, query.shard)
        return json_answer(await calls.status())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        CLIENT_ADDRESS.set(scope["client"][0] if scope["client"] else "")
        with self._clients.request(scope):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = self.router.find(scope["method"], scope["raw_path"].decode("latin-1"))
            if found is not None:
                scope[ROUTE] = found[0].path
            if found is not None and found[0].direct is not None:
                await found[0].direct(scope, receive, send)
                return
            # A copy: Starlette writes into it.
            own = dict(scope)
            with ExitStack() as at_end:
                own[AT_END] = at_end
                response = await self._response(found, own, receive)
                await response(own, receive, send)
        except Problem as problem:
            await problem_answer(problem)(dict(scope), receive, send)
        except NotPrimary as error:
            query = scope["query_string"].decode("latin-1")
            path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
            await problem_answer(redirect_of(error, path))(dict(scope), receive, send)
        except DelayServerError as error:
            await problem_answer(problem_of(error))(dict(scope), receive, send)
        except ClientDisconnect:
            pass  # There is no client to answer.
        # A bug must not take the form that a library gives it.
        except Exception as error:  # noqa: BLE001
            events.error("http_request_failed", "a request of HTTP met a bug: {path}", error, path=scope["path"][:200])
            bug = Problem(500, "internal_error", "the gateway has a bug; its log says more")
            await problem_answer(bug)(dict(scope), receive, send)

    async def _response(
        self, found: tuple[Endpoint, dict[str, str]] | None, scope: dict[str, Any], receive: Receive
    ) -> Response:
        if found is not None and found[0].handler is not None:
            try:
                return await found[0].handler(Request(scope, receive), found[1])
            except (Problem, DelayServerError) as error:
                name = error.error if isinstance(error, Problem) else error.name
                if name in NOT_HERE and "subject" in found[1]:
                    client = await self._clients.of_request(scope)
                    await client.routes.require_here(found[1]["subject"])
                raise
        page = self._pages.find(scope["method"], scope["path"], Headers(scope=scope))
        if page is None:
            raise Problem(404, "path_unknown", f"nothing is at {scope['path'][:200]}")
        return page


def _of_sessions(signing_in: SigningIn) -> list[Endpoint]:
    state = EndpointAnswer("The caller as the server sees it", SessionState)
    return [
        Endpoint("POST", LOGIN, signing_in.login, "Begin a session of the console, kept by a cookie",
                 {200: state}, body=LoginRequest, errors=(413,)),
        Endpoint("POST", LOGOUT, signing_in.logout, "End the session",
                 {204: EndpointAnswer("The session has ended; the cookie is taken back", media="")}),
        Endpoint("GET", SESSION, signing_in.session, "Who the caller is, and whether the server asks for a token",
                 {200: state}),
    ]  # fmt: skip


def _of_groups(acts: GroupActs) -> list[Endpoint]:
    letters, waiting = f"{GROUP}/dead-letters", f"{GROUP}/waiting-keys"
    policy = EndpointAnswer("The policy", GroupPolicy)
    return [
        Endpoint("GET", GROUP, acts.group, "One consumer group", {200: EndpointAnswer("Its progress", ConsumerGroup)},
                 errors=(404, 421)),
        Endpoint("DELETE", GROUP, acts.remove, "Forget a consumer group",
                 {204: EndpointAnswer("It is forgotten; a later pull makes a new one", media="")}, errors=(404, 421)),
        Endpoint("POST", f"{GROUP}/seek", acts.seek, "Let a consumer group go on at another position",
                 {200: EndpointAnswer("Where it goes on", Sought)}, body=Seek, errors=(404, 413, 421)),
        Endpoint("GET", f"{GROUP}/policy", acts.policy, "How a consumer group is served", {200: policy},
                 errors=(421,)),
        Endpoint("PATCH", f"{GROUP}/policy", acts.set_policy, "Change how a consumer group is served", {200: policy},
                 body=PolicyChange, errors=(409, 413, 421, 507)),
        Endpoint("GET", letters, acts.dead_letters, "Messages that a consumer group gave up",
                 {200: EndpointAnswer("The letters, oldest first", Letters)}, query=LettersQuery, errors=(404, 421)),
        Endpoint("POST", f"{letters}/resend", acts.resend, "Send dead letters to their consumer group again",
                 {200: EndpointAnswer("How many were sent", Resent)}, body=ResendRequest, errors=(404, 413, 421, 507)),
        Endpoint("POST", f"{letters}/drop", acts.drop, "Remove dead letters for good",
                 {200: EndpointAnswer("How many were removed", DropResult)}, body=ChosenLetters, errors=(404, 413, 421)),
        Endpoint("GET", waiting, acts.waiting_keys, "Order keys that wait for a message that has failed",
                 {200: EndpointAnswer("The keys, and their messages", WaitingKeysShown)}, query=WaitingKeysQuery,
                 errors=(404, 421)),
        Endpoint("POST", f"{waiting}/skip", acts.skip, "Make dead letters of these messages, so that their keys go on",
                 {200: EndpointAnswer("How many were skipped", SkipResult)},
                 body=SkipRequest, errors=(404, 409, 413, 421, 507)),
        Endpoint("POST", f"{waiting}/retry", acts.retry, "End the pauses of these messages",
                 {200: EndpointAnswer("How many consumers get at once", RetryKeysResult)}, body=RetryRequest,
                 errors=(404, 413, 421)),
        Endpoint("GET", "/v1/subjects/{subject}/messages", acts.read, "Read stored messages without a consumer group",
                 {200: EndpointAnswer("Messages from the position on", ReadReply)}, query=ReadQuery, errors=(416, 421)),
    ]  # fmt: skip


def _of_transactions(transacting: Transacting) -> list[Endpoint]:
    ended = EndpointAnswer("How it ended", Ended)
    return [
        Endpoint("POST", "/v1/transactions", transacting.prepare, "Prepare a message that no consumer sees yet",
                 {201: EndpointAnswer("The message is on disk", Sent)}, body=PrepareRequest, errors=(413, 421, 422, 507)),
        Endpoint("GET", "/v1/transactions", transacting.listed, "Transactions that are not ended",
                 {200: EndpointAnswer("Some of them, and from where to ask for more", OpenTransactionsPage)},
                 query=TransactionsQuery, errors=(421,)),
        Endpoint("POST", "/v1/transactions/{receipt}/commit", transacting.commit, "Make a prepared message visible",
                 {200: ended}, body=CommitRequest, errors=(404, 409, 413, 421, 422, 507)),
        Endpoint("POST", "/v1/transactions/{receipt}/rollback", transacting.rollback, "End a prepared message",
                 {200: ended}, errors=(404, 409, 421, 507)),
        Endpoint("POST", "/v1/reload", transacting.reload, "Have the server read its configuration again",
                 {200: EndpointAnswer("What has changed", Changes)}, errors=(409,)),
    ]  # fmt: skip
