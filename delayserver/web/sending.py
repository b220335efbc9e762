"""`POST /v1/messages`: one message."""

from __future__ import annotations

from typing import Final

import msgspec

from delayserver.web.answers import Send, read_json, send_json
from delayserver.web.bodies import BodyReader, Receive, Scope, message_body
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.schemas import SendRequest, Sent
from delayserver.web.timing import due_ms_of

ESCAPED: Final = 6
"""JSON takes up to six bytes for a byte of a text."""
FIELDS_BYTES: Final = 64 * 1024
"""Room for the other fields of a message in JSON, beside its body and properties."""

_decoder = msgspec.json.Decoder(SendRequest)


class Sending:
    """Sends the messages of requests."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies

    async def send_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint. An ASGI application, since it is called most."""
        client = await self._clients.of_request(scope)
        limits = client.calls.limits
        bytes_max = ESCAPED * (limits.body_bytes_max + limits.properties_bytes_max) + FIELDS_BYTES
        body = await self._bodies.read(scope, receive, bytes_max)
        await send_json(send, 201, await self._send(client, read_json(body, _decoder)))

    async def _send(self, client: TokenClient, request: SendRequest) -> Sent:
        handle = await client.sends.send(
            message_body(request.body, request.body_base64),
            request.subject,
            due_ms=await due_ms_of(request, client.calls),
            message_id=request.message_id,
            properties=request.properties,
            expires_ms=request.expires_ms,
            tag=request.tag,
            order_key=request.order_key,
        )
        return Sent(*await handle)
