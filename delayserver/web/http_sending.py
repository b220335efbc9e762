"""`POST /v1/messages`: one message, a list, lines, or a CloudEvent."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

import anyio
import msgspec

from delayserver.client.values.messages import Message
from delayserver.web.answers import Send, read_json, read_query, send_json
from delayserver.web.bodies import (
    LINES,
    LINES_TYPES,
    LIST_BYTES_MAX,
    BodyReader,
    Receive,
    Scope,
    content_type,
    message_body,
    message_bytes_max,
    too_large,
)
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.cloud_events import STRUCTURED, from_binary, from_structured, is_binary
from delayserver.web.due_times import due_ms_of
from delayserver.web.idempotency import idempotency_key, message_id_of, refuse_key
from delayserver.web.problems import Problem, invalid
from delayserver.web.queries import SendQuery
from delayserver.web.request_rows import RequestRows, read_list, sent_document
from delayserver.web.row_lines import LineAnswer, LineReader
from delayserver.web.schemas import SendRequest, Sent
from delayserver.web.trace_context import trace_of, with_trace

_decoder = msgspec.json.Decoder(SendRequest)
_NO_QUERY = SendQuery()


class HttpSending:
    """Sends the messages of requests."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies
        self._turn = anyio.Lock()

    async def send_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint. An ASGI application, since it is called most."""
        client = await self._clients.of_request(scope)
        bytes_max = message_bytes_max(client.calls.limits)
        query = _query(scope)
        kind = content_type(scope)
        if kind in LINES_TYPES:
            refuse_key(scope)
            scope[LINES] = True
            with self._bodies.holding(scope) as holding:
                reader = LineReader(receive, bytes_max, holding, self._turn)
                await LineAnswer(client, reader, query).run(send)
            return
        body = await self._bodies.read(scope, receive, max(bytes_max, LIST_BYTES_MAX))
        is_list = kind != STRUCTURED and not is_binary(scope) and body.lstrip()[:1] == b"["
        if len(body) > bytes_max and not is_list:
            raise too_large(bytes_max)
        if kind == STRUCTURED:
            event, data = from_structured(body, query)
            await send_json(send, 201, await self._send(client, scope, event, data))
        elif is_binary(scope):
            event, data = from_binary(scope, body, query)
            await send_json(send, 201, await self._send(client, scope, event, data))
        elif is_list:
            refuse_key(scope)
            await send_json(send, 200, await _send_list(client, body, trace_of(scope)))
        else:
            request = read_json(body, _decoder)
            data_or_text = message_body(request.body, request.body_base64)
            await send_json(send, 201, await self._send(client, scope, request, data_or_text))

    async def _send(self, client: TokenClient, scope: Scope, request: SendRequest, body: bytes | str) -> Sent:
        due_ms = await due_ms_of(request, client.calls)
        key = idempotency_key(scope)
        message_id = request.message_id if is_event(scope) else message_id_of(key, request.message_id)
        if key is None:
            return await self._send_due(client, scope, request, body, message_id, due_ms)
        if not -(2**63) <= due_ms < 2**63:
            raise invalid("the due time is beyond 63 bits")
        with client.first_tries.due_ms(key, request, body, due_ms) as first_ms:
            return await self._send_due(client, scope, request, body, message_id, first_ms)

    async def _send_due(
        self,
        client: TokenClient,
        scope: Scope,
        request: SendRequest,
        body: bytes | str,
        message_id: str | None,
        due_ms: int,
    ) -> Sent:
        message = Message(
            request.subject,
            body,
            due_ms,
            message_id=message_id,
            properties=with_trace(trace_of(scope), request.properties),
            expires_ms=request.expires_ms,
            tag=request.tag,
            order_key=request.order_key,
        )
        sent = sent_document(await client.sends.send(message))
        if isinstance(sent, Problem):
            raise sent
        return sent


def is_event(scope: Scope) -> bool:
    """Whether a request is a CloudEvent, whose id is its message id in any case."""
    return content_type(scope) == STRUCTURED or is_binary(scope)


def _query(scope: Scope) -> SendQuery:
    text = scope["query_string"]
    if not text:
        return _NO_QUERY
    return read_query(parse_qsl(text.decode("latin-1"), keep_blank_values=True), SendQuery)


async def _send_list(client: TokenClient, body: bytes, trace: Mapping[str, str]) -> list[object]:
    rows = read_list(body, client.calls.limits.batch_messages_max)
    sending = RequestRows(0, trace)
    await sending.prepare(client, rows)
    return [*await sending.send(client)]
