"""Endpoints for consumers: pull, ack and nack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from delayserver.client.messages import Delivery
from delayserver.protocol.errors import DelayServerError
from delayserver.web.answers import json_answer, read_json
from delayserver.web.bodies import BodyForm, BodyReader, shown_body
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.problems import invalid
from delayserver.web.schemas import AckReply, AckRequest, NackReply, NackRequest, Pulled, PullReply, PullRequest

T = TypeVar("T")

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""A request of a consumer. The largest one names 16,384 deliveries of 19 digits each."""

_pull_decoder = msgspec.json.Decoder(PullRequest)
_ack_decoder = msgspec.json.Decoder(AckRequest)
_nack_decoder = msgspec.json.Decoder(NackRequest)


class Consuming:
    """Hands messages to consumers, and takes their acks."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies

    async def pull(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages that are due. The pull ends early if its client goes away."""
        asked = read_json(await self._read(request) or b"{}", _pull_decoder)
        client = await self._clients.of_request(request.scope)
        deliveries = await unless_gone(request, lambda: _pull(client, names, asked))
        if asked.ack and deliveries:
            numbers = [delivery.delivery for delivery in deliveries]
            await client.calls.ack(names["subject"], names["group"], numbers)
        return json_answer(PullReply([pulled(delivery, asked.body_as) for delivery in deliveries]))

    async def ack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries that are done."""
        asked = read_json(await self._read(request), _ack_decoder)
        client = await self._clients.of_request(request.scope)
        result = await client.calls.ack(names["subject"], names["group"], numbers_of(asked.deliveries))
        return json_answer(AckReply(result.acked, result.unknown))

    async def nack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries to give back."""
        asked = read_json(await self._read(request), _nack_decoder)
        client = await self._clients.of_request(request.scope)
        delay = None if asked.delay_ms is None else _duration(asked.delay_ms)
        result = await client.calls.nack(names["subject"], names["group"], numbers_of(asked.deliveries), delay)
        return json_answer(NackReply(result.nacked, result.unknown, result.expired, result.dead_lettered))

    async def _read(self, request: Request) -> bytes:
        return await self._bodies.read(request.scope, request.receive, REQUEST_BYTES_MAX)


async def _pull(client: TokenClient, names: Mapping[str, str], asked: PullRequest) -> list[Delivery]:
    return await client.pulls.pull(
        names["subject"],
        names["group"],
        asked.max_messages,
        asked.wait_ms / 1000,
        ack_timeout_s=None if asked.ack_timeout_ms is None else asked.ack_timeout_ms / 1000,
        start=asked.start,
        tags=asked.tags,
        where=asked.where,
    )


async def unless_gone(request: Request, call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call that may wait long. If the client of the request goes away first, the call is cancelled and
    `ClientDisconnect` is raised. The body of the request must have been read.
    """
    results: list[T] = []
    errors: list[DelayServerError] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            results.append(await call())
        except DelayServerError as error:  # not as a group of errors
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not results:
        raise ClientDisconnect
    return results[0]


def pulled(delivery: Delivery, form: BodyForm) -> Pulled:
    """A delivery for its consumer."""
    body, encoding = shown_body(delivery.body, form)
    return Pulled(
        message_id=delivery.message_id,
        subject=delivery.subject,
        body=body,
        body_encoding=encoding,
        due_ms=delivery.due_ms,
        dispatched_ms=delivery.dispatched_us // 1000,
        attempt=delivery.attempt,
        # A text: 63 bits are more than a number of JavaScript holds.
        delivery=str(delivery.delivery),
        sequence=delivery.sequence,
        server_id=delivery.server_id,
        accepted_us=delivery.accepted_us,
        dispatched_us=delivery.dispatched_us,
        properties=delivery.properties,
        expires_ms=delivery.expires_ms,
        tag=delivery.tag,
        order_key=delivery.order_key,
        position=delivery.position,
    )


def numbers_of(deliveries: Sequence[str | int]) -> NDArray[np.int64]:
    """Deliveries as i64[n]. Raises `Problem`."""
    try:
        return np.array([int(delivery) for delivery in deliveries], np.int64)
    except OverflowError:
        raise invalid("deliveries: a number is above 63 bits") from None


def _duration(delay_ms: int) -> timedelta:
    try:
        return timedelta(milliseconds=delay_ms)
    except OverflowError:
        raise invalid(f"delay_ms = {delay_ms} is beyond the calendar") from None
