"""Endpoints about one message that was sent: what became of it, its cancel, and another due time.

A message is named by its receipt in the path, by subject and message id in the path, or by these and its due time in the
query.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from delayserver.client.calls.message_calls import Target
from delayserver.client.values.messages import MessageKey
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.schema.fates import CancelResult, LookupResult, RescheduleResult
from delayserver.web.answers import json_answer, problem_answer, read_json, read_query
from delayserver.web.bodies import BodyForm, BodyReader, message_body, message_bytes_max, shown_body
from delayserver.web.clients import Clients
from delayserver.web.due_times import due_ms_of
from delayserver.web.problems import Problem, ended_before
from delayserver.web.queries import KeyQuery, LookupQuery
from delayserver.web.schemas import Fate, Moved, MoveRequest

_move_decoder = msgspec.json.Decoder(MoveRequest)


class Messages:
    """Looks messages up, cancels and moves them."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies

    async def get_message(self, request: Request, names: Mapping[str, str]) -> Response:
        """The fate of a message, with its body."""
        query = read_query(request.query_params.multi_items(), LookupQuery)
        return await self._look_up(request, names["receipt"], query)

    async def get_message_by_key(self, request: Request, names: Mapping[str, str]) -> Response:
        """What became of a message, with its body."""
        query = read_query(request.query_params.multi_items(), KeyQuery)
        return await self._look_up(request, _key(query), query)

    async def get_message_by_id(self, request: Request, names: Mapping[str, str]) -> Response:
        """What became of a message, with its body."""
        query = read_query(request.query_params.multi_items(), LookupQuery)
        return await self._look_up(request, _by_id(names), query)

    async def cancel_message(self, request: Request, names: Mapping[str, str]) -> Response:
        """Cancel a message."""
        return await self._cancel(request, names["receipt"])

    async def cancel_message_by_key(self, request: Request, names: Mapping[str, str]) -> Response:
        """Cancel a message."""
        return await self._cancel(request, _key(read_query(request.query_params.multi_items(), KeyQuery)))

    async def cancel_message_by_id(self, request: Request, names: Mapping[str, str]) -> Response:
        """Cancel a message."""
        return await self._cancel(request, _by_id(names))

    async def move_message(self, request: Request, names: Mapping[str, str]) -> Response:
        """Give a message another due time."""
        return await self._move(request, names["receipt"])

    async def move_message_by_key(self, request: Request, names: Mapping[str, str]) -> Response:
        """Give a message another due time."""
        return await self._move(request, _key(read_query(request.query_params.multi_items(), KeyQuery)))

    async def move_message_by_id(self, request: Request, names: Mapping[str, str]) -> Response:
        """Give a message another due time."""
        return await self._move(request, _by_id(names))

    async def _look_up(self, request: Request, target: Target, query: LookupQuery | KeyQuery) -> Response:
        client = await self._clients.of_request(request.scope)
        return _fate(await client.calls.lookup(target, body=True, times=query.times), query.body_as)

    async def _cancel(self, request: Request, target: Target) -> Response:
        client = await self._clients.of_request(request.scope)
        return _ended(await client.calls.cancel(target))

    async def _move(self, request: Request, target: Target) -> Response:
        client = await self._clients.of_request(request.scope)
        body = await self._bodies.read(request.scope, request.receive, message_bytes_max(client.calls.limits))
        asked = read_json(body, _move_decoder)
        has_body = bool(memoryview(asked.body)) or asked.body_base64 is not None
        moved = await client.calls.reschedule(
            target,
            due_ms=await due_ms_of(asked, client.calls),
            body=message_body(asked.body, asked.body_base64) if has_body else None,
            properties=asked.properties,
            expires_ms=asked.expires_ms,
        )
        return _moved(moved)


def _key(query: KeyQuery) -> MessageKey:
    return MessageKey(query.subject, query.message_id, query.due_ms)


def _by_id(names: Mapping[str, str]) -> MessageKey:
    return MessageKey(names["subject"], names["message_id"])


def _fate(found: LookupResult, form: BodyForm) -> Response:
    if found.outcome is Outcome.UNKNOWN:
        return _unknown()
    body, encoding = (None, None) if found.body is None else shown_body(found.body, form)
    return json_answer(Fate(**asdict(found) | {"body": body, "body_encoding": encoding}))


def _ended(cancelled: CancelResult) -> Response:
    if cancelled.outcome is Outcome.UNKNOWN:
        return _unknown()
    if cancelled.outcome not in (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED):
        raise ended_before("it was not cancelled", cancelled.outcome, cancelled.receipt)
    return json_answer(cancelled)


def _moved(moved: RescheduleResult) -> Response:
    if moved.outcome is Outcome.UNKNOWN:
        return _unknown()
    # The server says of a message that was moved that it was cancelled, in favour of the new one.
    if moved.outcome is not Outcome.CANCELLED:
        raise ended_before("nothing was changed", moved.outcome, moved.receipt)
    return json_answer(Moved(**asdict(moved) | {"outcome_name": "rescheduled"}))


def _unknown() -> Response:
    """The answer for a message that the server never accepted. It has the outcome too, as all answers about a message."""
    detail = "the server never accepted such a message, or its send is not answered yet"
    return problem_answer(Problem(404, "message_unknown", detail, fields={"outcome": "unknown"}))
