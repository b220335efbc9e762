"""`GET /v1/find`: messages that a node stores, by their id, by a key, or by subject and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from delayserver.client.calls.find_calls import FoundMessage
from delayserver.web.answers import json_answer, read_query
from delayserver.web.bodies import BodyForm, shown_body
from delayserver.web.clients import Clients


class FindQuery(Struct, forbid_unknown_fields=True):
    """One of `message_id`, `key` and `subject`. `from_ms` and `to_ms`: when the message was handed to the node. `max`: how
    many messages at most. `body_as`: how bodies are written.
    """

    message_id: str | None = None
    key: str | None = None
    subject: str | None = None
    from_ms: Annotated[int, Meta(ge=0, le=2**52)] | None = None
    to_ms: Annotated[int, Meta(ge=0, le=2**52)] | None = None
    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    body_as: BodyForm = "auto"


class Found(Struct, omit_defaults=True):
    """One stored message. `position` is its number in the queue of its subject."""

    receipt: str
    message_id: str
    subject: str
    position: int
    sequence: int
    server_id: str
    due_ms: int
    accepted_us: int
    dispatched_us: int
    body: Any
    body_encoding: Literal["text", "json", "base64"]
    properties: dict[str, str] = {}
    expires_ms: int = 0
    tag: str | None = None
    order_key: str | None = None


class FindReply(Struct):
    """The messages, in the order in which the node stored them."""

    messages: list[Found]


class HttpFinding:
    """Searches the broker of the server."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def find(self, request: Request, names: Mapping[str, str]) -> Response:
        """A message that is not due yet is not found: it has not been handed over."""
        query = read_query(request.query_params.multi_items(), FindQuery)
        client = await self._clients.of_request(request.scope)
        found = await client.calls.find(
            query.message_id,
            key=query.key,
            subject=query.subject,
            from_ms=query.from_ms,
            to_ms=query.to_ms,
            max_messages=query.max,
        )
        return json_answer(FindReply([_row(message, query.body_as) for message in found]))


def _row(message: FoundMessage, form: BodyForm) -> Found:
    body, encoding = shown_body(message.body, form)
    return Found(
        receipt=message.receipt,
        message_id=message.message_id,
        subject=message.subject,
        position=message.position,
        sequence=message.sequence,
        server_id=message.server_id,
        due_ms=message.due_ms,
        accepted_us=message.accepted_us,
        dispatched_us=message.dispatched_us,
        body=body,
        body_encoding=encoding,
        properties=message.properties,
        expires_ms=message.expires_ms,
        tag=message.tag,
        order_key=message.order_key,
    )
