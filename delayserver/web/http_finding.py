"""`GET /v1/find`: messages that a node stores, by their id, by a key, or by subject and time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.schema.stored import FoundMessage, FromMs, Key, ToMs
from delayserver.web.answers import json_answer, read_query
from delayserver.web.bodies import BodyForm, shown_body
from delayserver.web.clients import Clients, at_shard
from delayserver.web.queries import ShardQuery
from delayserver.web.schemas import Stored


class FindQuery(ShardQuery, kw_only=True, forbid_unknown_fields=True):
    """One of `message_id`, `key` and `subject`. `from_ms` and `to_ms`: when the message was handed to the node. `max`: how
    many messages at most. `body_as`: how bodies are written.
    """

    message_id: str | None = None
    key: Key | None = None
    subject: str | None = None
    from_ms: FromMs | None = None
    to_ms: ToMs | None = None
    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    body_as: BodyForm = "auto"


class Found(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """One stored message. `position` is its number in the queue of its subject."""

    receipt: str


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
        found = await (await at_shard(client.calls, query.shard)).find(
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
    return Found(**asdict(message) | {"body": body}, body_encoding=encoding, receipt=message.receipt)
