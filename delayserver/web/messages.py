"""Endpoints about one message that was sent: what became of it, and its cancel."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from delayserver.client.messages import CancelResult, LookupResult
from delayserver.protocol.outcomes import Outcome
from delayserver.web.answers import json_answer, problem_answer, read_query
from delayserver.web.bodies import shown_body
from delayserver.web.clients import Clients
from delayserver.web.problems import Problem
from delayserver.web.queries import LookupQuery
from delayserver.web.schemas import Ended, Fate


class Messages:
    """Looks messages up and cancels them, by receipt."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def get_message(self, request: Request, names: Mapping[str, str]) -> Response:
        """What became of a message, with its body."""
        query = read_query(request.query_params, LookupQuery)
        client = await self._clients.of_request(request.scope)
        return _fate(await client.calls.lookup(names["receipt"], body=True), query)

    async def cancel_message(self, request: Request, names: Mapping[str, str]) -> Response:
        """Cancel a message."""
        client = await self._clients.of_request(request.scope)
        return _ended(await client.calls.cancel(names["receipt"]))


def _fate(found: LookupResult, query: LookupQuery) -> Response:
    if found.outcome is Outcome.UNKNOWN:
        return _unknown()
    body, encoding = (None, None) if found.body is None else shown_body(found.body, query.body_as)
    return json_answer(
        Fate(
            outcome=found.outcome.label,
            receipt=found.receipt,
            subject=found.subject,
            due_ms=found.due_ms,
            dispatched_us=found.dispatched_us,
            attempts=found.attempts,
            broker_group=found.broker_group,
            original_receipt=found.original_receipt,
            rescheduled_to=found.rescheduled_to,
            unanswered_elsewhere=found.unanswered_elsewhere,
            message_id=found.message_id,
            body=body,
            body_encoding=encoding,
            body_left_out=found.body_left_out,
            properties=found.properties,
            expires_ms=found.expires_ms,
            tag=found.tag,
            order_key=found.order_key,
        )
    )


def _ended(cancelled: CancelResult) -> Response:
    if cancelled.outcome is Outcome.UNKNOWN:
        return _unknown()
    return json_answer(Ended(cancelled.outcome.label, cancelled.receipt))


def _unknown() -> Response:
    """The answer for a message that the server never accepted. It has the outcome too, as all answers about a message."""
    detail = "the server never accepted such a message, or its send is not answered yet"
    return problem_answer(Problem(404, "message_unknown", detail, fields={"outcome": "unknown"}))
