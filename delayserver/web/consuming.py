"""Endpoints for consumers: pull, ack, nack and streams of deliveries; and publish, which has no delay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from delayserver.client.values.messages import ConsumerGroup, Delivery
from delayserver.protocol.errors import DelayServerError
from delayserver.web.answers import PING, event, event_stream, json_answer, read_json, read_query
from delayserver.web.bodies import BodyReader, PullEncoding, PullForm, message_body, message_bytes_max, shown_body
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.cloud_events import to_structured
from delayserver.web.idempotency import idempotency_key, message_id_of
from delayserver.web.problems import invalid, problem_of
from delayserver.web.queries import DeliveriesQuery, GroupsQuery
from delayserver.web.schemas import (
    AckReply,
    AckRequest,
    Group,
    Groups,
    NackReply,
    NackRequest,
    Published,
    PublishRequest,
    Pulled,
    PullReply,
    PullRequest,
)
from delayserver.web.sessions import LASTS
from delayserver.web.streams import Streams
from delayserver.web.trace_context import trace_of, with_trace

T = TypeVar("T")

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""A request of a consumer. The largest one names 16,384 deliveries of 19 digits each."""

STREAM_WAIT_MS: Final = 15_000
"""A stream without messages sends a comment as often, so that proxies keep it and a client that is gone is noticed."""

SESSION_WAIT_MS: Final = 1_000
"""A stream of a session looks as often whether the session has ended. That of a token ends with the token's connections."""

_encode = msgspec.json.Encoder().encode
_pull_decoder = msgspec.json.Decoder(PullRequest)
_ack_decoder = msgspec.json.Decoder(AckRequest)
_nack_decoder = msgspec.json.Decoder(NackRequest)


_publish_decoder = msgspec.json.Decoder(PublishRequest)


class Consuming:
    """Hands messages to consumers, and takes their acks."""

    def __init__(self, clients: Clients, bodies: BodyReader, streams: Streams) -> None:
        self._clients = clients
        self._bodies = bodies
        self._streams = streams

    async def pull(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages that are due. The pull ends early if its client goes away."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request) or b"{}", _pull_decoder)
        deliveries = await unless_gone(request, lambda: _pull(client, names, asked))
        if asked.ack and deliveries:
            numbers = [delivery.delivery for delivery in deliveries]
            await client.calls.ack(names["subject"], names["group"], numbers)
        return json_answer(PullReply([pulled(delivery, asked.body_as) for delivery in deliveries]))

    async def ack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries that are done."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request), _ack_decoder)
        result = await client.calls.ack(names["subject"], names["group"], numbers_of(asked.deliveries))
        return json_answer(AckReply(result.acked, result.unknown))

    async def nack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries to give back."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request), _nack_decoder)
        delay = None if asked.delay_ms is None else _duration(asked.delay_ms)
        result = await client.calls.nack(names["subject"], names["group"], numbers_of(asked.deliveries), delay)
        return json_answer(NackReply(result.nacked, result.unknown, result.expired, result.dead_lettered))

    async def publish(self, request: Request, names: Mapping[str, str]) -> Response:
        """Store one message for consumers now."""
        client = await self._clients.of_request(request.scope)
        body = await self._bodies.read(request.scope, request.receive, message_bytes_max(client.calls.limits))
        asked = read_json(body, _publish_decoder)
        published = await client.calls.publish(
            names["subject"],
            message_body(asked.body, asked.body_base64),
            message_id=message_id_of(idempotency_key(request.scope), asked.message_id),
            properties=with_trace(trace_of(request.scope), asked.properties),
            expires_ms=asked.expires_ms,
            tag=asked.tag,
            order_key=asked.order_key,
        )
        return json_answer(Published(*published), 201)

    async def deliveries(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages as they become due."""
        query = read_query(request.query_params, DeliveriesQuery)
        client = await self._clients.of_request(request.scope)
        asked = PullRequest(
            max_messages=query.max_messages,
            wait_ms=0,
            ack=query.ack,
            ack_timeout_ms=query.ack_timeout_ms,
            start=query.start,
            tags=query.tags,
            where=query.where,
            body_as=query.body_as,
        )
        place = self._streams.begin()
        # The first pull comes before the answer, so that its errors are a problem document.
        first = await _pull(client, names, asked)
        return event_stream(_deliveries(place, client, names, asked, first, lasts=request.scope.get(LASTS)))

    async def groups(self, request: Request, names: Mapping[str, str]) -> Response:
        """The consumer groups and their lag."""
        query = read_query(request.query_params, GroupsQuery)
        client = await self._clients.of_request(request.scope)
        return _groups(await client.calls.groups(query.subject))

    async def groups_of_subject(self, request: Request, names: Mapping[str, str]) -> Response:
        """The consumer groups of a subject and their lag."""
        client = await self._clients.of_request(request.scope)
        return _groups(await client.calls.groups(names["subject"]))

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


async def _deliveries(
    place: Streams.Place,
    client: TokenClient,
    names: Mapping[str, str],
    asked: PullRequest,
    first: list[Delivery],
    *,
    lasts: Callable[[], bool] | None,
) -> AsyncIterator[bytes]:
    """The events of a stream. It ends when its client goes away, with its session, or with an event `problem`."""
    with place:
        deliveries = first
        waiting = msgspec.structs.replace(asked, wait_ms=SESSION_WAIT_MS if lasts else STREAM_WAIT_MS)
        while True:
            try:
                if lasts and not lasts():
                    numbers = [each.delivery for each in deliveries]
                    if numbers:
                        await client.calls.nack(names["subject"], names["group"], numbers, timedelta(), unseen=True)
                    return
                if asked.ack and deliveries:
                    await client.calls.ack(names["subject"], names["group"], [each.delivery for each in deliveries])
                events = [
                    event(_encode(pulled(each, asked.body_as)), event_id=str(each.delivery)) for each in deliveries
                ]
                # A comment also begins a stream without messages, so that its client sees the answer.
                yield b"".join(events) or PING
                deliveries = await _pull(client, names, waiting)
            except DelayServerError as error:
                yield event(problem_of(error).encoded(), name="problem")
                return


def _groups(groups: Sequence[ConsumerGroup]) -> Response:
    return json_answer(
        Groups(
            [
                Group(
                    subject=group.subject,
                    group=group.group,
                    lag=group.lag,
                    leased=group.leased,
                    retrying=group.retrying,
                    position=group.position,
                    end=group.end,
                    expired=group.expired,
                    oldest_ms=group.oldest_ms,
                    waiting_in_place=group.waiting_in_place,
                    dead_letters=group.dead_letters,
                    filtered=group.filtered,
                    tags=group.tags,
                    where=group.where,
                )
                for group in groups
            ]
        )
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


def pulled(delivery: Delivery, form: PullForm) -> Pulled:
    """A delivery for its consumer."""
    body: Any
    encoding: PullEncoding
    if form == "cloudevent":
        body, encoding = to_structured(delivery), form
    else:
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
