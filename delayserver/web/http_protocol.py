"""One connection of HTTP, with the bounds that uvicorn's own protocol lacks.

A head has a size and a time, a body has to go on coming, an answer has to be read, and pipelined requests are few. Bad
requests get problem documents. A request whose body was not read ends its connection. `HttpConnections` looks after all of
them: it closes what is idle for too long, and makes room for new ones.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from delayserver.config.settings import HttpSettings
from delayserver.runtime.free_memory import give_back
from delayserver.web.bodies import LINES
from delayserver.web.client_addresses import counted_address
from delayserver.web.exchange import Exchange
from delayserver.web.handshakes import Handshakes
from delayserver.web.problems import PROBLEM_JSON, TITLES, Problem
from delayserver.web.streams import TAKEN

PIPELINED_MAX: Final = 32
"""Requests of one connection that wait for the answers before them. A read may hold thousands of small ones."""
IDLE_S_MIN: Final = 0.05
"""A connection gives way only if it has been idle for so long: the request of a newer one may be on its way."""
SWEEP_S: Final = 1.0
UNSENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of answers that wait for their clients, on all connections together. One answer may have a hundred MiB."""
GIVE_BACK_BYTES: Final = 16 * 1024 * 1024
"""After so much less waits for clients, free memory goes back to the operating system: the C library keeps it otherwise."""
LINGER_S: Final = 2.0
"""After an answer that did not wait for the body, so much longer the rest is read and dropped: a connection that is closed
over unread bytes is reset, and the client may not see its answer."""
DROPPED_BYTES_MAX: Final = 1024 * 1024
"""So much of an unread body is read and dropped. A client that sends more waits for its reset."""
HEADER_MARKS: Final = 4
"""The colon, the space and the end of the line of a header."""
BYTES_PER_S_MIN: Final = 1024
"""Slower bodies are refused, unless they are lines: those may wait for the next row."""

IDLE: Final = "idle"
HEAD: Final = "head"
BODY: Final = "body"
ANSWER: Final = "answer"
REFUSED: Final = "refused"
LINGERING: Final = "lingering"


class HttpConnections:
    """All connections of the gateway."""

    def __init__(self, settings: HttpSettings, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: the context of the listening socket; None: without TLS."""
        self._handshakes = None if tls is None else Handshakes(tls)
        self.head_bytes_max = settings.head_bytes_max
        self._connections_max = settings.connections_max
        self._of_address_max = settings.connections_of_address_max
        self._head_s = settings.head_timeout_ms / 1000
        self._idle_s = settings.idle_timeout_ms / 1000
        self.body_s = settings.body_timeout_ms / 1000
        # Those that wait for their client come first, in the order in which their waiting began.
        self._open: dict[BoundedProtocol, None] = {}
        # The same, by the address of the client.
        self._by_address: dict[str, dict[BoundedProtocol, None]] = {}
        # Those whose answer waits for its client, and how many bytes waited at first. They only become fewer.
        self._waiting: dict[BoundedProtocol, int] = {}
        self._waiting_bytes = 0
        self._waiting_bytes_most = 0

    def __len__(self) -> int:
        return len(self._open)

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """The protocol of a new connection, as uvicorn asks for it."""

        def bounded() -> BoundedProtocol:
            return BoundedProtocol(self, config, server_state, app_state, _loop)

        return bounded() if self._handshakes is None else self._handshakes.of(bounded)

    def add(self, connection: BoundedProtocol) -> str:
        """Take a connection. Without room it is not taken, and this is the reason; empty if it is taken."""
        of_address = self._by_address.get(connection.address, {})
        if connection.address and len(of_address) >= self._of_address_max:
            if not self._make_room(of_address, connection.since_s):
                return "this address has as many connections as it may have, and none is idle"
        elif len(self._open) >= self._connections_max and not self._make_room(self._open, connection.since_s):
            return "no connection is idle"
        self._open[connection] = None
        self._by_address.setdefault(connection.address, {})[connection] = None
        return ""

    def _make_room(self, among: dict[BoundedProtocol, None], now_s: float) -> bool:
        oldest = next((each for each in among if each.phase == IDLE), None)
        if oldest is None or now_s - oldest.since_s < IDLE_S_MIN:
            return False
        oldest.end()
        return True

    def remove(self, connection: BoundedProtocol) -> None:
        """Forget a connection that is closed."""
        if connection not in self._open:
            return
        self.end_waiting(connection)
        del self._open[connection]
        of_address = self._by_address[connection.address]
        del of_address[connection]
        if not of_address:
            del self._by_address[connection.address]

    def renew(self, connection: BoundedProtocol) -> None:
        """The connection becomes the last one that gives way."""
        if connection in self._open:
            for among in (self._open, self._by_address[connection.address]):
                del among[connection]
                among[connection] = None

    async def run(self) -> None:
        """End the connections whose client lets them wait for too long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = loop.time()
            for connection in [*self._open]:
                self._look_at(connection, now_s)
            self._relieve()
            if self._waiting_bytes_most - self._waiting_bytes > GIVE_BACK_BYTES:
                self._waiting_bytes_most = self._waiting_bytes
                await asyncio.to_thread(give_back)

    def begin_waiting(self, connection: BoundedProtocol, size: int) -> None:
        """An answer waits for its client, of whom so many bytes are not taken."""
        if connection not in self._open:
            return
        self._waiting[connection] = size
        self._waiting_bytes += size
        self._waiting_bytes_most = max(self._waiting_bytes_most, self._waiting_bytes)
        if self._waiting_bytes > UNSENT_BYTES_MAX:
            self._relieve()

    def end_waiting(self, connection: BoundedProtocol) -> None:
        """The client has taken the answer, or the connection is gone."""
        self._waiting_bytes -= self._waiting.pop(connection, 0)

    def _relieve(self) -> None:
        """Cut the connections with the most bytes that their clients have not read, if all together have too many."""
        unsent = {connection: connection.unsent_bytes for connection in self._open}
        over = sum(unsent.values()) - UNSENT_BYTES_MAX
        for connection, size in sorted(unsent.items(), key=_size, reverse=True) if over > 0 else ():
            if over <= 0:
                break
            connection.abort()
            over -= size
        for connection in self._waiting:
            self._waiting[connection] = unsent[connection]
        self._waiting_bytes = sum(self._waiting.values())

    def _look_at(self, connection: BoundedProtocol, now_s: float) -> None:
        if connection.unread_since(now_s) > self.body_s:
            connection.abort()
        elif connection.phase == IDLE and now_s - connection.since_s > self._idle_s:
            connection.end()
        elif connection.phase == HEAD and now_s - connection.since_s > self._head_s:
            connection.refuse(Problem(408, "request_timeout", "the head of the request did not come in time"))
        elif connection.phase == BODY and connection.is_slow(now_s, self.body_s):
            connection.refuse(Problem(408, "request_timeout", "the body of the request came too slowly"))


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        connections: HttpConnections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._connections = connections
        self.address = ""
        self.phase = IDLE
        self.since_s = self.loop.time()
        self._head_bytes = 0
        self._hosts = 0
        self._codings = 0
        self._late_s = 0.0
        self._got_body = False
        self._last_byte_s = 0.0
        self._upgrading = False
        self._unanswered = 0
        self._refusal: Problem | None = None
        self._failure: Problem | None = None
        self._dropped_bytes = 0
        self._unsent_bytes = 0
        self._unsent_since_s: float | None = None

    # --- the stream

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does it only for sockets that were made with the number of TCP, and `socket.create_server` makes them
        # without. An answer is a head and a body: the body would wait 40 ms for the client's acknowledgement of the head.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = counted_address(self.client[0]) if self.client else ""
        refusal = self._connections.add(self)
        if refusal:
            self._write_problem(Problem(503, "too_many_connections", refusal, retry_after_ms=1000))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase in (REFUSED, LINGERING) or self.transport.is_closing():
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.flow.pause_reading()
            return
        self._last_byte_s = self.loop.time()
        if self.phase == IDLE:
            self.phase, self.since_s, self._head_bytes = HEAD, self._last_byte_s, 0
        # Bytes that are not body are head, or an extension of a chunk, or a trailer: the parser keeps them, or drops them.
        self._got_body = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.refuse(self._failure or _malformed())
            return
        if self._failure is not None:
            self.refuse(self._failure)
            return
        if not self._got_body and self.phase in (HEAD, BODY):
            self._head_bytes += len(data)
            if self._head_bytes > self._connections.head_bytes_max:
                self.refuse(_large_head(self._connections.head_bytes_max))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.begin_waiting(self, self.unsent_bytes)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.end_waiting(self)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser takes all behind such a head for another protocol. So another one reads the request again, as if
            # it asked for no upgrade: clients of Java and `curl --http2` send bodies with such requests.
            self._upgrading = False
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(lines))
            self._feed(head + data[upgrade.args[0] :])

    # --- the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._hosts = self._codings = 0
        if self.phase != HEAD:
            self.phase, self.since_s, self._head_bytes = HEAD, self._last_byte_s, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != HEAD:
            return  # A trailer. The application has the headers already.
        if len(name) == 4 and name.lower() == b"host":
            self._hosts += 1
        elif len(name) == 17 and name.lower() == b"transfer-encoding":
            self._codings += 1 if value.lower() == b"chunked" else 2
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        try:
            self._check_head()
            if self.parser.should_upgrade():
                self._upgrading = True
                return
            self._begin_exchange()
        except Exception as error:
            # The parser may have another reason to stop, and raise an error for that instead.
            self._failure = error if isinstance(error, Problem) else _malformed()
            raise
        self.phase, self._head_bytes = BODY, 0
        self._late_s = self._last_byte_s + self._connections.body_s
        self._unanswered += 1

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Problem(400, "malformed_request", "this gateway speaks version 1.1 of HTTP")
        if self._hosts > 1 or (not self._hosts and version == "1.1"):
            raise Problem(400, "malformed_request", "a request has exactly one Host")
        if self._codings > (version == "1.1"):
            # A proxy that reads such a body in another way could be led to see other requests than the gateway.
            raise Problem(400, "malformed_request", "the only Transfer-Encoding is chunked, in version 1.1")
        if self.parser.get_method() == b"CONNECT":
            raise Problem(400, "malformed_request", "this is no proxy")
        size = len(self.url) + sum([len(name) + len(value) + HEADER_MARKS for name, value in self.headers])
        if size > self._connections.head_bytes_max:
            raise _large_head(self._connections.head_bytes_max)
        if len(self.pipeline) >= PIPELINED_MAX:
            raise Problem(429, "too_many_requests", f"at most {PIPELINED_MAX} requests may wait on a connection")

    def _begin_exchange(self) -> None:
        """As uvicorn does, but for web sockets and its bound of connections."""
        version, scope = self.parser.get_http_version(), self.scope
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if not path.startswith("/"):
            raise Problem(400, "malformed_request", "the target of a request is a path")
        if self.url[:1] != b"/":
            self._check_place()
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        scope[TAKEN] = self.flow.drain  # type: ignore[typeddict-unknown-key]
        before = self.cycle
        self.cycle = Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _check_place(self) -> None:
        """Raises `Problem` for a target with a name other than that of `Host`: only one of the two is looked at."""
        scheme, _, place = self.url.partition(b"://")
        host = next((value for name, value in self.headers if name == b"host"), b"")
        if scheme.lower() not in (b"http", b"https") or place.partition(b"/")[0].lower() != host.lower():
            raise Problem(400, "malformed_request", "the target of the request and its Host name different places")

    def on_body(self, body: bytes) -> None:
        self._got_body = True
        # Bytes that come early save time up to one period, and no more.
        late_s = self._late_s + len(body) / BYTES_PER_S_MIN
        self._late_s = min(late_s, self._last_byte_s + self._connections.body_s)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self.phase = ANSWER
        super().on_message_complete()

    # --- the answer

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        cut = self._unanswered == 0 and self.phase == BODY
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._unanswered:
            return
        if self._refusal is not None:
            self._write_problem(self._refusal)
            self._linger()
        elif cut:
            self._linger()
        elif self.phase == ANSWER:
            self.phase, self.since_s = IDLE, self.loop.time()
            self._connections.renew(self)

    def refuse(self, problem: Problem) -> None:
        """Answer the request that is being read with a problem, behind the answers of those before it, and end the
        connection. If its answer has begun, it is cut.
        """
        if self.phase in (REFUSED, LINGERING) or self.transport.is_closing():
            return
        in_body, self.phase = self.phase == BODY, REFUSED
        if self._unanswered > in_body:
            if in_body:  # It stands in line, as the last one.
                self.pipeline.popleft()
                self._unanswered -= 1
            self._refusal = problem
            return
        if not in_body or not self.cycle.response_started:
            self._write_problem(problem)
        if in_body:
            # The application hears that its client is gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.flow.resume_writing()
        self._linger()

    def _write_problem(self, problem: Problem) -> None:
        body = problem.encoded()
        headers = {**problem.headers(), "content-type": PROBLEM_JSON, "content-length": str(len(body))}
        head = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        self.transport.write(
            f"HTTP/1.1 {problem.status} {TITLES[problem.status]}\r\n{head}connection: close\r\n\r\n".encode() + body
        )

    def _linger(self) -> None:
        """Say that nothing more comes, and close once the client has had time to read that."""
        self.phase = LINGERING
        self.flow.resume_reading()
        try:
            if self.transport.can_write_eof():  # TLS of asyncio cannot; there the head of the answer says it alone.
                self.transport.write_eof()
        except OSError:  # The client has reset the connection, and the loop has not read that yet.
            self.abort()
            return
        self.loop.call_later(LINGER_S, self.abort)

    def end(self) -> None:
        """Close the connection behind what is written."""
        self._connections.remove(self)
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._connections.remove(self)
        self.transport.abort()

    # --- the clock

    def is_slow(self, now_s: float, body_s: float) -> bool:
        """Whether the client, and not the application, lets the body wait for too long."""
        if self.flow.read_paused:
            self._last_byte_s, self._late_s = now_s, now_s + body_s
            return False
        if LINES in self.cycle.scope:
            return now_s - self._last_byte_s > body_s
        return now_s > self._late_s

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def unread_since(self, now_s: float) -> float:
        """For how many seconds the client has read nothing of an answer that waits for it."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes == 0 or unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_s = unsent_bytes, None
            return 0.0
        if self._unsent_since_s is None:
            self._unsent_since_s = now_s
        return now_s - self._unsent_since_s


def _size(item: tuple[BoundedProtocol, int]) -> int:
    return item[1]


def _malformed() -> Problem:
    return Problem(400, "malformed_request", "this is not HTTP")


def _large_head(bytes_max: int) -> Problem:
    return Problem(431, "head_too_large", f"the head of a request has at most {bytes_max} bytes")
