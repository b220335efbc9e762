"""Bodies of requests, read within bounds; and the three ways in which the body of a message stands in JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.requests import ClientDisconnect

from delayserver.protocol.limits import Limits
from delayserver.web.answers import NO_JSON, read_json
from delayserver.web.problems import Problem, invalid
from delayserver.web.request_memory import Holding, RequestMemory

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Scope: TypeAlias = MutableMapping[str, Any]

BodyForm: TypeAlias = Literal["auto", "text", "json", "base64"]
"""How a reader wants bodies: `text` and `json` where the bytes allow it, otherwise base64. `auto` is text."""

PullForm: TypeAlias = Literal["auto", "text", "json", "base64", "cloudevent"]
"""The same for consumers, who may want the whole message as a CloudEvent."""
Encoding: TypeAlias = Literal["text", "json", "base64"]
"""How a body is written."""
PullEncoding: TypeAlias = Literal["text", "json", "base64", "cloudevent"]

NDJSON: Final = "application/x-ndjson"
LINES_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""Media types of newline-delimited JSON."""

TOKEN: Final = "delayserver.token"
"""The entry of an ASGI scope that has the token of the request; empty for none."""
LINES: Final = "delayserver.lines"
"""The entry of an ASGI scope that is there while its body is read as lines: they may wait for the next row."""

ROOM_BYTES: Final = 128 * 1024 * 1024
"""Bodies of all requests that are being read, and lines without an end, beyond `SMALL_BYTES` each."""
SMALL_BYTES: Final = 64 * 1024
"""A request of this size gets through whatever others hold."""

LIST_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest JSON list. Lines have no such bound."""

ESCAPED: Final = 6
"""JSON takes up to six bytes for a byte of a text."""
FIELDS_BYTES: Final = 64 * 1024
"""Room for the other fields of a message in JSON, beside its body and properties."""

_text_decoder = msgspec.json.Decoder(str)


class BodyReader:
    """Reads bodies of requests, and counts what they hold in memory together."""

    def __init__(self) -> None:
        self._room = RequestMemory("the bodies of other requests", ROOM_BYTES, SMALL_BYTES)

    @property
    def held_bytes(self) -> int:
        """Bytes of unfinished requests that count against `ROOM_BYTES`."""
        return self._room.held_bytes

    def holding(self, scope: Scope) -> AbstractContextManager[Holding]:
        """What one request holds, until the end of the block."""
        return self._room.holding(scope.get(TOKEN, ""))

    async def read(self, scope: Scope, receive: Receive, bytes_max: int) -> bytes:
        """A whole body. Raises `Problem` for one above `bytes_max`, as soon as that is known."""
        declared = _declared_length(scope)
        if declared is not None and declared > bytes_max:
            raise too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        data: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(data) > bytes_max:
                raise too_large(bytes_max)
            return data
        with self.holding(scope) as holding:
            return await _read_on(receive, data, bytes_max, holding)


async def _read_on(receive: Receive, first: bytes, bytes_max: int, holding: Holding) -> bytes:
    parts, size = [first], len(first)
    while True:
        if size > bytes_max:
            raise too_large(bytes_max)
        holding.hold(size)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            if size > bytes_max:
                raise too_large(bytes_max)
            return b"".join(parts)


def _declared_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return None


def message_bytes_max(limits: Limits) -> int:
    """The bytes of the largest message in JSON that a server with these limits takes."""
    return ESCAPED * (limits.body_bytes_max + limits.properties_bytes_max) + FIELDS_BYTES


def too_large(bytes_max: int) -> Problem:
    """The problem of a body above its bound."""
    return Problem(413, "body_too_large", f"the body of this request is above {bytes_max} bytes")


def content_type(scope: Scope) -> str:
    """The media type of a request's body, without parameters, in lower case; empty if it has none."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind: str = value.decode("latin-1")
            return kind.partition(";")[0].strip().lower()
    return ""


def message_body(body: msgspec.Raw, body_base64: str | None) -> bytes | str:
    """The body of a message from the two fields of a request, of which exactly one is given. A JSON text is that text; any
    other JSON value is stored as it was written. Raises `Problem`.
    """
    raw = memoryview(body)
    if bool(raw) == (body_base64 is not None):
        raise invalid("give either body (a text, or any JSON value) or body_base64 (bytes)")
    if body_base64 is not None:
        return base64_bytes(body_base64)
    return read_json(raw, _text_decoder) if raw[0] == ord('"') else bytes(raw)


def base64_bytes(text: str) -> bytes:
    """The bytes of base64 text. Raises `Problem`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("body_base64 is not base64") from None


def shown_body(body: bytes, form: BodyForm) -> tuple[Any, Encoding]:
    """A body for a reader, and its `body_encoding`: `text`, `json` or `base64`. Bytes that are not of the wanted form are
    given as text if they are UTF-8, otherwise as base64.
    """
    if form == "json" and _is_json(body):
        return msgspec.Raw(body), "json"
    if form != "base64":
        try:
            return body.decode(), "text"
        except UnicodeDecodeError:
            pass
    return base64.b64encode(body).decode(), "base64"


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except NO_JSON:
        return False
    return True
