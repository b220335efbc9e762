"""Endpoints of transactions: a message that no consumer sees until it is committed. And `reload`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.errors import Forbidden
from delayserver.protocol.schema.reload import Changes
from delayserver.web.answers import json_answer, read_json, read_query
from delayserver.web.bodies import BodyReader, message_body, message_bytes_max
from delayserver.web.clients import Clients, at_shard
from delayserver.web.due_times import due_ms_of, has_due
from delayserver.web.http_consuming import REQUEST_BYTES_MAX
from delayserver.web.queries import TransactionsQuery
from delayserver.web.schemas import (
    CommitRequest,
    PrepareRequest,
    Sent,
)
from delayserver.web.trace_context import trace_of, with_trace

_prepare_decoder = msgspec.json.Decoder(PrepareRequest)
_commit_decoder = msgspec.json.Decoder(CommitRequest)


class Transacting:
    """Prepares messages, lists open transactions and ends them."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies

    async def prepare(self, request: Request, names: Mapping[str, str]) -> Response:
        """Store a message that no consumer sees yet."""
        client = await self._clients.of_request(request.scope)
        body = await self._bodies.read(request.scope, request.receive, message_bytes_max(client.calls.limits))
        asked = read_json(body, _prepare_decoder)
        prepared = await client.calls.prepare(
            asked.subject,
            message_body(asked.body, asked.body_base64),
            group=asked.group,
            due_ms=await due_ms_of(asked, client.calls) if has_due(asked) else None,
            message_id=asked.message_id,
            properties=with_trace(trace_of(request.scope), asked.properties),
            expires_ms=asked.expires_ms,
            tag=asked.tag,
            order_key=asked.order_key,
            check_after=None if asked.check_after_ms is None else timedelta(milliseconds=asked.check_after_ms),
            checks_max=asked.checks_max,
            policy=asked.policy,
        )
        return json_answer(Sent(*prepared[:5]), 201)

    async def listed(self, request: Request, names: Mapping[str, str]) -> Response:
        """A page of the open transactions."""
        query = read_query(request.query_params.multi_items(), TransactionsQuery)
        client = await self._clients.of_request(request.scope)
        calls = await at_shard(client.calls, query.shard)
        return json_answer(await calls.transactions_page(query.after, query.max))

    async def commit(self, request: Request, names: Mapping[str, str]) -> Response:
        """Make the message visible. Again for a committed transaction it gives the same answer."""
        client = await self._clients.of_request(request.scope)
        body = await self._bodies.read(request.scope, request.receive, REQUEST_BYTES_MAX)
        asked = read_json(body or b"{}", _commit_decoder)
        due_ms = await due_ms_of(asked, client.calls) if has_due(asked) else None
        return json_answer(await client.calls.commit(names["receipt"], due_ms=due_ms))

    async def rollback(self, request: Request, names: Mapping[str, str]) -> Response:
        """End the transaction, so that no consumer gets its message."""
        client = await self._clients.of_request(request.scope)
        return json_answer(await client.calls.rollback(names["receipt"]))

    async def reload(self, request: Request, names: Mapping[str, str]) -> Response:
        """Have the server read its configuration again."""
        client = await self._clients.of_request(request.scope)
        # A server without tokens takes the gateway for its operator, since both run on one machine.
        if not (await client.calls.hello()).needs_token and not _is_near(request):
            raise Forbidden("a server without tokens is reloaded from its own machine alone")
        return json_answer(Changes(await client.calls.reload()))


def _is_near(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
