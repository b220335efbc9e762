"""One request with its answer, as the ASGI application sees them.

An answer of known length is one write, with head and body: each write is a packet that wakes the client. The head of
a stream leaves at once, because its client may wait for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

LINES_MAX: Final = 256
"""Lines of heads that are remembered. Nearly all answers have the same ones."""


@lru_cache(LINES_MAX)
def _line(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The name of a header in lower case, and its line. Raises RuntimeError for one that would break the head."""
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise RuntimeError(f"a header has characters that no header may have: {name!r}")
    lower = name.lower()
    return lower, b"%b: %b\r\n" % (lower, value)


class Exchange(RequestResponseCycle):
    """uvicorn's, but an answer of known length leaves in one write. Each write is a packet, and wakes the client."""

    _head = b""
    """The head of an answer, until its body comes."""
    _ends_with_connection = False
    """Whether the answer is a stream to a client that knows no chunks."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer. Raises RuntimeError for parts that make no answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self.response_started = True
            self.waiting_for_100_continue = False
            head = self._head_of(message["status"], [*self.default_headers, *message.get("headers", ())])
            # Without a length it is a stream. Its client may wait for the head, long before something is streamed.
            if self.chunked_encoding is False:
                self._head = head
            else:
                self.transport.write(head)
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"no answer goes on with {message['type']}")

    def _head_of(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines, closes = [STATUS_LINE[status]], False
        for each in headers:
            name, line = _line(*each)
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(each[1]), False
            elif name == b"transfer-encoding":
                continue  # This side says how an answer without a length is framed.
            elif name == b"connection" and b"close" in each[1].lower():
                self.keep_alive, closes = False, True
            lines.append(line)
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            if self.scope["http_version"] == "1.0":
                self._ends_with_connection = True
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        elif not self._ends_with_connection:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body of an answer has another length than its head says")
        self.transport.write(self._head + body)
        self._head = b""
        if more:
            return
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
