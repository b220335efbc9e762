"""Endpoints for consumers: pull, ack, nack, extend and streams of deliveries; and publish, which has no delay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from delayserver.client.calls.pull_calls import GIVE_BACK_S
from delayserver.client.calls.send_calls import check_message
from delayserver.client.values.messages import Delivery, Message
from delayserver.protocol.errors import BatchTooLarge, DelayServerError, QueueFull
from delayserver.web.answers import PING, event, event_stream, json_answer, read_json, read_query
from delayserver.web.bodies import (
    LIST_BYTES_MAX,
    BodyReader,
    PullEncoding,
    PullForm,
    Scope,
    message_body,
    message_bytes_max,
    shown_body,
    too_large,
)
from delayserver.web.clients import Clients, TokenClient, at_shard
from delayserver.web.cloud_events import to_structured
from delayserver.web.cursor_text import cursor_text, read_cursor
from delayserver.web.idempotency import idempotency_key, message_id_of, refuse_key
from delayserver.web.origins import require_deliberate
from delayserver.web.problems import Problem, invalid, problem_of
from delayserver.web.queries import GroupsQuery
from delayserver.web.request_rows import require_few_rows, row_problem
from delayserver.web.schemas import (
    AckReply,
    AckRequest,
    DeliveriesRequest,
    ExtendReply,
    ExtendRequest,
    Groups,
    NackReply,
    NackRequest,
    Published,
    PublishRequest,
    Pulled,
    PullReply,
    PullRequest,
    RowProblem,
)
from delayserver.web.sessions import LASTS
from delayserver.web.streams import PULL_BYTES, StreamPlace, Streams
from delayserver.web.token_routes import pull_there
from delayserver.web.trace_context import trace_of, with_trace

T = TypeVar("T")

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""A request of a consumer. The largest one names 16,384 deliveries of up to 22 digits each."""

DELIVERY_BITS_MAX: Final = 73
"""63 bits of the server, and the number of the shard in a cluster of up to 1,024."""

STREAM_WAIT_MS: Final = 15_000
"""A stream without messages sends a comment as often, so that proxies keep it and a client that is gone is noticed."""

SESSION_WAIT_MS: Final = 1_000
"""A stream of a session looks as often whether the session has ended. That of a token ends with the token's connections."""

ROOM_WAIT_S: Final = 1.0
"""A stream that has no room for a large message looks again so much later."""

_encode = msgspec.json.Encoder().encode
_pull_decoder = msgspec.json.Decoder(PullRequest)
_ack_decoder = msgspec.json.Decoder(AckRequest)
_nack_decoder = msgspec.json.Decoder(NackRequest)
_extend_decoder = msgspec.json.Decoder(ExtendRequest)


_publish_decoder = msgspec.json.Decoder(PublishRequest)
_publish_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_deliveries_decoder = msgspec.json.Decoder(DeliveriesRequest)


class HttpConsuming:
    """Hands messages to consumers, and takes their acks."""

    def __init__(self, clients: Clients, bodies: BodyReader, streams: Streams) -> None:
        self._clients = clients
        self._bodies = bodies
        self._streams = streams

    async def pull(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages that are due. The pull ends early if its client goes away."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request) or b"{}", _pull_decoder)
        elsewhere = await client.routes.elsewhere(names["subject"])
        wait_ms = 0 if elsewhere else asked.wait_ms
        deliveries = await unless_gone(request, lambda: _pull(client, names, asked, wait_ms))
        # The server may have messages from before its routes changed.
        if elsewhere and not deliveries:
            raise pull_there(elsewhere)
        if asked.ack and deliveries:
            numbers = [delivery.delivery for delivery in deliveries]
            await client.calls.ack(names["subject"], names["group"], numbers)
        return json_answer(PullReply([pulled(delivery, asked.body_as) for delivery in deliveries]))

    async def ack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries that are done."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request), _ack_decoder)
        result = await client.calls.ack(names["subject"], names["group"], numbers_of(asked.deliveries))
        if result.unknown and not result.acked:
            raise _none_in_flight(acked=0, unknown=result.unknown)
        return json_answer(AckReply(result.acked, result.unknown))

    async def nack(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries to give back."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request), _nack_decoder)
        delay = None if asked.delay_ms is None else _duration(asked.delay_ms)
        numbers = numbers_of(asked.deliveries)
        result = await client.calls.nack(names["subject"], names["group"], numbers, delay, snooze=asked.snooze)
        if result.unknown and not result.nacked:
            raise _none_in_flight(nacked=0, unknown=result.unknown)
        return json_answer(NackReply(result.nacked, result.unknown, result.expired, result.dead_lettered))

    async def extend(self, request: Request, names: Mapping[str, str]) -> Response:
        """Deliveries that are still worked on."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request), _extend_decoder)
        timeout_s = None if asked.ack_timeout_ms is None else asked.ack_timeout_ms / 1000
        result = await client.calls.extend(
            names["subject"], names["group"], numbers_of(asked.deliveries), ack_timeout_s=timeout_s
        )
        if result.unknown and not result.extended:
            raise _none_in_flight(extended=0, unknown=result.unknown)
        return json_answer(ExtendReply(result.extended, result.unknown))

    async def publish(self, request: Request, names: Mapping[str, str]) -> Response:
        """Store one message for consumers now, or each of a list."""
        client = await self._clients.of_request(request.scope)
        bytes_max = message_bytes_max(client.calls.limits)
        body = await self._bodies.read(request.scope, request.receive, max(bytes_max, LIST_BYTES_MAX))
        if body.lstrip()[:1] == b"[":
            refuse_key(request.scope)
            return json_answer(await self._publish_list(client, request.scope, names["subject"], body))
        if len(body) > bytes_max:
            raise too_large(bytes_max)
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

    async def _publish_list(
        self, client: TokenClient, scope: Scope, subject: str, body: bytes
    ) -> list[Published | RowProblem]:
        rows_max = client.calls.limits.batch_messages_max
        require_few_rows(body, rows_max)
        rows = read_json(body, _publish_list_decoder)
        if len(rows) > rows_max:
            raise problem_of(BatchTooLarge(f"a list has at most {rows_max} messages"))
        results: dict[int, Published | RowProblem] = {}
        messages: dict[int, Message] = {}
        trace = trace_of(scope)
        for place, raw in enumerate(rows):
            try:
                messages[place] = _message(subject, read_json(raw, _publish_decoder), trace)
            except (Problem, DelayServerError) as error:
                results[place] = row_problem(error, place)
        if messages:
            published = await client.calls.publish_many([*messages.values()])
            for place, result in zip(messages, published, strict=True):
                if isinstance(result, DelayServerError):
                    results[place] = row_problem(result, place)
                else:
                    results[place] = Published(*result)
        return [results[place] for place in range(len(rows))]

    async def deliveries(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages as they become due."""
        client = await self._clients.of_request(request.scope)
        asked = read_json(await self._read(request) or b"{}", _deliveries_decoder)
        return await self._stream(request, client, names, asked)

    async def deliveries_for_event_source(self, request: Request, names: Mapping[str, str]) -> Response:
        """The same, for clients that can only ask with GET."""
        require_deliberate(request.scope["headers"])
        asked = read_query(request.query_params.multi_items(), DeliveriesRequest)
        return await self._stream(request, await self._clients.of_request(request.scope), names, asked)

    async def _stream(
        self, request: Request, client: TokenClient, names: Mapping[str, str], query: DeliveriesRequest
    ) -> Response:
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
        stream = _Stream(self._streams.begin(request.scope), client, names, asked, request.scope.get(LASTS))
        # The first pull comes before the answer, so that its errors are a problem document.
        elsewhere = await client.routes.elsewhere(names["subject"])
        if not await stream.pull() and elsewhere:
            raise pull_there(elsewhere)
        return event_stream(stream.events(), stream.end)

    async def groups(self, request: Request, names: Mapping[str, str]) -> Response:
        """The consumer groups and their lag."""
        query = read_query(request.query_params.multi_items(), GroupsQuery)
        client = await self._clients.of_request(request.scope)
        calls = await at_shard(client.calls, query.shard)
        if query.max is None and query.after is None:
            return json_answer(Groups(await calls.groups(query.subject)))
        page = await calls.groups_page(query.subject, read_cursor(query.after), query.max)
        return json_answer(Groups(page.groups, cursor_text(page.next)))

    async def groups_of_subject(self, request: Request, names: Mapping[str, str]) -> Response:
        """The consumer groups of a subject and their lag."""
        client = await self._clients.of_request(request.scope)
        found = await client.calls.groups(names["subject"])
        if not found:
            await client.routes.require_here(names["subject"])
        return json_answer(Groups(found))

    async def _read(self, request: Request) -> bytes:
        return await self._bodies.read(request.scope, request.receive, REQUEST_BYTES_MAX)


def _none_in_flight(**counts: int) -> Problem:
    detail = (
        "none of these deliveries is in flight: they ended before, or are of another group; messages may come again"
    )
    return Problem(409, "deliveries_unknown", detail, fields=counts)


def _message(subject: str, asked: PublishRequest, trace: Mapping[str, str]) -> Message:
    """A message to publish. Raises the errors of one that cannot be encoded: its whole batch would fail."""
    message = Message(
        subject,
        message_body(asked.body, asked.body_base64),
        message_id=asked.message_id,
        properties=with_trace(trace, asked.properties),
        expires_ms=asked.expires_ms,
        tag=asked.tag,
        order_key=asked.order_key,
    )
    check_message(message)
    return message


async def _pull(
    client: TokenClient, names: Mapping[str, str], asked: PullRequest, wait_ms: int, bytes_max: int | None = None
) -> list[Delivery]:
    pulled = await client.pulls.pull_columns(
        names["subject"],
        names["group"],
        asked.max_messages,
        wait_ms / 1000,
        ack_timeout_s=None if asked.ack_timeout_ms is None else asked.ack_timeout_ms / 1000,
        max_bytes=bytes_max,
        start=asked.start,
        tags=asked.tags,
        where=asked.where,
    )
    return pulled.deliveries()


class _Stream:
    """The events of a stream. It pulls only what its client is about to read: messages that wait for a client that does not
    read are few, and belong to their group.
    """

    def __init__(
        self,
        place: StreamPlace,
        client: TokenClient,
        names: Mapping[str, str],
        asked: PullRequest,
        lasts: Callable[[], bool] | None,
    ) -> None:
        """`lasts`: whether the session of the request has not ended; None without a session."""
        self._place = place
        self._client = client
        self._names = names
        self._asked = asked
        self._lasts = lasts
        self._wait_ms = 0
        self._deliveries: list[Delivery] = []

    async def pull(self) -> bool:
        """Pull the next messages: whether there are any. The first pull does not wait for them."""
        self._deliveries = await _pull(self._client, self._names, self._asked, self._wait_ms, PULL_BYTES)
        self._wait_ms = SESSION_WAIT_MS if self._lasts else STREAM_WAIT_MS
        return bool(self._deliveries)

    async def end(self) -> None:
        """What was not sent goes back to its group, for its other consumers. It is no attempt."""
        with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(DelayServerError):
            await self._give_back()

    async def events(self) -> AsyncIterator[bytes]:
        """Until the client goes away, the session ends, or with an event `problem` at the end."""
        while True:
            try:
                if self._lasts and not self._lasts():
                    return
                # A comment also begins a stream without messages, so that its client sees the answer.
                yield await self._next() or PING
                await self._place.wait_taken()
                await self.pull()
            except DelayServerError as error:
                yield event(problem_of(error).encoded(), name="problem")
                return

    async def _next(self) -> bytes:
        """The messages that were pulled, as events. Without room for them they go back to their group, and the stream looks
        again later."""
        deliveries, encoded = self._deliveries, self._encoded()
        try:
            self._place.hold(len(encoded))
        except QueueFull:
            await self._give_back()
            await anyio.sleep(ROOM_WAIT_S)
            return b""
        if self._asked.ack and deliveries:
            numbers = [each.delivery for each in deliveries]
            await self._client.calls.ack(self._names["subject"], self._names["group"], numbers)
        self._deliveries = []
        return encoded

    def _encoded(self) -> bytes:
        form = self._asked.body_as
        return b"".join([event(_encode(pulled(each, form)), event_id=str(each.delivery)) for each in self._deliveries])

    async def _give_back(self) -> None:
        numbers = [each.delivery for each in self._deliveries]
        self._deliveries = []
        if numbers:
            names = self._names
            await self._client.calls.nack(names["subject"], names["group"], numbers, timedelta(), unseen=True)


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


def numbers_of(deliveries: Sequence[str | int]) -> list[int]:
    """The numbers of deliveries. Raises `Problem`."""
    numbers = [int(delivery) for delivery in deliveries]
    if any(abs(number) >> DELIVERY_BITS_MAX for number in numbers):
        raise invalid(f"deliveries: a number is above {DELIVERY_BITS_MAX} bits")
    return numbers


def _duration(delay_ms: int) -> timedelta:
    try:
        return timedelta(milliseconds=delay_ms)
    except OverflowError:
        raise invalid(f"delay_ms = {delay_ms} is beyond the calendar") from None
