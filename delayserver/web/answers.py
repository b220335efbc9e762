"""Answers: JSON documents, problem documents and streams of server-sent events."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse

from delayserver.web.problems import PROBLEM_JSON, Problem, invalid
from delayserver.web.sentences import sentence_of

T = TypeVar("T")
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

NO_JSON: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for bytes that are no JSON: also for too many brackets, and for texts that are not UTF-8."""

_encode = msgspec.json.Encoder().encode


def json_answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document as an answer. It ends with a newline, for terminals and tools that read lines."""
    return Response(_encode(document) + b"\n", status, headers, JSON)


def problem_answer(problem: Problem) -> Response:
    """A problem document as an answer."""
    return Response(problem.encoded(), problem.status, problem.headers(), PROBLEM_JSON)


async def send_json(send: Send, status: int, document: object) -> None:
    """Send a JSON document without the cost of a response object."""
    body = _encode(document) + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def read_json(body: bytes | memoryview, decoder: msgspec.json.Decoder[T]) -> T:
    """A document of a request. Raises `Problem` for one that is not JSON, and for one with wrong fields."""
    try:
        return decoder.decode(body)
    except NO_JSON as error:
        raise no_json(error) from None


def no_json(error: Exception) -> Problem:
    """The problem of a document that cannot be read, by an error of `NO_JSON`. It is not raised here, and so holds no
    frames: a request may have a million of them."""
    if isinstance(error, msgspec.ValidationError):
        return invalid(sentence_of(str(error)))
    return Problem(400, "malformed_request", f"the body is not JSON: {error}")


def read_query(pairs: Sequence[tuple[str, str]], kind: type[T]) -> T:
    """The parameters of a query as a document. Raises `Problem`."""
    query = dict(pairs)
    if len(query) < len(pairs):
        twice = next(name for name, count in Counter([name for name, _ in pairs]).items() if count > 1)
        raise invalid(f"the query has {twice!r} more than once")
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"the query is not valid: {sentence_of(str(error))}") from None


def event(data: bytes, *, name: str | None = None, event_id: str | None = None) -> bytes:
    """One server-sent event. ``data`` is JSON. It has line breaks where the body of a message is JSON with line breaks;
    a client puts its lines together again."""
    lines = [b"id: " + event_id.encode()] if event_id is not None else []
    lines += [b"event: " + name.encode()] if name is not None else []
    lines += [b"data: " + line for line in data.splitlines()]
    return b"\n".join([*lines, b"", b""])


PING: Final = b": still here\n\n"
"""A comment, which keeps proxies from closing a quiet stream."""


async def _nothing() -> None:
    """The end of a stream that holds nothing."""


class _EventStream(StreamingResponse):
    """A stream with an end. The events of a client that has gone before the first one are never begun."""

    def __init__(self, events: AsyncIterator[bytes], at_end: Callable[[], Awaitable[None]]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type=EVENTS, headers=headers)
        self._at_end = at_end

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._at_end()


def event_stream(events: AsyncIterator[bytes], at_end: Callable[[], Awaitable[None]] = _nothing) -> Response:
    """A stream of server-sent events as an answer. ``at_end`` is called however it ends, also in a cancelled task."""
    return _EventStream(events, at_end)
